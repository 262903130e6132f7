"""A run with reproduce="transformers" resumes exactly, in a fresh process, in the middle of an epoch."""

from __future__ import annotations

import pytest

from tests.end_to_end.reproduce.runs import SLOW, Results, run_all

SAVES = {"save_strategy": "steps", "save_steps": 3}
QUICK = ("augmentation with workers",)
FURTHER = (
    "evaluation",
    "augmentation",
    "accumulation",
    "own loaders",
    "own sampler",
    "stream",
    "stream with workers",
    "unseeded sampler",
    "persistent workers",
    "stored rows with workers",
    "grouped by length",
    "rebalanced",
    "rebalanced on two ranks",
    "two ranks",
    "stream on two ranks",
)
STEPS = {"accumulation": (9, 39), "rebalanced": (3, 12, 15), "rebalanced on two ranks": (3, 9)}
"""Of the checkpoints; by default in an epoch, which has 15 batches, at an evaluation, and at the end of an epoch."""

pytestmark = pytest.mark.timeout(2 * SLOW)


def steps(name: str) -> tuple[int, ...]:
    return STEPS.get(name, (9, 18, 30))


def resumed(factory: pytest.TempPathFactory, names: tuple[str, ...]) -> tuple[Results, Results]:
    folder = factory.mktemp("resumed")
    whole = run_all("hexloop", folder / "whole", [(name, name, SAVES) for name in names])
    runs = [
        (f"{name} {step}", name, {**SAVES, "resume": str(whole.folders[name] / f"checkpoint-{step}")})
        for name in names
        for step in steps(name)
    ]
    return whole, run_all("hexloop", folder / "parts", runs)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    return resumed(tmp_path_factory, QUICK)


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results]:
    return resumed(tmp_path_factory, FURTHER)


def assert_exact(name: str, runs: tuple[Results, Results]) -> None:
    whole, parts = runs
    for step in steps(name):
        assert parts.of(f"{name} {step}") == whole.of(name), step


@pytest.mark.matrix
@pytest.mark.parametrize("name", QUICK)
def test_a_resumed_run_is_identical(name: str, quick: tuple[Results, Results]) -> None:
    """Logs and weights are those of the run that was not interrupted, wherever it resumes."""
    assert_exact(name, quick)


@pytest.mark.matrix
def test_reading_again_is_announced(quick: tuple[Results, Results]) -> None:
    """Only with workers is everything read again, with a warning of how much that is."""
    lines = [line for line in quick[1].output.splitlines() if "are read once more" in line]
    counts = sorted(int(line.split("reproduce='transformers', ")[1].split()[0]) for line in lines)
    assert counts == [3, 9, 15]
    assert all("streams of loader workers" in line and "dataloader_num_workers=0" in line for line in lines)


@pytest.mark.matrix
@pytest.mark.parametrize("name", FURTHER)
def test_further_runs_resume_exactly(name: str, further: tuple[Results, Results]) -> None:
    """So do streams, persistent workers, and several processes."""
    assert_exact(name, further)
