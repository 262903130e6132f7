"""Checking a call's arguments without making the call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from hexloop.app.recipe.parts import call_problems


def make(width: int, depth: int = 2, *, name: str) -> None:
    """Have parameters of the usual kinds."""


def anything(*values: int, **names: int) -> None:
    """Accept any arguments."""


def by_position(first: int, second: int, /) -> None:
    """Accept positional-only arguments."""


class Thing:
    """A class with a required constructor argument."""

    def __init__(self, size: int) -> None: ...


def decorator(function: Callable[..., None]) -> Callable[..., None]:
    """Accept more keywords than the signature shows."""

    @functools.wraps(function)
    def outer(*values: Any, **names: Any) -> None:
        names.pop("extra", None)
        function(*values, **names)

    return outer


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (make, ["width", "name"], []),
        (make, ["width", "name", "depth"], []),
        (
            make,
            ["wdth", "name"],
            [("wdth", "no parameter wdth; did you mean width?"), (None, "also needs width")],
        ),
        (make, [], [(None, "make also needs width and name; add what is missing as keys next to call")]),
        (make, ["width", "name", "q"], [("q", "make has no parameter q; its parameters are width, depth and name")]),
        (anything, ["a", "b"], []),
        (by_position, [], [(None, "takes first and second by position only")]),
        (Thing, [], [(None, "Thing also needs size")]),
        (functools.partial(make, width=3), ["name"], []),
        (functools.cache(make), ["wdth", "width", "name"], [("wdth", "did you mean width?")]),
        (print, ["sep"], []),
        (dict, ["anything"], []),
        (decorator(make), ["width", "name", "extra"], []),
        (3, [], [(None, "it cannot be called; name a class or a function")]),
        (object, ["a"], [("a", "object has no parameter a; leave it out, as there are none")]),
    ],
)
def test_mismatched_arguments_are_reported(
    function: Any, given: list[str], expected: list[tuple[str | None, str]]
) -> None:
    """Unknown and missing keywords are reported, except for functions without a readable signature."""
    name = getattr(function, "__name__", "it")
    found = [(keyword, str(refusal)) for keyword, refusal in call_problems(function, name, given)]
    assert [keyword for keyword, _ in found] == [keyword for keyword, _ in expected]
    for (_, sentence), (_, part) in zip(found, expected, strict=True):
        assert part in sentence
