"""The console script, started as users start it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT: Mapping[str, str] = {**os.environ, "OMP_NUM_THREADS": "1"}


def script() -> str:
    """Return the path of `hexloop` in the environment of the tests."""
    found = shutil.which("hexloop", path=str(Path(sys.executable).parent))
    assert found is not None
    return found


def hexloop(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `hexloop` with `words` in `folder`, and wait for its end."""
    return subprocess.run(
        [script(), *map(str, words)], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


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
