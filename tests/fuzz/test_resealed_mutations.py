"""A good checkpoint with a random change, sealed again, is refused, or loads and trains."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.warm_python import warm_python


@pytest.mark.matrix
@pytest.mark.parametrize("cases", [5, pytest.param(1000, marks=pytest.mark.timeout(3600))])
def test_resealed_mutations_are_refused_or_train(cases: int) -> None:
    """With an error of hexloop, or to the end, in a process that neither crashes nor hangs nor takes much memory."""
    ended = subprocess.run(
        [warm_python(), "-m", "tests.fuzz.resealed", "--cases", str(cases), "--seed", "27"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stderr
    found = json.loads(ended.stdout)
    assert found["findings"] == []
    assert found["refused"] + found["trained"] == cases
    assert found["refused"] >= cases // 4
    assert found["trained"] >= found["all_steps"] >= cases // 20
