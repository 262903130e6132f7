"""`hexloop checkpoints`: checkpoints given by path or URL."""

from __future__ import annotations

from attrs import frozen

from hexloop.app.assembly.storage import is_missing, joined, split_location, storage_for
from hexloop.app.checkpoint_rows import with_digest_of
from hexloop.domain.checkpoints.manifest import MANIFEST, checkpoint_name, is_set_aside, marks_unfinished, step_of
from hexloop.domain.checkpoints.reading import checkpoint_steps
from hexloop.domain.checkpoints.selection import newest_first, readable_manifests
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.ports.storage import Signatures, Storage


@frozen
class CheckpointLocation:
    """A checkpoint as the user named it (`given`): its storage, and its name in it."""

    given: str
    storage: Storage
    name: str


def open_folder(given: str, signatures: Signatures | None = None) -> Storage:
    """Return the storage of a folder of checkpoints, with a key if one is given.

    Raises ConfigurationError if the folder does not exist on this machine.
    """
    refuse_missing([given])
    storage = storage_for(given, signatures=signatures)
    if signatures is not None:
        return storage
    return with_digest_of(given, storage, [checkpoint_name(step) for step in checkpoint_steps(storage)])


def open_checkpoints(given: list[str], signatures: Signatures | None = None) -> list[CheckpointLocation]:
    """Locate checkpoints, on storages with a key if one is given.

    Raises ConfigurationError with all folders that do not exist on this machine.
    """
    refuse_missing(given)
    locations = []
    for each in given:
        parent, name = split_location(each)
        storage = storage_for(parent, signatures=signatures)
        storage = storage if signatures is not None else with_digest_of(parent, storage, [name])
        locations.append(CheckpointLocation(each, storage, name))
    return locations


def open_one(given: str) -> CheckpointLocation:
    """Locate the checkpoint that is named, or the newest one in a folder of checkpoints.

    Raises ConfigurationError if the folder does not exist on this machine, and CheckpointError if there is no readable
    checkpoint in it.
    """
    refuse_missing([given])
    if is_checkpoint(given):
        return open_checkpoints([given])[0]
    storage = open_folder(given)
    if not checkpoint_steps(storage):
        raise CheckpointError(f"You chose {given}, but it contains no checkpoint; name another folder or a checkpoint.")
    newest = next(newest_first(readable_manifests(storage)), None)
    if newest is None:
        raise CheckpointError(
            f"You chose {given}, but no checkpoint in it can be read; `hexloop checkpoints list {given}` says why."
        )
    return CheckpointLocation(joined(given, newest), storage, newest)


def refuse_missing(given: list[str]) -> None:
    """Raise ConfigurationError for folders of this machine that do not exist."""
    if missing := list(filter(is_missing, given)):
        raise ConfigurationError(f"You chose {each}, but there is no such folder; check its name." for each in missing)


def is_checkpoint(given: str) -> bool:
    """Return whether a folder is meant as a checkpoint, and not as a folder of checkpoints."""
    name = split_location(given)[1]
    if step_of(name) is not None or is_set_aside(name) or marks_unfinished(name):
        return True
    return MANIFEST in {entry.name for entry in storage_for(given).list("")}
