"""Lossless JSON documents, which mark numbers and keys that JSON lacks; their schema versions; the run state."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from attrs import fields
from cattrs import Converter
from cattrs.errors import BaseValidationError

from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.state import MIGRATIONS as STATE_MIGRATIONS
from hexloop.domain.state import Migration, RunState, migrate
from hexloop.ports.contents import OpenFile
from hexloop.ports.storage import File

RUN_STATE = "run_state.json"

NUMBER = "$number"
"""The only key of an object that stands for a number JSON lacks; its value is "nan", "inf" or "-inf"."""

ITEMS = "$items"
"""The only key of an object that stands for a dictionary with keys JSON lacks; its value is a list of pairs."""

_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

VERSION = "schema_version"
"""The entry of a document that holds its schema version."""

MIGRATIONS: dict[str, Mapping[int, Migration]] = {RUN_STATE: STATE_MIGRATIONS}
"""For each file, by path: functions that convert the document of one schema version to that of the next.

Versions count from 1, so the current version of a file is one more than the number of its functions.
"""

_CONVERTER = Converter()

_NAMES = frozenset(attribute.name for attribute in fields(RunState))


def to_bytes(value: Any) -> bytes:
    """Encode a JSON-like value as UTF-8 JSON; tuples become lists, numbers of any library become Python's.

    Raises CheckpointError, naming the position in `value`, for anything that JSON cannot represent.
    """
    return (json.dumps(_plain(value, "the document"), allow_nan=False) + "\n").encode()


def read(chunks: Iterable[bytes | memoryview]) -> Any:
    """Return the value that `to_bytes` encoded.

    Raises CheckpointError if the bytes are not a JSON document, or if there are more than any document has.
    """
    try:
        return _restored(read_json(read_bytes(chunks)))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"It is not a JSON document: {error}.") from error


def _plain(value: Any, where: str) -> Any:
    """Convert `value` to what JSON can represent."""
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
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be saved: checkpoints contain "
        "no pickles. Use numbers, strings, lists and dictionaries."
    )


def _restored(value: Any) -> Any:
    """Invert `_plain`."""
    if isinstance(value, list):
        return [_restored(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {NUMBER}:
        return _NUMBERS[value[NUMBER]]
    if value.keys() == {ITEMS}:
        return {_restored(key): _restored(inner) for key, inner in value[ITEMS]}
    return {key: _restored(inner) for key, inner in value.items()}


def document_file(path: str, values: Mapping[str, Any]) -> File:
    """Return a JSON object as a file, with its schema version."""
    if VERSION in values:
        raise CheckpointError(f"{path} cannot have an entry named {VERSION!r}, which is reserved; rename it.")
    return File(path, [to_bytes({VERSION: _current(path), **values})])


def read_document(path: str, names: Collection[str], open_file: OpenFile) -> dict[str, Any]:
    """Return the entries of a JSON object, migrated to the current schema version; empty if the file does not exist."""
    if path not in names:
        return {}
    values = read(open_file(path))
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    try:
        values = migrate(values, MIGRATIONS.get(path, {}), _current(path))
    except CheckpointError as error:
        raise type(error)(f"{path} cannot be read: {error}") from error
    del values[VERSION]
    return values


def _current(path: str) -> int:
    return len(MIGRATIONS.get(path, {})) + 1


def state_file(state: RunState) -> File:
    """Return the run state as a file. Raises CheckpointError if JSON cannot represent it."""
    return document_file(RUN_STATE, _CONVERTER.unstructure(state))


def read_state(open_file: OpenFile) -> RunState:
    """Return the run state of a checkpoint of this or an earlier schema version.

    Raises CheckpointError if the file is not a valid state.
    """
    values = read_document(RUN_STATE, [RUN_STATE], open_file)
    differing = sorted(values.keys() ^ _NAMES)
    if differing:
        raise CheckpointError(f"The saved state has unexpected entries or lacks expected ones: {', '.join(differing)}.")
    try:
        return _CONVERTER.structure(values, RunState)
    except (BaseValidationError, TypeError, ValueError) as error:
        raise CheckpointError(f"The saved state is invalid: {error!r}.") from error
