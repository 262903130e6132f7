"""Training runs that are killed again and again, on a real disk; `make kills` does it more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.killed_run import Job
from tests.engines.kills import kill_runs

KILLS = 20


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for where Linux lists them")
def test_a_run_that_is_killed_at_random_instants_ends_as_one_that_is_not(tmp_path: Path) -> None:
    """Each resumes from a whole checkpoint, cleans up, leaves no worker, and ends with the same weights and history."""
    counts = kill_runs(tmp_path, Job(width=256, steps=30), KILLS, each=10)
    assert counts.kills == KILLS
    assert counts.inside > 0
