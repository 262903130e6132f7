"""The user's functions receive the arguments that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hexloop.app.calling import accepts, fitted, fitted_by_name, most_positional

NAMES = ("first", "second", "third", "rate")
VALUES = (1, 2, 3, 4)


def seen(*values: Any, **named: Any) -> tuple[Any, Any]:
    return values, named


POSITIONAL: list[tuple[Callable[..., Any], Any]] = [
    (lambda a, b, c, d: (a, b, c, d), (1, 2, 3, 4)),
    (lambda a, b: (a, b), (1, 2)),
    (lambda: (), ()),
    (lambda *values: values, VALUES),
    (lambda a, *, third: (a, third), (1, 3)),
    (lambda a, *, other=None: (a, other), (1, None)),
    (seen, (VALUES, {})),
    (lambda a, **named: (a, named), (1, {"second": 2, "third": 3, "rate": 4})),
    (lambda third, first: (third, first), (1, 2)),
]


@pytest.mark.parametrize(("function", "expected"), POSITIONAL)
def test_values_are_passed_by_position_and_then_by_name(function: Callable[..., Any], expected: Any) -> None:
    assert fitted(function, NAMES)(*VALUES) == expected


def test_a_function_that_takes_all_is_called_directly() -> None:
    assert fitted(POSITIONAL[0][0], NAMES) is POSITIONAL[0][0]


NAMED: list[tuple[Callable[..., Any], Any]] = [
    (lambda third, first: (third, first), (3, 1)),
    (lambda first, *, rate: (first, rate), (1, 4)),
    (lambda first, **named: (first, named), (1, {"second": 2, "third": 3, "rate": 4})),
    (lambda one, two: (one, two), (1, 2)),
    (lambda one, rate: (one, rate), (1, 4)),
    (seen, (VALUES[:3], {"rate": 4})),
    (lambda *values: values, VALUES),
]


@pytest.mark.parametrize(("function", "expected"), NAMED)
def test_values_are_passed_by_name_if_the_names_are_known(function: Callable[..., Any], expected: Any) -> None:
    assert fitted_by_name(function, NAMES, named=1)(*VALUES) == expected


def test_the_facts_of_a_function() -> None:
    assert accepts(lambda a, **_: a, "anything")
    assert not accepts(lambda a: a, "anything")
    assert most_positional(lambda a, b, *, c: (a, b, c)) == 2
    assert most_positional(seen) == float("inf")
