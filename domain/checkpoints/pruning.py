"""Removing checkpoints of a run that is not being trained, for the command line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hexloop.domain.checkpoints.commit import CheckpointPolicy, publisher_for
from hexloop.domain.checkpoints.in_place import InPlacePublisher
from hexloop.domain.checkpoints.manifest import Lineage
from hexloop.domain.checkpoints.names import MANIFEST, Owner, checkpoint_name, may_be_unfinished, new_session
from hexloop.domain.checkpoints.reading import (
    Checkpoint,
    checkpoint_steps,
    is_in_lineage,
    is_protected,
    is_published,
    read_manifest,
    verify,
)
from hexloop.domain.checkpoints.selection import newest_first
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError
from hexloop.ports.storage import Publication, Storage


def newest_to_keep(storage: Storage, run: str) -> Checkpoint:
    """Return the newest checkpoint of `run`, verified.

    Raises CheckpointError if it is not good, or if one at a later step cannot be read and might be the newest: the
    checkpoints to remove may then be needed. Raises StorageError if the storage fails.
    """
    manifests, unread = {}, []
    for name in map(checkpoint_name, checkpoint_steps(storage)):
        try:
            manifest = read_manifest(storage, name)
        except CheckpointError as error:
            if MANIFEST in {entry.name for entry in storage.list(name)}:
                unread.append((name, error))
        else:
            if manifest.run == run:
                manifests[name] = manifest
    order = list(newest_first(manifests))
    if not order:
        raise CheckpointError(f"The run {run} has no checkpoint in {storage.capabilities.location}.")
    steps = {checkpoint_name(step): step for step in checkpoint_steps(storage)}
    for name, problem in unread:
        if steps[name] > manifests[order[0]].step:
            raise CheckpointError(f"Nothing is removed, because {name} may be the newest: {problem}")
    try:
        return verify(storage, order[0])
    except CheckpointError as error:
        raise type(error)(f"Nothing is removed, because the newest checkpoint is not good: {error}") from error


def surplus(storage: Storage, newest: Checkpoint, policy: CheckpointPolicy, best: str | None) -> list[str]:
    """Return the checkpoints in the lineage of the newest one that are neither kept by the policy nor protected.

    Oldest first. best: the name of the best checkpoint.
    """
    lineage = _lineage_to(newest)
    steps = [step for step in checkpoint_steps(storage) if is_in_lineage(storage, step, lineage)]
    return [checkpoint_name(step) for step in policy.surplus(steps, best, partial(is_protected, storage))]


def remove(storage: Storage, newest: Checkpoint, names: list[str]) -> Iterator[str]:
    """Remove checkpoints in the lineage of the newest one, and yield each name once it is removed.

    Raises StorageError.
    """
    publisher, lineage = publisher_for(storage, Owner(newest.manifest.run, new_session())), _lineage_to(newest)
    for name in names:
        if name != newest.name and lineage.holds(read_manifest(storage, name)):
            publisher.delete(name)
            yield name


def leftovers(storage: Storage, run: str) -> list[str]:
    """Return the folders that `run` left unfinished, except complete ones, which a resume publishes."""
    owner = Owner(run, new_session())
    folders = [entry.name for entry in storage.list("") if entry.is_folder]
    if storage.capabilities.publication is Publication.RENAME:
        return [name for name in folders if owner.left_behind(name) and not _may_be_complete(storage, name)]
    return [name for name in folders if _is_left_in_place(storage, owner, name)]


def remove_leftover(storage: Storage, run: str, name: str) -> None:
    """Remove a folder that `run` left unfinished. Whenever this is cut short, what remains is marked as unfinished."""
    if storage.capabilities.publication is Publication.RENAME:
        storage.remove(name)
    else:
        InPlacePublisher(storage, Owner(run, new_session())).abandon(name)


def _is_left_in_place(storage: Storage, owner: Owner, name: str) -> bool:
    marked = may_be_unfinished(name) and any(owner.left_behind(entry.name) for entry in storage.list(name))
    return marked and not is_published(storage, name)


def _may_be_complete(storage: Storage, name: str) -> bool:
    """Return whether a staged checkpoint is complete, or may be but cannot be read by this hexloop."""
    try:
        verify(storage, name)
    except DamagedCheckpointError:
        return False
    except CheckpointError:
        return MANIFEST in {entry.name for entry in storage.list(name)}
    return True


def _lineage_to(newest: Checkpoint) -> Lineage:
    return Lineage.after(newest.manifest, newest.manifest.session)
