"""How much each parameter of a search matters: by its share of the objective's ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages.importance import FEWEST_TRIALS, importances

VALUES = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=3), st.lists(st.none()))
OBJECTIVES = st.one_of(st.none(), st.floats())


def test_what_decides_comes_first() -> None:
    """A parameter on which the objective depends, whether it is a number or a word, and one on which it does not."""
    random = np.random.default_rng(0)
    rate, noise = random.uniform(-5, -1, 60), random.uniform(0, 1, 60)
    optimizer = ["sgd" if number % 2 else "adamw" for number in range(60)]
    objective = [abs(each + 3) + 0.8 * (name == "sgd") for each, name in zip(rate, optimizer, strict=True)]
    found = importances({"noise": list(noise), "optim": optimizer, "rate": list(10**rate)}, objective)
    assert list(found) == ["rate", "optim", "noise"]
    assert found["rate"] > 0.5
    assert found["noise"] < 0.15


def test_a_function_of_one_parameter_is_explained_by_it() -> None:
    """The share is 1 if equal values have equal objectives, whatever the scale of these."""
    sizes = [1, 2, 3] * 5
    found = importances({"size": sizes}, [math.exp(100 * each) for each in sizes])
    assert found == {"size": pytest.approx(1.0)}
    assert importances({"size": sizes}, [-each for each in sizes]) == {"size": pytest.approx(1.0)}


def test_diverged_and_failed_trials_do_not_decide() -> None:
    """One huge objective counts as the worst, and trials without one are left out."""
    sizes = [1.0, 2.0] * 10
    objective: list[float | None] = [each + number / 1000 for number, each in enumerate(sizes)]
    usual = importances({"size": sizes}, objective)["size"]
    huge = importances({"size": sizes}, [*objective[:-1], 1e300])["size"]
    assert usual == huge
    failed = [None, math.nan, math.inf]
    assert importances({"size": [*sizes, 9.0, 9.0, 9.0]}, [*objective, *failed]) == {"size": pytest.approx(usual)}


def test_few_and_equal_trials_tell_nothing() -> None:
    """As do trials that all have different words, from which no group can be made."""
    few = list(range(FEWEST_TRIALS - 1))
    assert importances({"size": few}, list(map(float, few))) == {}
    assert importances({"size": list(range(20))}, [1.0] * 20) == {}
    names = [f"name {number}" for number in range(20)]
    assert importances({"name": names, "size": [1] * 20}, list(map(float, range(20)))) == {"name": 0.0, "size": 0.0}


def test_a_parameter_that_some_trials_do_not_have() -> None:
    """Its absence is a value of its own."""
    momentum = [None if number % 2 else 0.1 * number for number in range(40)]
    objective = [float(number % 2) * 10 + number / 100 for number in range(40)]
    assert importances({"momentum": momentum}, objective)["momentum"] > 0.6


@given(st.lists(st.tuples(VALUES, VALUES, OBJECTIVES), max_size=40))
def test_shares_are_between_0_and_1(trials: list[tuple[object, object, float | None]]) -> None:
    """For values of any kind, and they do not depend on the order of the trials."""
    columns = {"one": [each[0] for each in trials], "other": [each[1] for each in trials]}
    found = importances(columns, [each[2] for each in trials])
    assert all(0 <= each <= 1 for each in found.values())
    turned = importances({name: each[::-1] for name, each in columns.items()}, [each[2] for each in trials][::-1])
    assert turned == pytest.approx(found)
