"""A run of several processes outlives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.killed_ranks import check


@pytest.mark.matrix
@pytest.mark.timeout(280)
def test_a_run_outlives_its_processes(tmp_path: Path) -> None:
    """Ranks that are killed are started again, and the run ends bit for bit as if nobody had killed them."""
    counts = check(tmp_path, kills=3, processes=2, seed=1)
    assert counts.kills == 3
