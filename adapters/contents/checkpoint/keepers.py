"""Whatever keeps something between steps, as files and back: its tensors, and its JSON documents."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hexloop.adapters.contents.checkpoint import documents
from hexloop.adapters.contents.checkpoint.shards import MODEL, dealt_files, tensor_paths, weight_files, weight_paths
from hexloop.adapters.contents.checkpoint.stream import Stream
from hexloop.adapters.contents.checkpoint.tensors import join, tensor_file, tensor_of_part, tensor_parts
from hexloop.domain.errors import CheckpointError
from hexloop.domain.parts import json_part, json_value
from hexloop.domain.state import Migration, migrate
from hexloop.ports.contents import OpenFile
from hexloop.ports.files import File
from hexloop.ports.state import JSON, Part

VERSION = "schema_version"
"""The entry of a document that says how to read the others."""

Migrations = Mapping[str, Mapping[int, Migration]]
"""For each file, by its path, the functions that turn the document of one schema version into the next one's.

Versions count from 1, so the present one of a file comes after the last of its functions.
"""

MIGRATIONS: Migrations = {}


def files_of(name: str, parts: list[Part], max_shard_size: int, migrations: Migrations = MIGRATIONS) -> Iterator[File]:
    """The files of the keeper `name`; none where it keeps nothing. The weights are split above `max_shard_size`."""
    tensors = join(part for part in parts if part.dtype != JSON)
    values = {part.name: json_value(part) for part in parts if part.dtype == JSON}
    if name == MODEL:
        yield from weight_files(tensors, max_shard_size)
    elif tensors:
        yield tensor_file(f"{name}.safetensors", tensors)
    if values:
        yield document_file(f"{name}.json", values, migrations)


def dealt_files_of(
    name: str, parts: list[Part], max_shard_size: int, migrations: Migrations, rank: int, writers: int
) -> Iterator[File]:
    """The files that a process writes of a keeper whose tensors are dealt out to so many; the first also writes the
    documents.

    The parts that fall to others hold nothing.
    """
    tensors = [tensor_of_part(part) for part in parts if part.dtype != JSON]
    yield from dealt_files(name, tensors, max_shard_size, rank, writers)
    values = {part.name: json_value(part) for part in parts if part.dtype == JSON}
    if values and rank == 0:
        yield document_file(f"{name}.json", values, migrations)


def parts_of(name: str, names: Collection[str], open_file: OpenFile, migrations: Migrations = MIGRATIONS) -> list[Part]:
    """The parts that a checkpoint holds of the keeper `name`, whose tensors are not read yet.

    Raises CheckpointError where a file is not what its name says, or of a newer schema version.
    """
    paths = weight_paths(names, open_file) if name == MODEL else tensor_paths(name, names)
    stream = Stream(open_file)
    parts = [part for path in paths for part in tensor_parts(stream, path)]
    values = read_document(f"{name}.json", names, open_file, migrations)
    return parts + [json_part(part, value) for part, value in values.items()]


def document_file(path: str, values: Mapping[str, Any], migrations: Migrations = MIGRATIONS) -> File:
    """A JSON object as a file, with its schema version."""
    if VERSION in values:
        raise CheckpointError(f"{path} cannot hold an entry named {VERSION!r}, as that is the file's own; rename it.")
    return File(path, [documents.to_bytes({VERSION: _present(path, migrations), **values})])


def read_document(
    path: str, names: Collection[str], open_file: OpenFile, migrations: Migrations = MIGRATIONS
) -> dict[str, Any]:
    """The entries of a JSON object, brought up to the present schema version; none where there is no such file."""
    if path not in names:
        return {}
    values = documents.read(open_file(path))
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    try:
        values = migrate(values, migrations.get(path, {}), _present(path, migrations))
    except CheckpointError as error:
        raise type(error)(f"{path} cannot be read: {error}") from error
    del values[VERSION]
    return values


def _present(path: str, migrations: Migrations) -> int:
    return len(migrations.get(path, {})) + 1
