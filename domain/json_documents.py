"""JSON documents: small state as parts, and strict reading of documents and random states that may come from elsewhere.

The states of the random generators of Python and numpy are checked here because numpy does not check them: for a
position outside its array of 624 words it reads beyond the array, which corrupts memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hexloop.ports.state import JSON, Part

MAX_DOCUMENT_BYTES = 1 << 30
"""More than any JSON document of a run needs."""


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


def read_bytes(chunks: Iterable[bytes | memoryview], limit: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Join the chunks of a document. Raises ValueError as soon as there are more than `limit` bytes."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > limit:
            raise ValueError(f"it is longer than {limit} bytes")
    return bytes(data)


def read_json(data: bytes) -> Any:
    """Parse a UTF-8 JSON document strictly.

    Raises ValueError if it is not valid JSON, has a duplicate key in an object, holds a number that JSON does not
    allow (NaN, Infinity, or one too large for a float), or is nested too deeply for Python.
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_number
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


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
        names = [name for name, _ in pairs]
        raise ValueError(f"it has the key {next(name for name in names if names.count(name) > 1)!r} twice in an object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is not valid JSON")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it holds {text}, which is too large a number")
    return number


WORDS = 624
"""Words of the Mersenne twister; its position is from 0 to this number."""

LARGEST_WORD = 2**32 - 1


def refuse_invalid_python_state(version: object, words: Sequence[object], gauss: object) -> None:
    """Raise ValueError, with the value that is wrong, for an invalid state of `random.Random`."""
    if version != 3:
        raise ValueError(f"the version of Python's generator is {version!r}, not 3")
    if len(words) != WORDS + 1:
        raise ValueError(f"the state of Python's generator has {len(words)} words, not {WORDS + 1}")
    _refuse_invalid_words("Python", words[:-1])
    _refuse_invalid_position("Python", words[-1])
    if not (gauss is None or isinstance(gauss, float)):
        raise ValueError(f"the next Gaussian number of Python's generator is {gauss!r}, not a number or None")


def refuse_invalid_numpy_state(
    kind: object, words: Sequence[object], position: object, has_gauss: object, gauss: object
) -> None:
    """Raise ValueError, with the value that is wrong, for an invalid state of numpy's legacy generator."""
    if kind != "MT19937":
        raise ValueError(f"the kind of numpy's generator is {kind!r}, not 'MT19937'")
    if len(words) != WORDS:
        raise ValueError(f"the state of numpy's generator has {len(words)} words, not {WORDS}")
    _refuse_invalid_words("numpy", words)
    _refuse_invalid_position("numpy", position)
    if type(has_gauss) is not int or has_gauss not in (0, 1):
        raise ValueError(f"has_gauss of numpy's generator is {has_gauss!r}, not 0 or 1")
    if not isinstance(gauss, float | int) or isinstance(gauss, bool):
        raise ValueError(f"the next Gaussian number of numpy's generator is {gauss!r}, not a number")


def _refuse_invalid_words(owner: str, words: Sequence[object]) -> None:
    for word in words:
        if type(word) is not int or not 0 <= word <= LARGEST_WORD:
            raise ValueError(f"a word of {owner}'s generator is {word!r}, not a whole number below 2**32")
    if not any(words):
        raise ValueError(f"all words of {owner}'s generator are 0, so it would return the same number every time")


def _refuse_invalid_position(owner: str, position: object) -> None:
    if type(position) is not int or not 0 <= position <= WORDS:
        raise ValueError(f"the position of {owner}'s generator is {position!r}, not a whole number from 0 to {WORDS}")
