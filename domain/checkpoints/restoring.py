"""Loading checkpoints: the one that a run resumes from, and the best one at the end of a run.

Rank 0 verifies a checkpoint, and every rank loads what was verified; see `hexloop.domain.checkpoints.blocks`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from attrs import frozen

from hexloop.domain.checkpoints.manifest import Lineage, step_of
from hexloop.domain.checkpoints.reading import Checkpoint, verify, warn_of_differences
from hexloop.domain.checkpoints.selection import find_checkpoint, newest, open_checkpoint, quarantine_if_possible
from hexloop.domain.errors import (
    ChangedCheckpointError,
    CheckpointError,
    DamagedCheckpointError,
    UnreadableCheckpointError,
)
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives, Json
from hexloop.ports.storage import Contents, Storage

Loaded = TypeVar("Loaded")

MOST_CHANGES = 5
"""Attempts to load a checkpoint that changes while it is loaded."""


def restore(
    storage: Storage,
    name: str | None,
    contents: Contents[RunState],
    collectives: Collectives | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Checkpoint, RunState] | None:
    """Restore a run from the checkpoint `name`, or from the newest good one, and return both; None if there is none.

    Without a name, a checkpoint that changed while it was loaded is chosen again only if it is good then.
    Raises CheckpointError if the named one is not good, or a good one does not fit the run.
    """
    world_size = 1 if collectives is None else collectives.world_size

    def choose() -> Checkpoint | None:
        return newest(storage, quarantine=True) if name is None else open_checkpoint(storage, name)

    for _ in range(MOST_CHANGES):
        checkpoint = verified_on_all_ranks(storage, collectives, choose)
        if checkpoint is None:
            return None
        warn_of_differences(checkpoint, environment or {}, world_size)
        load = partial(contents.restore, checkpoint.manifest.files, checkpoint.files)
        try:
            return checkpoint, load_on_all_ranks(load, contents.loads_together, collectives)
        except ChangedCheckpointError as error:
            if name is not None:
                raise
            warnings.warn(f"A checkpoint is not used: {error}", stacklevel=4)
    raise UnreadableCheckpointError(
        f"The checkpoints in {storage.capabilities.location} changed {MOST_CHANGES} times while they were loaded. Stop "
        "what writes to them."
    )


def verified_on_all_ranks(
    storage: Storage, collectives: Collectives | None, choose: Callable[[], Checkpoint | None]
) -> Checkpoint | None:
    """Return on every rank the checkpoint that `choose` returns on rank 0, with the digests of what was verified."""
    if collectives is None or collectives.world_size == 1:
        return choose()

    def chosen() -> Json:
        found = choose()
        return None if found is None else found.to_json()

    received = run_on_rank0(collectives, chosen)
    return None if received is None else Checkpoint.from_json(storage, received)


def load_on_all_ranks(load: Callable[[], Loaded], together: bool, collectives: Collectives | None) -> Loaded:
    """Load on every rank. If the checkpoint changed for one of them, all raise ChangedCheckpointError.

    together: loading is collective: the other ranks wait within it for one that fails, so that is not agreed on.
    """
    if together or collectives is None or collectives.world_size == 1:
        return load()
    loaded: list[Loaded] = []
    changed: ChangedCheckpointError | None = None
    try:
        loaded.append(load())
    except ChangedCheckpointError as error:
        changed = error
    reasons = run_on_all_ranks(collectives, lambda: None if changed is None else str(changed))
    failed = next(((rank, reason) for rank, reason in enumerate(reasons) if reason is not None), None)
    if failed is not None:
        raise changed or ChangedCheckpointError(f"On rank {failed[0]}: {failed[1]}")
    return loaded[0]


@frozen
class BestCheckpoint:
    """The best checkpoint of a lineage.

    storages: where it may be, the run's own storage first. held: the steps that the lineage is known to have there,
    even if a manifest became unreadable. collectives: the processes of the run, which all follow rank 0.
    """

    storages: Sequence[Storage]
    lineage: Lineage
    held: Collection[int]
    collectives: Collectives | None

    def is_missing(self, state: RunState) -> bool:
        """Return whether `state` names a best checkpoint that is on no storage."""
        return state.best_checkpoint is not None and self._find(state.best_checkpoint) is None

    def describe_missing(self, state: RunState) -> str:
        """Return the part of a message that says which checkpoint is missing, and where."""
        locations = " or ".join(storage.capabilities.location for storage in self.storages)
        return f"{state.best_checkpoint}, was not found in {locations} as this run saved it"

    def load(self, state: RunState, contents: Contents[RunState]) -> None:
        """Load the weights of the best checkpoint.

        If there is none, warn that the run ends with its last weights. A damaged one on the run's own storage is
        quarantined. Raises CheckpointError if it cannot be read at present.
        """
        name = state.best_checkpoint
        is_of_best = name is not None and step_of(name) == state.best_step
        if not is_of_best and state.best_step == state.step:
            return  # the present weights are the best, and no checkpoint holds them
        problem, storage = None, None if name is None else self._find(name)
        if name is None:
            problem = "it has no checkpoint of a best evaluation"
        elif storage is None:
            problem = f"its best checkpoint, {self.describe_missing(state)}"
        else:
            problem = self._load(storage, name, contents)
        if problem is not None or name is None:
            warnings.warn(f"The run ends with its last weights: {problem}.", stacklevel=3)
            return
        if not is_of_best:
            warnings.warn(
                f"The run ends with the weights of {name}: the best evaluation was at step {state.best_step}, which "
                "has no checkpoint.",
                stacklevel=3,
            )

    def _find(self, name: str) -> Storage | None:
        """Return the storage that has the checkpoint `name` of this lineage."""
        found = run_on_rank0(self.collectives, lambda: find_checkpoint(self.storages, name, self.lineage, self.held))
        return None if found is None else self.storages[found]

    def _load(self, storage: Storage, name: str, contents: Contents[RunState]) -> str | None:
        """Load the weights of a checkpoint. Returns why it cannot be used, or None."""
        try:
            checkpoint = verified_on_all_ranks(storage, self.collectives, lambda: verify(storage, name))
            assert checkpoint is not None
            load = partial(contents.restore_weights, checkpoint.manifest.files, checkpoint.files)
            load_on_all_ranks(load, contents.loads_together, self.collectives)
        except UnreadableCheckpointError as error:
            raise UnreadableCheckpointError(
                f"The weights of the best checkpoint could not be loaded at the end of the run. {error} Make it "
                "readable and resume from the last checkpoint, or resume with load_best_model_at_end=False."
            ) from error
        except CheckpointError as error:
            reason = str(error)
            if isinstance(error, DamagedCheckpointError) and storage is self.storages[0] and self._is_rank0:
                reason = quarantine_if_possible(storage, name, error)
            return f"its best checkpoint is not good: {reason.removesuffix('.')}"
        return None

    @property
    def _is_rank0(self) -> bool:
        return self.collectives is None or self.collectives.rank == 0
