"""Runs of the script, each case in a fresh process, and their results."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

ROOT = Path(__file__).parents[3]

SLOW = 900
"""Seconds that a module's runs may take."""


@frozen
class Results:
    """Where the runs of one process left their results, and what they printed."""

    folders: dict[str, Path]
    output: str

    def of(self, name: str, rank: int = 0) -> dict[str, Any]:
        """Return the logs and the weights' digests of a run."""
        path = self.folders[name] / f"result-{rank}.json"
        assert path.exists(), self.output[-4000:]
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def run_all(
    library: str, folder: Path, runs: Sequence[tuple[str, str, dict[str, Any]]], imports_draw: bool = False
) -> Results:
    """Run cases: the name of each result, its case, and changes of its arguments.

    imports_draw: whether the import of a package draws a random number.
    """
    folders = {name: folder / library / name for name, _, _ in runs}
    request = {
        "library": library,
        "port": _free_ports(),
        "imports_draw": imports_draw,
        "runs": [[case, str(folders[name]), changes] for name, case, changes in runs],
    }
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / f"{library}-{len(list(folder.iterdir()))}.json"
    document.write_text(json.dumps(request))
    command = [sys.executable, "-m", "tests.end_to_end.reproduce.script", str(document)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SLOW, check=False)
    return Results(folders, done.stdout + done.stderr)


def _free_ports() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return min(port, 64000)
