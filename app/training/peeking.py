"""What the checkpoint that a run goes on from says, before the run is made."""

from __future__ import annotations

from contextlib import suppress

from hexloop.app.storages import as_location, split_location, storage_for
from hexloop.app.training.checkpoints import AUTO
from hexloop.domain.checkpoints.selection import from_newest, publish_staged, readable_manifests
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Storage


def likely_checkpoint(own: Storage, resume_from: str | bool) -> tuple[Storage, str | None]:
    """Return the storage and the name of the checkpoint that `resume_from` most likely means; None if there is none.

    own: the run's storage. Nothing is verified: if the newest turns out to be damaged, the run resumes from another.
    """
    if resume_from in (True, AUTO):
        with suppress(StorageError):
            publish_staged(own)
        return own, next(from_newest(readable_manifests(own)), None)
    parent, name = split_location(str(resume_from))
    here = parent == as_location(own.capabilities.local_folder or own.capabilities.location)
    return (own if here or own.capabilities.local_folder is None else storage_for(parent)), name
