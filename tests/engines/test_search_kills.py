"""Searches that are killed repeatedly. `make kills` kills ten times as often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.search_kills import kill_searches

pytest.importorskip("optuna")


@pytest.mark.parametrize("kills", [3, pytest.param(12, marks=pytest.mark.matrix)])
def test_a_killed_search_finds_what_an_undisturbed_one_does(kills: int, tmp_path: Path) -> None:
    """The same trials, reports, values, best trial and protected checkpoint."""
    assert kill_searches(tmp_path, kills, each=6, seed=kills) >= 1
