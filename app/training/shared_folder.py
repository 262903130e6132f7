"""Whether all processes of a run save to one place."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress

from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.ports.storage import Storage

PATIENCE = 5.0
"""Seconds in which what one process has written is seen by another, also where machines share a folder by network."""


def refuse_separate_folders(parts: TrainerParts) -> None:
    """Raise ConfigurationError, on every process, where any does not see what the first one writes.

    A checkpoint is the work of all processes: in folders of their own, as on disks of several machines, none of them
    would be whole. To be called on all processes at once.
    """
    collectives, storage = parts.adapters.collectives, parts.adapters.storage
    if collectives.world_size == 1 or str(parts.args.save_strategy) == "no":
        return
    name = run_on_rank0(collectives, lambda: _written(storage))
    seen = run_on_all_ranks(collectives, lambda: _is_seen(storage, name))
    if collectives.rank == 0:
        with suppress(StorageError):
            storage.remove(name)
    blind = [rank for rank, sees in enumerate(seen) if not sees]
    if blind:
        raise ConfigurationError(
            [
                f"You chose output_dir={parts.args.output_dir!r}, but what rank 0 writes there is not there for "
                f"{_ranks(blind)}: they have a folder of the same name on another disk, and no checkpoint would be "
                "whole; choose a folder that all machines share, the URL of an object store, or save_strategy='no'."
            ]
        )


def _written(storage: Storage) -> str:
    name = f".hexloop-{uuid.uuid4().hex}"
    storage.write(name, [b"can everybody read this?"])
    return name


def _is_seen(storage: Storage, name: str) -> bool:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            b"".join(storage.read(name))
        except StorageError:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        else:
            return True


def _ranks(ranks: list[int]) -> str:
    told = ", ".join(map(str, ranks[:8]))
    return f"rank {told}" if len(ranks) == 1 else f"ranks {told}{' and others' if len(ranks) > 8 else ''}"
