"""A run in a framework other than torch: what it takes is its adapters and one file, `lists.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import verify
from tests.engines.processes import QUIET


def test_a_framework_of_lists_trains_without_torch(tmp_path: Path) -> None:
    """Training, evaluation, checkpoints, the best model and an exact resume, where torch cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.another_framework.training", str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", **QUIET},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["imported"] == []
    assert found["whole"] == found["resumed"]
    assert found["losses"] == sorted(found["losses"], reverse=True)
    assert abs(found["whole"][0] - 3.0) < 0.1
    assert Path(found["best"]).parent == tmp_path / "whole"
    assert json.loads((tmp_path / "saved" / "line.json").read_text()) == found["whole"]
    assert verify(LocalStorage(tmp_path / "whole"), "checkpoint-24").manifest.step == 24
