"""Search spaces: what is drawn lies in its range, and a space may be written as data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.search import SearchOptions
from hexloop.adapters.search.drawing import GridSearch, RandomSearch
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.search.space import (
    Choices,
    Distribution,
    Floats,
    Integers,
    SpaceTrial,
    declared,
    parameters_of,
    space_function,
)

shares = st.floats(0, 1, exclude_max=True)
small = st.integers(1, 40)


@given(st.floats(1e-9, 1e3), st.floats(1, 1e4), st.booleans(), shares)
def test_numbers_lie_in_their_range(low: float, factor: float, log: bool, share: float) -> None:
    """At any share of it, and in order."""
    distribution = Floats(low, low * factor, log)
    assert low <= distribution.at(share / 2) <= distribution.at(share) <= low * factor


@given(st.integers(1, 1000), st.integers(0, 1000), st.booleans(), shares)
def test_whole_numbers_lie_in_their_range(low: int, more: int, log: bool, share: float) -> None:
    """Also in the logarithm; the ends are drawn too."""
    distribution = Integers(low, low + more, log)
    assert type(distribution.at(share)) is int
    assert low <= distribution.at(share) <= low + more
    assert (distribution.at(0.0), distribution.at(1 - 1e-12)) == (low, low + more)


@given(small, small, small)
def test_steps(low: int, more: int, step: int) -> None:
    """Only the lower end and multiples of the step are drawn, the last one at most the upper end."""
    whole, real = Integers(low, low + more, step=step), Floats(low, low + more, step=step)
    assert [*whole.values] == [*range(low, low + more + 1, step)]
    assert real.values == pytest.approx([*whole.values])
    assert [whole.at(each / 50) for each in range(50)] == pytest.approx([real.at(each / 50) for each in range(50)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Floats(2.0, 1.0), "not a range"),
        (lambda: Floats(0.0, float("inf")), "not a range"),
        (lambda: Floats(0.0, 1.0, log=True), "no logarithm"),
        (lambda: Floats(1.0, 2.0, log=True, step=0.5), "cannot be combined"),
        (lambda: Floats(1.0, 2.0, step=0.0), "greater than 0"),
        (lambda: Integers(3, 2), "not a range"),
        (lambda: Integers(1, 9, log=True, step=2), "cannot be combined"),
        (lambda: Choices(()), "no value"),
    ],
)
def test_ranges_that_cannot_be_drawn_from(make: Any, message: str) -> None:
    """The message says why."""
    with pytest.raises(ValueError, match=message):
        make()


def test_a_trial_draws_each_name_once() -> None:
    """A name that is suggested again has the same value, whatever its range."""
    drawn: list[str] = []

    def draw(name: str, distribution: Distribution) -> Any:
        drawn.append(name)
        return distribution.at(0.5)

    trial = SpaceTrial(3, draw, {"known": 7})
    assert trial.suggest_int("known", 0, 1) == 7
    assert trial.suggest_float("rate", 0.0, 1.0) == trial.suggest_float("rate", 5.0, 6.0) == 0.5
    assert trial.suggest_categorical("kind", ["a", "b"]) == "b"
    trial.set_user_attr("note", "text")
    assert (trial.number, drawn) == (3, ["rate", "kind"])
    assert trial.params == {"known": 7, "rate": 0.5, "kind": "b"}
    assert trial.user_attrs == {"note": "text"}


def test_a_wrong_range_names_the_parameter() -> None:
    """A mistake in a search space is an error of the configuration."""
    trial = SpaceTrial(0, lambda name, distribution: None)
    with pytest.raises(ConfigurationError, match=r"'rate' wrong: low=1\.0 and high=0\.0 are"):
        trial.suggest_float("rate", 1.0, 0.0)


@pytest.mark.parametrize("returned", [None, [1], {1: 2}])
def test_a_space_returns_a_dictionary(returned: Any) -> None:
    """Anything else is refused."""
    with pytest.raises(ConfigurationError, match="hp_space returned"):
        parameters_of(lambda trial: returned, None)


SPACE: dict[str, Any] = {
    "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "warmup_steps": {"low": 0, "high": 4, "step": 2},
    "adam_beta1": {"low": 0.8, "high": 0.9, "step": 0.05},
    "optim": ["adamw_torch", "sgd"],
}


def test_a_space_as_data() -> None:
    """Choices, and ranges of whole and other numbers."""
    assert declared(SPACE) == {
        "learning_rate": Floats(1e-5, 1e-1, log=True),
        "warmup_steps": Integers(0, 4, step=2),
        "adam_beta1": Floats(0.8, 0.9, step=0.05),
        "optim": Choices(("adamw_torch", "sgd")),
    }
    proposal = RandomSearch(SearchOptions(space_function(declared(SPACE)))).ask()
    assert proposal is not None
    assert [*proposal.parameters] == [*SPACE]


def test_a_space_as_data_can_be_a_grid() -> None:
    """If every range has a step."""
    finite = {name: each for name, each in SPACE.items() if name != "learning_rate"}
    search, found = GridSearch(SearchOptions(space_function(declared(finite)))), 0
    while search.ask() is not None:
        found += 1
    assert found == 3 * 3 * 2


def test_every_problem_of_a_space_is_reported() -> None:
    """Each with its name."""
    wrong = {"a": 1, "b": {"low": 1}, "c": {"low": 1, "hihg": 2}, "d": [], "e": {"low": "x", "high": 2}}
    with pytest.raises(ConfigurationError) as raised:
        declared(wrong)
    for text in ("'a' wrong: 1 is neither", "'b' wrong: it needs both", "did you mean high?", "'d' wrong", "'e' wrong"):
        assert text in str(raised.value)
