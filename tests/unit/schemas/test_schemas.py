"""Schemas of JSON documents: what they take, and that a refusal has every problem with its field."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part
from hexloop.domain.ranges import Count, Finite, Int32Count, Positive
from hexloop.domain.schemas import KEY, Open, read_document, read_part, structured
from hexloop.domain.wording import MOST_LISTED
from tests.unit.schemas.json_values import VALUES


@frozen
class Inner:
    kind: str = field(metadata={KEY: "class"})
    number: Count = 0


@frozen
class OpenInner(Open):
    number: Count = 0


@frozen
class Whole:
    scale: Positive
    rates: tuple[Finite, ...]
    pair: tuple[int, str]
    counts: dict[str, Int32Count]
    inner: list[Inner]
    free: list[OpenInner]
    flag: bool
    anything: Any
    entries: dict[str, Any]
    best: float | None = None


GOOD: dict[str, Any] = {
    "scale": 1.5,
    "rates": [1, 2.5],
    "pair": [1, "a"],
    "counts": {"a": 1},
    "inner": [{"class": "x"}],
    "free": [{"number": 1, "more": "a"}],
    "flag": True,
    "anything": {"a": [None]},
    "entries": {"a": 5},
}


def test_a_valid_document_is_read() -> None:
    """Each value has the type of its field, and the fields that are absent have their defaults."""
    read = structured(GOOD, Whole)
    assert read == Whole(1.5, (1, 2.5), (1, "a"), {"a": 1}, [Inner("x")], [OpenInner(1)], True, {"a": [None]}, {"a": 5})
    best = structured({**GOOD, "best": math.nan}, Whole).best
    assert best is not None
    assert math.isnan(best)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "below": ({"scale": 0}, "scale: 0 is not a finite number above 0"),
    "no number": ({"rates": [1, "x", math.nan]}, "rates[1]: 'x' is not a number; rates[2]: nan is not a finite"),
    "true": ({"rates": [True]}, "rates[0]: True is not a number"),
    "huge": ({"rates": [10**400]}, "rates[0]: a number of 1329 bits is not a number"),
    "too short": ({"pair": [1]}, "pair: it has 1 entries, not 2"),
    "second": ({"pair": [1, 2]}, "pair[1]: 2 is not text"),
    "too many bits": ({"counts": {"a": 2**31}}, "counts['a']: 2147483648 is not between 0 and 2147483647"),
    "inner": ({"inner": [{"class": 5, "number": -1}]}, "inner[0].class: 5 is not text; inner[0].number: -1 is not"),
    "missing": ({"inner": [{}]}, "inner[0].class: it is missing"),
    "unknown": ({"inner": [{"class": "", "kind": 1}]}, "inner[0]: unknown entries 'kind'"),
    "no object": ({"inner": [5], "free": 5}, "inner[0]: 5 is not a JSON object; free: 5 is not a list"),
    "no list": ({"rates": {"a": 1}}, "rates: {'a': 1} is not a list"),
    "fraction": ({"counts": {"a": 1.0}}, "counts['a']: 1.0 is not a whole number"),
    "no dictionary": ({"entries": [], "counts": {1: 1}}, "counts: {1: 1} is not a JSON object; entries: [] is not"),
    "one": ({"flag": 1}, "flag: 1 is not true or false"),
    "text": ({"best": "nan"}, "best: 'nan' is not a number"),
    "long": ({"best": "n" * 1000, "anything": 1}, f"best: '{'n' * 79}... is not a number"),
    "many": ({"rates": ["x"] * 20}, "; and more"),
    "deep list": (
        {"scale": [[0] * 10**6]},
        "scale: [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ...]] is not",
    ),
    "text in a list": ({"scale": ["\u00e9\n"]}, r"scale: ['\xe9\n'] is not"),
    "long list": ({"scale": [0] * 200, "pair": {str(n): n for n in range(99)}}, "scale: a list of 200 entries is not"),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_field_is_named(name: str) -> None:
    """With the value and what it should be, in the order of the fields."""
    changes, words = WRONG[name]
    with pytest.raises(CheckpointError) as raised:
        read_document({**GOOD, **changes}, Whole, "losses in run_state.json")
    assert str(raised.value).startswith("losses in run_state.json is invalid: ")
    assert words in str(raised.value)


def test_a_part_is_read_with_its_name() -> None:
    """A part that is not the only one, or not JSON of the kind, is refused with its name."""
    assert read_part([json_part("a", [1.5])], "a", list[float]) == [1.5]
    with pytest.raises(ValueError, match=r"^a\[0\]: 'x' is not a number$"):
        read_part([json_part("a", ["x"])], "a", list[float])
    with pytest.raises(ValueError, match=r"^a: 5 is not a list$"):
        read_part([json_part("a", 5)], "a", list[float])
    with pytest.raises(ValueError, match="Expected one JSON document named 'a'"):
        read_part([], "a", list[float])


def refusal(read: Callable[[], object]) -> str | None:
    """Return the message of a ValueError; None if there is none."""
    try:
        read()
    except ValueError as error:
        return str(error)
    return None


@given(st.sampled_from(sorted(GOOD)), VALUES)
def test_any_value_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    """For each field: no other error than a ValueError that starts with the field, and of bounded length."""
    told = refusal(lambda: structured({**GOOD, name: value}, Whole))
    assert told is None or (told.startswith(name) and len(told) < MOST_LISTED * 300)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rates": ["x"] * 200_000},
        {"counts": {str(number): "x" for number in range(100_000)}},
        {f"unknown {number}": 0 for number in range(100_000)},
    ],
    ids=["list", "dictionary", "unknown"],
)
def test_many_wrong_values_take_little_memory(wrong: dict[str, Any]) -> None:
    """A message is made of the first of them, and the others are not described."""
    document = {**GOOD, **wrong}
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="more") as raised:
            read_document(document, Whole, "it")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(raised.value)) < 1000
    assert peak < 16 << 20


@frozen
class Checked:
    number: int
    double: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("it is negative")
        object.__setattr__(self, "double", 2 * self.number)


def test_a_class_may_check_and_compute() -> None:
    """Its error is a problem of the document, and a computed field is no entry."""
    assert structured({"number": 2}, Checked).double == 4
    with pytest.raises(ValueError, match=r"^at: not valid \(it is negative\)$"):
        structured({"number": -1}, Checked, "at")
    with pytest.raises(ValueError, match="unknown entries 'double'"):
        structured({"number": 1, "double": 2}, Checked)


@pytest.mark.parametrize("kind", [int | str | None, set[int], bytes])
def test_a_kind_that_no_document_has_is_an_error_of_the_program(kind: Any) -> None:
    """It is not one of the document."""
    with pytest.raises(TypeError, match="is not a kind of value"):
        structured(1, kind)
