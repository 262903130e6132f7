"""With reproduce="transformers" both libraries compute the same numbers, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.end_to_end.reproduce.runs import SLOW, Results, run_all
from tests.end_to_end.reproduce.script import CASES

QUICK = ("dropout", "augmentation with workers", "two ranks")
FURTHER = tuple(name for name in CASES if name not in QUICK)

Pair = tuple[Results, Results]

pytestmark = pytest.mark.timeout(2 * SLOW)


def both(factory: pytest.TempPathFactory, names: Sequence[str]) -> Pair:
    folder = factory.mktemp("both")
    runs = [(name, name, dict[str, object]()) for name in names]
    return run_all("hexloop", folder, runs), run_all("transformers", folder, runs)


@pytest.fixture(scope="module")
def quick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The runs of the cases that are tested in this session."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    tested = {item.name for item in functions if item.path == request.path and "quick" in item.fixturenames}
    return both(tmp_path_factory, [name for name in QUICK if any(f"[{name}]" in each for each in tested)])


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return both(tmp_path_factory, FURTHER)


def assert_same(name: str, pair: Pair) -> None:
    ours, theirs = pair
    for rank in range(CASES[name].get("ranks", 1)):
        mine, reference = ours.of(name, rank), theirs.of(name, rank)
        differing = [
            {key: (log.get(key), other.get(key)) for key in log.keys() | other.keys() if log.get(key) != other.get(key)}
            for log, other in zip(mine["logs"], reference["logs"], strict=True)
            if log != other
        ]
        assert not differing, f"{len(differing)} logs differ, first {differing[0]}"
        assert mine["weights"] == reference["weights"]
        assert len(mine["logs"]) > 10
        assert {"loss", "grad_norm", "learning_rate", "epoch"} <= mine["logs"][1].keys()
        if "eval_data" in CASES[name]:
            evaluations = [log for log in mine["logs"] if any(key.endswith("loss") and "eval" in key for key in log)]
            assert len(evaluations) >= 3


@pytest.mark.matrix
@pytest.mark.parametrize("name", QUICK)
def test_forty_steps_are_identical(name: str, quick: Pair) -> None:
    """Losses, learning rates, gradient norms, evaluation metrics and final weights are bit-identical."""
    assert_same(name, quick)


@pytest.mark.matrix
@pytest.mark.parametrize("name", [pytest.param("dropout", marks=pytest.mark.matrix), "two ranks"])
def test_imports_that_draw_random_numbers_change_nothing(name: str, quick: Pair, tmp_path: Path) -> None:
    """Packages draw when they are imported; a run imports them before it seeds the random streams."""
    drawn = run_all("hexloop", tmp_path, [(name, name, {})], imports_draw=True).of(name)
    assert {"accelerate", "torch._dynamo"} <= set(drawn["imported"])
    assert drawn["logs"] == quick[0].of(name)["logs"]
    assert drawn["weights"] == quick[0].of(name)["weights"]


@pytest.mark.matrix
@pytest.mark.parametrize("name", FURTHER)
def test_further_runs_are_identical(name: str, further: Pair) -> None:
    """So they are with other arguments, data, models and processes."""
    assert_same(name, further)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["random", "augmentation"])
def test_without_it_they_differ(name: str, further: Pair, tmp_path: Path) -> None:
    """Without the argument, hexloop's own order and streams give other numbers."""
    without = run_all("hexloop", tmp_path, [(name, name, {"reproduce": None})])
    assert without.of(name)["weights"] != further[1].of(name)["weights"]
    assert without.of(name)["logs"] != further[1].of(name)["logs"]
