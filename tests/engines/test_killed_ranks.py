"""Killed ranks of a run of several processes; `make kills` runs ten times as many kills under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.killed_ranks import check_killed_ranks

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found where Linux lists them"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kinds", "kills", "processes"),
    [(("hexloop",), 3, 2), (("torchrun",), 3, 4), (("torchrun --standalone",), 2, 4)],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_run_survives_killed_ranks(kinds: tuple[str, ...], kills: int, processes: int, tmp_path: Path) -> None:
    """They are killed at any time, also while they meet; the run is bitwise equal to one without kills."""
    counts = check_killed_ranks(tmp_path, kills, processes, seed=1, kinds=kinds, tell=print)
    assert counts.kills == kills
