"""The best checkpoint of a run: looking it up, and loading its weights at the end."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

from attrs import frozen

from hexloop.domain.checkpoints.manifest import Lineage
from hexloop.domain.checkpoints.names import step_of
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import quarantine_if_possible
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError, UnreadableCheckpointError
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives
from hexloop.ports.contents import Contents
from hexloop.ports.storage import Storage


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
            problem = run_on_rank0(self.collectives, lambda: self._problem(storage, name))
        if problem is not None or storage is None or name is None:
            warnings.warn(f"The run ends with its last weights: {problem}.", stacklevel=3)
            return
        if not is_of_best:
            warnings.warn(
                f"The run ends with the weights of {name}: the best evaluation was at step {state.best_step}, which "
                "has no checkpoint.",
                stacklevel=3,
            )
        contents.restore_weights(
            read_manifest(storage, name).files, lambda path, start=0: storage.read(f"{name}/{path}", start)
        )

    def _find(self, name: str) -> Storage | None:
        """Return the storage that has the checkpoint `name` of this lineage."""
        found = run_on_rank0(self.collectives, lambda: find_checkpoint(self.storages, name, self.lineage, self.held))
        return None if found is None else self.storages[found]

    def _problem(self, storage: Storage, name: str) -> str | None:
        """Return why the checkpoint cannot be used, or None if it is good."""
        try:
            verify(storage, name)
        except UnreadableCheckpointError as error:
            raise UnreadableCheckpointError(
                f"The weights of the best checkpoint could not be loaded at the end of the run. {error} Make it "
                "readable and resume from the last checkpoint, or resume with load_best_model_at_end=False."
            ) from error
        except CheckpointError as error:
            reason = str(error)
            if isinstance(error, DamagedCheckpointError) and storage is self.storages[0]:
                reason = quarantine_if_possible(storage, name, error)
            return f"its best checkpoint is not good: {reason.removesuffix('.')}"
        return None


def find_checkpoint(storages: Sequence[Storage], name: str, lineage: Lineage, held: Collection[int] = ()) -> int | None:
    """Return the index of the first storage that has the checkpoint `name` of a lineage, or None.

    held: the steps that the lineage is known to have on the first storage, even if a manifest became unreadable.
    """
    for index, storage in enumerate(storages):
        try:
            has = lineage.holds(read_manifest(storage, name))
        except CheckpointError:
            has = index == 0 and step_of(name) in held
        if has:
            return index
    return None
