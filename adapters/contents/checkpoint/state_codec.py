"""The state of a run as a JSON document, and back."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import fields
from cattrs import Converter
from cattrs.errors import BaseValidationError

from hexloop.adapters.contents.checkpoint import documents
from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import SCHEMA_VERSION, RunState, migrate

_CONVERTER = Converter()
_NAMES = frozenset(attribute.name for attribute in fields(RunState))


def to_bytes(state: RunState) -> bytes:
    """The state as JSON, with its schema version. Raises CheckpointError where it holds what JSON has no place for."""
    return documents.to_bytes({"schema_version": SCHEMA_VERSION, **_CONVERTER.unstructure(state)})


def read(chunks: Iterable[bytes | memoryview]) -> RunState:
    """The state in a document as it comes from a storage. Raises CheckpointError where it is none, or endless."""
    return from_bytes(documents.document_bytes(chunks))


def from_bytes(data: bytes) -> RunState:
    """The state in a JSON document of this or an earlier schema version. Raises CheckpointError where it is neither."""
    document = documents.from_bytes(data)
    if not isinstance(document, dict):
        raise CheckpointError("The saved state is not a JSON object.")
    values = migrate(document)
    del values["schema_version"]
    differing = sorted(values.keys() ^ _NAMES)
    if differing:
        raise CheckpointError(
            f"The saved state has, or lacks, what this hexloop does not expect: {', '.join(differing)}."
        )
    try:
        return _CONVERTER.structure(values, RunState)
    except (BaseValidationError, TypeError, ValueError) as error:
        raise CheckpointError(f"The saved state makes no sense: {error!r}.") from error
