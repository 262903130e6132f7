"""Runs of the script, one process for each library, and what its cases saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

ROOT = Path(__file__).parents[3]

SLOW = 600
"""Seconds that the cases of one library may take together."""


@frozen
class Seen:
    """Where the cases left what they saw, and what they printed."""

    folder: Path
    output: str

    def of(self, name: str, rank: int = 0) -> Any:
        """Return what a case saw."""
        path = self.folder / name / f"seen-{rank}.json"
        assert path.exists(), self.output[-4000:]
        return json.loads(path.read_text())


def see(library: str, names: Sequence[str], folder: Path) -> Seen:
    """Run cases with a library."""
    folder = folder / library
    folder.mkdir(parents=True)
    request = {"library": library, "cases": {name: str(folder / name) for name in names}}
    document = folder / "request.json"
    document.write_text(json.dumps(request))
    command = [sys.executable, "-m", "tests.end_to_end.accelerators.script", str(document)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SLOW, check=False)
    return Seen(folder, done.stdout + done.stderr)
