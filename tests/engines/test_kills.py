"""Training runs that are killed repeatedly, on a real disk. `make kills` runs ten times as many kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.killed_run import Job
from tests.engines.kills import Aim, Counts, KilledRun, kill_runs, wait_for_the_end_of

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked for where Linux lists them"
)


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.matrix)])
def test_runs_killed_at_random_match_runs_without_kills(kills: int, tmp_path: Path) -> None:
    """Each run resumes from complete checkpoints, cleans up, leaves no worker, and has the same weights and history."""
    counts = kill_runs(tmp_path, Job(width=256, steps=30), kills, each=10)
    assert counts.kills == kills
    assert counts.inside > 0 or kills < 20


@pytest.mark.matrix
def test_workers_of_a_fork_server_end_with_the_killed_run(tmp_path: Path) -> None:
    """No process remains, the fork server included."""
    run = KilledRun(tmp_path / "run", Job(width=8, steps=400, start_method="forkserver"), Counts())
    assert run.kill(Aim(save=1, seconds=0, group=False))
    wait_for_the_end_of(run.counts.started)
    run.clear()
