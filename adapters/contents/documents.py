"""Lossless JSON documents, which mark numbers and keys that JSON lacks; their schema versions; the run state."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from attrs import asdict, fields

from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import keyed, read_bytes, read_json
from hexloop.domain.run_folder import RUN_STATE
from hexloop.domain.schemas import read_document, shown
from hexloop.domain.state import MIGRATIONS as STATE_MIGRATIONS
from hexloop.domain.state import Migration, RunState, migrate
from hexloop.domain.wording import listed
from hexloop.ports.state import Part

"""The file with the run state, which every checkpoint of a run has."""

NUMBER = "$number"
"""The only key of an object that stands for a number JSON lacks; its value is "nan", "inf" or "-inf"."""

ITEMS = "$items"
"""The only key of an object that stands for a dictionary with keys JSON lacks; its value is a list of pairs."""

_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

ACTIONS = ("log", "evaluate", "save")
"""What may be due at a boundary."""

VERSION = "schema_version"
"""The entry of a document that holds its schema version."""

MIGRATIONS: dict[str, Mapping[int, Migration]] = {"run_state": STATE_MIGRATIONS}
"""For each document, by name: functions that convert the document of one schema version to that of the next.

Versions count from 1, so the current version of a document is one more than the number of its functions.
"""

ADDED = frozenset(
    {
        "trackers", "finite_loss", "finite_steps", "nonfinite_steps", "nonfinite_losses", "nonfinite_norms", "spikes",
        "recent_losses", "skipped", "time_spent", "joined_groups", "trainable", "learning_rates",
    }
)  # fmt: skip
"""Entries of the run state that checkpoints of earlier releases lack."""

_NAMES = frozenset(attribute.name for attribute in fields(RunState))


def to_bytes(value: Any) -> bytes:
    """Encode a JSON-like value as UTF-8 JSON; tuples become lists, numbers of any library become Python's.

    Raises CheckpointError, naming the position in `value`, for anything that JSON cannot represent.
    """
    return (json.dumps(_plain(value, "the document"), allow_nan=False) + "\n").encode()


def read_whole(chunks: Iterable[bytes | memoryview], path: str) -> bytes:
    """Return the bytes of a file. Raises CheckpointError if there are more than any document has."""
    try:
        return read_bytes(chunks)
    except ValueError as error:
        raise CheckpointError(f"{path} is not a JSON document: {error}.") from error


def read(chunks: Iterable[bytes | memoryview], path: str = "It", proportional: bool = True) -> Any:
    """Return the value that `to_bytes` encoded.

    path: names the file in messages. proportional: see `read_json`.
    Raises CheckpointError if the bytes are not a JSON document, or if there are more than any document has.
    """
    try:
        return read_json(read_bytes(chunks), marked=_restored, proportional=proportional)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a JSON document: {error}.") from error


def _plain(value: Any, where: str) -> Any:
    """Convert `value` to what JSON can represent. The types of nearly all values are looked up, as that is fast."""
    kind = type(value)
    if kind in _UNCHANGED:
        return value
    if kind is float:
        return value if math.isfinite(value) else {NUMBER: repr(value)}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{index}]") for index, inner in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and value.keys() not in ({NUMBER}, {ITEMS}):
            return {key: _plain(inner, f"{where}[{key!r}]") for key, inner in value.items()}
        return {ITEMS: [[_plain(key, where), _plain(inner, f"{where}[{key!r}]")] for key, inner in value.items()]}
    if isinstance(value, str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return _plain(float(value), where)
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be saved: checkpoints contain "
        "no pickles. Use numbers, strings, lists and dictionaries."
    )


_UNCHANGED = frozenset({type(None), bool, int, str})


def _restored(value: dict[str, Any]) -> Any:
    """Return what an object with one key stands for: itself, unless `_plain` made it of something else."""
    if NUMBER in value:
        return _NUMBERS[value[NUMBER]]
    if ITEMS in value:
        return keyed([(key, inner) for key, inner in value[ITEMS]])
    return value


def shard_names(index: Any, names: Collection[str]) -> list[str]:
    """Return the names of the files that an index of shards lists.

    Raises ValueError if it is not an index, or lists a file that is not among `names`.
    """
    held = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(held, dict) or not all(isinstance(name, str) for name in held.values()):
        raise ValueError("it is not an index of shards: weight_map must have the file of each tensor")
    shards = sorted(set(held.values()))
    if missing := [name[:80] for name in shards if name not in names]:
        raise ValueError(f"it names shards that are missing from the checkpoint: {listed(missing, ', ')}")
    return shards


def encode(name: str, values: Mapping[str, Any]) -> bytes:
    """Return the document `name` as JSON, with its schema version. Raises CheckpointError for what JSON lacks."""
    _refuse_reserved(name, values)
    return to_bytes({VERSION: _current(name), **values}).rstrip()


def encode_parts(name: str, parts: Iterable[Part]) -> bytes:
    """Return the JSON parts of a component as the document `name`, with its schema version; b"" if there are none.

    A part is JSON already, and is encoded again only if it has numbers that JSON lacks.
    """
    values = {part.name: bytes(part.read()) for part in parts}
    if not values:
        return b""
    _refuse_reserved(name, values)
    if any(mark in data for data in values.values() for mark in (b"NaN", b"Infinity", b"$")):
        return encode(name, {key: json.loads(data) for key, data in values.items()})
    entries = (json.dumps(key).encode() + b": " + data for key, data in values.items())
    return b"{" + b", ".join([f'"{VERSION}": {_current(name)}'.encode(), *entries]) + b"}"


def _refuse_reserved(name: str, values: Mapping[str, Any]) -> None:
    if VERSION in values:
        raise CheckpointError(f"{name} cannot have an entry named {VERSION!r}, which is reserved; rename it.")


def migrated(name: str, document: Any, where: str) -> dict[str, Any]:
    """Return the entries of the document `name`, as it was read, migrated to the current schema version.

    where: says in messages where it was read.
    """
    if not isinstance(document, dict):
        raise CheckpointError(f"{where} is not a JSON object.")
    try:
        values = migrate(document, MIGRATIONS.get(name, {}), _current(name))
    except CheckpointError as error:
        raise type(error)(f"{where} cannot be read: {error}") from error
    del values[VERSION]
    return values


def _current(name: str) -> int:
    return len(MIGRATIONS.get(name, {})) + 1


def encode_state(state: RunState) -> bytes:
    """Return the run state as a document. Raises CheckpointError if JSON cannot represent it."""
    own: dict[str, Any] = {
        "skipped": [asdict(each) for each in state.skipped],
        "joined_groups": [asdict(each) for each in state.joined_groups],
    }
    if state.time_spent is not None:
        own["time_spent"] = asdict(state.time_spent)
    return encode("run_state", {**asdict(state, recurse=False), **own})


def state_of(values: Mapping[str, Any]) -> RunState:
    """Return the run state in a document. Raises CheckpointError, with every problem, if it is not a valid state."""
    if missing := sorted(_NAMES - values.keys() - ADDED):
        raise CheckpointError(f"The run state in {RUN_STATE} lacks {', '.join(missing)}.")
    state = read_document(values, RunState, f"The run state in {RUN_STATE}")
    if wrong := [each for each in state.due if each not in ACTIONS]:
        raise CheckpointError(
            f"The run state in {RUN_STATE} is invalid: due: {shown(wrong[0])} is not one of {', '.join(ACTIONS)}."
        )
    return state
