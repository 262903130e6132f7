"""The command, as a program of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.warm_python import warm_python

ENVIRONMENT: Mapping[str, str] = {**os.environ, "OMP_NUM_THREADS": "1"}


def script() -> str:
    """Return the path of `hexloop` in the environment of the tests."""
    found = shutil.which("hexloop", path=str(Path(sys.executable).parent))
    assert found is not None
    return found


def hexloop(*words: str | Path, folder: Path, installed: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the command with `words` in `folder`, and wait for its end. installed: as the console script."""
    command = [*([script()] if installed else [warm_python(), "-m", "hexloop"]), *map(str, words)]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def started(*words: str | Path, folder: Path) -> subprocess.Popen[str]:
    """Start `hexloop` in a process group of its own, as a shell does, so that it can receive Ctrl-C as a group."""
    return subprocess.Popen(
        [script(), *map(str, words)],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
