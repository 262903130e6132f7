"""JSON documents: small state as parts, and strict, bounded reading of documents that may come from elsewhere."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from hexloop.domain.limits import limits
from hexloop.ports.state import JSON, Part

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def json_part(name: str, value: Any) -> Part:
    """Return the JSON-like `value` as a part. Later changes of `value` do not affect the part."""
    data = json.dumps(value).encode()
    return Part(name, JSON, (len(data),), 0, len(data), lambda: memoryview(data))


def json_value(part: Part) -> Any:
    """Return the value of a part that `json_part` made."""
    return json.loads(bytes(part.read()))


def only_value(parts: Iterable[Part], name: str) -> Any:
    """Return the value of the JSON part `name`, which must be the only part. Otherwise raise ValueError."""
    found = list(parts)
    if [part.name for part in found] != [name] or found[0].dtype != JSON:
        raise ValueError(f"Expected one JSON document named {name!r}, found {[part.name for part in found]}.")
    return json_value(found[0])


def read_bytes(chunks: Iterable[bytes | memoryview], limit: int | None = None) -> bytes:
    """Join the chunks of a document. Raises ValueError as soon as there are more than `limit` bytes.

    limit: by default, the limit `document_bytes`.
    """
    most = limits().document_bytes if limit is None else limit
    data = bytearray()
    for chunk in chunks:
        if len(data) + len(chunk) > most:
            raise ValueError(f"it is longer than {most} bytes")
        data += chunk
    return bytes(data)


def read_start(chunks: Iterable[bytes | memoryview], limit: int) -> bytes:
    """Join the chunks of a text up to `limit` bytes, and read no further."""
    data = bytearray()
    for chunk in chunks:
        data += chunk[: limit - len(data)]
        if len(data) >= limit:
            break
    return bytes(data)


def read_json(
    data: bytes,
    finite: bool = True,
    marked: Callable[[dict[str, Any]], Any] | None = None,
    proportional: bool = True,
) -> Any:
    """Parse a UTF-8 JSON document strictly, in time and memory proportional to its size.

    Raises ValueError if it is not valid JSON, has a duplicate key in an object, holds a number that JSON does not
    allow (NaN, Infinity, or one too large for a float) or text that is not Unicode, or exceeds one of the limits
    `document_bytes`, `document_depth`, `document_values` and `document_digits`.
    finite: refuse NaN and infinity; other libraries write these as bare words.
    marked: returns what an object with a single key stands for; called for those within others first.
    proportional: let a long document have a value for every 8 bytes besides `document_values`.
    """
    _refuse_beyond_limits(data, proportional)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object if marked is None else partial(_marked_object, marked),
            parse_constant=_refuse_constant if finite else float,
            parse_float=_number if finite else float,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if _SURROGATE.search(data):
        _refuse_lone_surrogates(value)
    return value


_BYTES_OF_A_VALUE = 8
"""A long document may have a value in so many bytes on average: one of an ordinary history takes more."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # one without an end goes up to that of the data
_PIECE = 1 << 20
_BACKSLASHES = re.compile(rb"\\+")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_DIGITS = bytes(ord("0") if chr(code) in "0123456789.eE+-" else ord(" ") for code in range(256))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(code for code in range(256) if code not in _STEPS)


def _refuse_beyond_limits(data: bytes, proportional: bool) -> None:
    """Raise ValueError for a document that is too large, before objects are made of it."""
    bounds = limits()
    short = len(data) <= min(bounds.document_bytes, bounds.document_values, bounds.document_digits)
    if short and data.count(b"[") + data.count(b"{") <= bounds.document_depth:
        return  # as are the lines of a journal
    if len(data) > bounds.document_bytes:
        raise ValueError(f"it is longer than {bounds.document_bytes} bytes; document_bytes raises this limit")
    most = bounds.document_values + (len(data) // _BYTES_OF_A_VALUE if proportional else 0)
    many = f"it has more than {most} values; document_values raises this limit"
    if data.count(b'"') - data.count(b'\\"') > 2 * most:
        raise ValueError(many)
    outside = _outside_of_strings(data)
    if sum(map(outside.count, (b",", b":", b"[", b"{"))) > most:
        raise ValueError(many)
    if b"0" * (bounds.document_digits + 1) in outside.translate(_DIGITS):
        raise ValueError(
            f"it holds a number of more than {bounds.document_digits} digits; document_digits raises this limit"
        )
    brackets = outside.translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > bounds.document_depth:
        raise ValueError(f"it is nested in more than {bounds.document_depth} levels; document_depth raises this limit")


def _outside_of_strings(data: bytes) -> bytes:
    """Return a document without its strings. It is worked through in pieces, because each string takes some memory."""
    if b"\0" in data:
        raise ValueError("it holds a null byte, which is not valid JSON")
    outside, inside, start = bytearray(), False, 0
    while start < len(data):
        end = start + _PIECE
        if backslashes := _BACKSLASHES.match(data, end - 1):
            end = backslashes.end() + 1  # so that no escaped character is cut
        piece = data[start:end]
        # A quote at the end closes a string that goes on in the next piece, so that the null byte is left outside.
        rest = _STRING.sub(b"", (b'"' + piece if inside else piece) + b'"\0')
        inside = rest.endswith(b"\0")
        outside += rest.removesuffix(b"\0")
        start = end
    return bytes(outside)


def _refuse_lone_surrogates(value: Any) -> None:
    """Raise ValueError if a text cannot be encoded, which fails wherever it is written or printed."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            if not each.isascii() and any("\ud800" <= character <= "\udfff" for character in each):
                raise ValueError(f"it holds the text {each[:40]!a}, which is not Unicode")
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            pending += each
            pending += each.values()


MOST_ALIKE = 32
"""Keys of a dictionary that may have the same hash. Those of ordinary numbers differ."""


def keyed(pairs: Sequence[tuple[Key, Value]]) -> dict[Key, Value]:
    """Return a dictionary of keys that are not all texts, in time proportional to their number.

    The hashes of numbers and tuples are the same in every process, so that a file can hold keys with equal ones, each
    of which is compared with all the others. Those of texts are not.
    Raises ValueError if more than `MOST_ALIKE` keys have the same hash, and TypeError for a key without one.
    """
    if len(pairs) > MOST_ALIKE and max(Counter(hash(key) for key, _ in pairs).values()) > MOST_ALIKE:
        raise ValueError(f"it has more than {MOST_ALIKE} keys with the same hash in an object")
    return dict(pairs)


def finite_json(value: Any) -> Any:
    """Return a JSON-like value with NaN and infinity, which JSON lacks, as "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): finite_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(inner) for inner in value]
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"it has the key {twice[:80]!r} twice in an object")
    return value


def _marked_object(marked: Callable[[dict[str, Any]], Any], pairs: list[tuple[str, Any]]) -> Any:
    return marked(dict(pairs)) if len(pairs) == 1 else _object(pairs)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is not valid JSON")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it holds {text[:40]}, which is too large a number")
    return number
