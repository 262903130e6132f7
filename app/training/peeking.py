"""What the checkpoint that a run goes on from says, before the run is made."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hexloop.app.storages import as_location, split_location, storage_for
from hexloop.app.training.checkpoints import AUTO
from hexloop.domain.checkpoints.selection import from_newest, publish_staged, readable_manifests
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Storage

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def likely_checkpoint(trainer: Trainer, resume_from: str | bool) -> tuple[Storage, str | None]:
    """Where the checkpoint lies that `resume_from` most likely means, and its name; None where there is none.

    Nothing is verified, so that the newest may turn out to be damaged, and the run go on from another.
    """
    own = trainer.adapters.storage
    if resume_from in (True, AUTO):
        with suppress(StorageError):
            publish_staged(own)
        return own, next(from_newest(readable_manifests(own)), None)
    parent, name = split_location(str(resume_from))
    here = parent == as_location(own.capabilities.local_folder or own.capabilities.location)
    return (own if here or own.capabilities.local_folder is None else storage_for(parent)), name
