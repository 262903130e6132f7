"""Killed ranks of a run of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.killed_ranks import check


@pytest.mark.matrix
@pytest.mark.timeout(280)
def test_a_run_survives_killed_ranks(tmp_path: Path) -> None:
    """Killed ranks are restarted, and the run is bitwise equal to one without kills."""
    counts = check(tmp_path, kills=3, processes=2, seed=1)
    assert counts.kills == 3
