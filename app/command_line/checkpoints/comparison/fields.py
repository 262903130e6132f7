"""Two JSON values, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, TypeAlias

FieldName: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a value."""


class Missing(Enum):
    """Stands for a field that is not there."""

    MISSING = "missing"


MISSING = Missing.MISSING

LONG = 16
"""How many numbers in a list are no fields any more."""


def fields_of(one: Any, other: Any, name: FieldName = ()) -> Iterator[tuple[FieldName, Any, Any]]:
    """Every field that either value has, with both values.

    What only one has is one field, however much is in it, and so are two lists of as many numbers, such as the states
    of a random stream.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one | other:
            yield from fields_of(one.get(key, MISSING), other.get(key, MISSING), (*name, str(key)))
    elif isinstance(one, list) and isinstance(other, list) and not _are_states(one, other):
        for index in range(max(len(one), len(other))):
            first, second = (value[index] if index < len(value) else MISSING for value in (one, other))
            yield from fields_of(first, second, (*name, index))
    else:
        yield name, one, other


def _are_states(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) >= LONG and all(type(value) in (int, float) for value in [*one, *other])


def told_name(name: FieldName) -> str:
    """The name as Python would write it, such as history[3].loss."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in name).removeprefix(".")
