"""Removing checkpoints of a run that nobody is training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hexloop.domain.checkpoints.commit import CheckpointPolicy, publisher_for
from hexloop.domain.checkpoints.in_place import InPlacePublisher
from hexloop.domain.checkpoints.manifest import Lineage
from hexloop.domain.checkpoints.names import MANIFEST, Owner, checkpoint_name, may_be_unfinished, new_session
from hexloop.domain.checkpoints.reading import (
    Checkpoint,
    belongs,
    checkpoint_steps,
    is_protected,
    is_published,
    read_manifest,
    verify,
)
from hexloop.domain.checkpoints.selection import from_newest
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError
from hexloop.ports.storage import Publication, Storage


def newest_to_keep(storage: Storage, run: str) -> Checkpoint:
    """The checkpoint at which `run` was left last, verified.

    Raises CheckpointError where it is not good, or where one at a later step cannot be read, so that nobody knows
    whether it is the newest: what would be removed may be needed then. StorageError where the storage fails.
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
    order = list(from_newest(manifests))
    if not order:
        raise CheckpointError(
            f"You chose the run {run}, but no checkpoint of it is in {storage.capabilities.location}."
        )
    steps = {checkpoint_name(step): step for step in checkpoint_steps(storage)}
    for name, problem in unread:
        if steps[name] > manifests[order[0]].step:
            raise CheckpointError(f"Nothing is removed, as nobody knows whether {name} is the newest: {problem}")
    try:
        return verify(storage, order[0])
    except CheckpointError as error:
        raise type(error)(f"Nothing is removed, as the newest checkpoint is not good: {error}") from error


def surplus(storage: Storage, newest: Checkpoint, policy: CheckpointPolicy, best: str | None) -> list[str]:
    """The checkpoints that led to the newest, oldest first, that neither the policy keeps nor somebody protects.

    best: the name of the best.
    """
    lineage = _lineage_to(newest)
    steps = [step for step in checkpoint_steps(storage) if belongs(storage, step, lineage)]
    return [checkpoint_name(step) for step in policy.surplus(steps, best, partial(is_protected, storage))]


def remove(storage: Storage, newest: Checkpoint, names: list[str]) -> Iterator[str]:
    """Remove checkpoints that led to the newest one; gives each name once it is gone. Raises StorageError."""
    publisher, lineage = publisher_for(storage, Owner(newest.manifest.run, new_session())), _lineage_to(newest)
    for name in names:
        if name != newest.name and lineage.holds(read_manifest(storage, name)):
            publisher.delete(name)
            yield name


def leftovers(storage: Storage, run: str) -> list[str]:
    """The folders that `run` left unfinished, but for those that are whole, which a resume takes up."""
    owner = Owner(run, new_session())
    folders = [entry.name for entry in storage.list("") if entry.is_folder]
    if storage.capabilities.publication is Publication.RENAME:
        return [name for name in folders if owner.left_behind(name) and not _may_be_whole(storage, name)]
    return [name for name in folders if _is_left_in_place(storage, owner, name)]


def remove_leftover(storage: Storage, run: str, name: str) -> None:
    """Remove a folder that `run` left unfinished; cut short anywhere, what remains is still known to be unfinished."""
    if storage.capabilities.publication is Publication.RENAME:
        storage.remove(name)
    else:
        InPlacePublisher(storage, Owner(run, new_session())).abandon(name)


def _is_left_in_place(storage: Storage, owner: Owner, name: str) -> bool:
    marked = may_be_unfinished(name) and any(owner.left_behind(entry.name) for entry in storage.list(name))
    return marked and not is_published(storage, name)


def _may_be_whole(storage: Storage, name: str) -> bool:
    """Whether a staged checkpoint is whole, or is one that this hexloop cannot judge."""
    try:
        verify(storage, name)
    except DamagedCheckpointError:
        return False
    except CheckpointError:
        return MANIFEST in {entry.name for entry in storage.list(name)}
    return True


def _lineage_to(newest: Checkpoint) -> Lineage:
    return Lineage.after(newest.manifest, newest.manifest.session)
