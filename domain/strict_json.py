"""JSON that comes from outside, taken at its word and no further."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

LONGEST = 1 << 30
"""Bytes of a document; far more than anything that a run keeps in JSON comes to."""


def joined(chunks: Iterable[bytes | memoryview], longest: int = LONGEST) -> bytes:
    """The bytes of a document. Raises ValueError where there are more than `longest`, without reading on."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > longest:
            raise ValueError(f"it is longer than {longest} bytes")
    return bytes(data)


def read_json(data: bytes) -> Any:
    """The value of a UTF-8 JSON document.

    Raises ValueError where it is none, names a key of an object twice, holds a number that JSON lacks (NaN, Infinity,
    or one too large for a float), or is nested more deeply than Python can follow.
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_number
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {next(name for name in names if names.count(name) > 1)!r} twice in one object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is no JSON")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it holds {text}, which is too large a number")
    return number
