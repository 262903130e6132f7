"""The folders and checkpoints that the commands are given, by path or URL."""

from __future__ import annotations

from contextlib import suppress

from attrs import frozen

from hexloop.app.wiring.storage import is_missing, split_location, storage_for
from hexloop.domain.checkpoints.names import MANIFEST, checkpoint_name, is_set_aside, marks_unfinished, step_of
from hexloop.domain.checkpoints.reading import checkpoint_steps, read_manifest
from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError
from hexloop.ports.storage import Storage

BY_CHOICE = "blake2b"
"""The digest that a storage computes only where it is told to."""


@frozen
class Place:
    """A checkpoint, as it was `given`: its storage, and its name there."""

    given: str
    storage: Storage
    name: str


def open_folder(given: str) -> Storage:
    """The storage of a folder of checkpoints. Raises ConfigurationError where there is none on this machine."""
    refuse_missing([given])
    storage = storage_for(given)
    return _with_digest_of(given, storage, [checkpoint_name(step) for step in checkpoint_steps(storage)])


def open_checkpoints(given: list[str]) -> list[Place]:
    """The checkpoints that are given. Raises ConfigurationError, naming all folders that are not on this machine."""
    refuse_missing(given)
    places = []
    for each in given:
        parent, name = split_location(each)
        places.append(Place(each, _with_digest_of(parent, storage_for(parent), [name]), name))
    return places


def _with_digest_of(location: str, storage: Storage, names: list[str]) -> Storage:
    """The storage that computes the kind of digest that the first of the checkpoints has whose manifest is readable."""
    for name in names:
        with suppress(CheckpointError, StorageError):
            digests = [stored.digest.partition(":")[0] for stored in read_manifest(storage, name).files.values()]
            return storage_for(location, BY_CHOICE) if BY_CHOICE in digests else storage
    return storage


def refuse_missing(given: list[str]) -> None:
    """Raise ConfigurationError where folders of this machine are not there."""
    missing = list(filter(is_missing, given))
    if missing:
        raise ConfigurationError(f"You chose {each}, but there is no such folder; check its name." for each in missing)


def is_checkpoint(given: str) -> bool:
    """Whether a folder is meant as a checkpoint itself, rather than as one that holds some."""
    name = split_location(given)[1]
    if step_of(name) is not None or is_set_aside(name) or marks_unfinished(name):
        return True
    return MANIFEST in {entry.name for entry in storage_for(given).list("")}


def written_at(storage: Storage, name: str) -> float | None:
    """Return when a checkpoint was written, in seconds since the epoch; None if the storage does not record it."""
    return storage.capabilities.modified(f"{name}/{MANIFEST}")
