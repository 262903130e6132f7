"""JSON documents that lose nothing: numbers that JSON lacks, and keys that are no texts, are marked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from hexloop.domain.errors import CheckpointError
from hexloop.domain.strict_json import joined, read_json

NUMBER = "$number"
"""The only key of an object that stands for a number that JSON lacks; its value is "nan", "inf" or "-inf"."""

ITEMS = "$items"
"""The only key of an object that stands for a dictionary with keys that JSON lacks; its value is a list of pairs."""

_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_bytes(value: Any) -> bytes:
    """A JSON-like value as UTF-8 JSON; tuples become lists, numbers of any library become Python's.

    Raises CheckpointError, saying where in `value`, for anything that JSON has no place for.
    """
    return (json.dumps(_plain(value, "the document"), allow_nan=False) + "\n").encode()


def document_bytes(chunks: Iterable[bytes | memoryview]) -> bytes:
    """The bytes of a document. Raises CheckpointError where they are more than any document has."""
    try:
        return joined(chunks)
    except ValueError as error:
        raise CheckpointError(f"It is not a JSON document: {error}.") from error


def from_bytes(data: bytes) -> Any:
    """The value that `to_bytes` was given. Raises CheckpointError where `data` is no JSON document."""
    try:
        return _restored(read_json(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"It is not a JSON document: {error}.") from error


def read(chunks: Iterable[bytes | memoryview]) -> Any:
    """The value of a document as it comes from a storage; raises as `document_bytes` and `from_bytes` do."""
    return from_bytes(document_bytes(chunks))


def _plain(value: Any, where: str) -> Any:
    """`value` in terms of what JSON has."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else {NUMBER: repr(number)}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{index}]") for index, inner in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and value.keys() not in ({NUMBER}, {ITEMS}):
            return {key: _plain(inner, f"{where}[{key!r}]") for key, inner in value.items()}
        return {ITEMS: [[_plain(key, where), _plain(inner, f"{where}[{key!r}]")] for key, inner in value.items()]}
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold, as nothing "
        "is ever pickled; keep numbers, texts, lists and dictionaries there."
    )


def _restored(value: Any) -> Any:
    """What `_plain` was given."""
    if isinstance(value, list):
        return [_restored(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {NUMBER}:
        return _NUMBERS[value[NUMBER]]
    if value.keys() == {ITEMS}:
        return {_restored(key): _restored(inner) for key, inner in value[ITEMS]}
    return {key: _restored(inner) for key, inner in value.items()}
