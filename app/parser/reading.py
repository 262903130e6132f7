"""From the words after an option to a value of a field's type."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from hexloop.domain.wording import parse_truth

SEQUENCES = (list, tuple, set, frozenset, Sequence)


@attrs.frozen
class Reading:
    """How a field's words are read.

    word: makes a value of one word; raises ArgumentTypeError, or any ValueError or TypeError, where it cannot.
    choices: the values that there are, where they are few. is_truth: whether the option may stand alone, for True.
    collect: makes a value of several words; None where there is one.
    """

    word: Callable[[str], Any] = str
    choices: tuple[Any, ...] | None = None
    is_truth: bool = False
    collect: Callable[[list[str]], Any] | None = None


TEXT = Reading()


def reading_of(kind: Any) -> Reading:
    """How the words for a value of the type `kind` are read."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return _of_union(get_args(kind))
    if origin is Literal:
        return _of_choices(get_args(kind))
    if kind is bool:
        return Reading(to_truth, is_truth=True)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return _of_choices(tuple(member.value for member in origin))
    if origin in SEQUENCES:
        return _of_sequence(list if origin is Sequence else origin, get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Reading(to_mapping)
    return Reading(kind) if isinstance(kind, type) and kind not in (Any, object) else TEXT


def to_truth(word: str) -> bool:
    """A truth value of a word for one, in large or small letters."""
    truth = parse_truth(word)
    if truth is None:
        raise ArgumentTypeError(f"{word!r} is not a truth value; write true or false")
    return truth


def to_mapping(word: str) -> dict[str, Any]:
    """A mapping of its JSON text."""
    try:
        value = json.loads(word)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"""{word!r} is no mapping; write its JSON text such as '{{"name": 1}}'""")
    return value


def _of_choices(choices: tuple[Any, ...]) -> Reading:
    by_text = {str(choice): choice for choice in choices}
    return Reading(lambda word: by_text.get(word, word), choices)


def _of_sequence(container: Callable[[Any], Any], items: tuple[Any, ...]) -> Reading:
    """Several words, or one that is a list's JSON text, whose items are taken as they are."""
    item = reading_of(items[0]) if items else TEXT

    def collect(words: list[str]) -> Any:
        listed = _json_list(words[0]) if len(words) == 1 and item.word is not str else None
        return container(listed if listed is not None else [_chosen(item, word) for word in words])

    return Reading(collect=collect)


def _chosen(item: Reading, word: str) -> Any:
    value = item.word(word)
    if item.choices is not None and value not in item.choices:
        raise ArgumentTypeError(f"{word!r} is none of {', '.join(map(str, item.choices))}")
    return value


def _json_list(word: str) -> list[Any] | None:
    try:
        value = json.loads(word) if word.startswith("[") else None
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, list) else None


def _of_union(members: tuple[Any, ...]) -> Reading:
    """One of several types: text is what is left where no other fits, or all that None may be instead of."""
    others = [reading_of(member) for member in members if member not in (NoneType, str)]
    if not others:
        return TEXT
    if str not in members:
        return others[0] if len(others) == 1 else _first_that_fits(others)
    if several := next((other for other in others if other.collect), None):
        return _one_or_several(several) if NoneType in members else several
    if others[0].choices and NoneType not in members:
        return others[0]
    if NoneType not in members or any(other.is_truth for other in others):
        return _first_that_fits([*(other for other in others if other.choices is None), TEXT])
    return TEXT


def _first_that_fits(readings: list[Reading]) -> Reading:
    def word(text: str) -> Any:
        for reading in readings[:-1]:
            try:
                return reading.word(text)
            except (ArgumentTypeError, ValueError, TypeError):
                continue
        return readings[-1].word(text)

    return Reading(word, is_truth=any(reading.is_truth for reading in readings))


def _one_or_several(several: Reading) -> Reading:
    """One word stays text, as it does where the type is `str | None`."""
    collect = several.collect
    assert collect is not None
    return Reading(collect=lambda words: words[0] if len(words) == 1 else collect(words))
