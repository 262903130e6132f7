"""The best checkpoint of a run, which another one may have the name of."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

from attrs import frozen

from hexloop.domain.checkpoints.manifest import Lineage
from hexloop.domain.checkpoints.names import step_of
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import set_aside_if_possible
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError, UnreadableCheckpointError
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives
from hexloop.ports.contents import Contents
from hexloop.ports.storage import Storage


@frozen
class BestCheckpoint:
    """Where the best checkpoint of a lineage is, and its weights.

    storages: those that it may be on, the run's own first. held: the steps that the lineage is known to have there,
    where a manifest may be unreadable by now. collectives: the run's processes, which all go by what rank 0 sees.
    """

    storages: Sequence[Storage]
    lineage: Lineage
    held: Collection[int]
    collectives: Collectives | None

    def is_missing(self, state: RunState) -> bool:
        """Whether the state names a best checkpoint that is nowhere."""
        return state.best_checkpoint is not None and self._where(state.best_checkpoint) is None

    def not_there(self, state: RunState) -> str:
        """What to say of one that is missing."""
        places = " or ".join(storage.capabilities.location for storage in self.storages)
        return f"{state.best_checkpoint}, is not in {places} as this run saved it"

    def load(self, state: RunState, contents: Contents[RunState]) -> None:
        """Put its weights in force.

        A damaged one is set aside, where it is the run's own. Where there is none, a warning says with which weights
        the run ends. Raises CheckpointError where it cannot be read at present.
        """
        name = state.best_checkpoint
        is_of_best = name is not None and step_of(name) == state.best_step
        if not is_of_best and state.best_step == state.step:
            return  # the best are in force, and no checkpoint holds them
        problem, storage = None, None if name is None else self._where(name)
        if name is None:
            problem = "it has no checkpoint of a best evaluation"
        elif storage is None:
            problem = f"its best checkpoint, {self.not_there(state)}"
        else:
            problem = run_on_rank0(self.collectives, lambda: self._damage(storage, name))
        if problem is not None or storage is None or name is None:
            warnings.warn(f"The run ends with its last weights: {problem}.", stacklevel=3)
            return
        if not is_of_best:
            warnings.warn(
                f"The run ends with the weights of {name}: there is no checkpoint of step {state.best_step}, "
                "at which the best evaluation was.",
                stacklevel=3,
            )
        contents.restore_weights(
            read_manifest(storage, name).files, lambda path, start=0: storage.read(f"{name}/{path}", start)
        )

    def _where(self, name: str) -> Storage | None:
        """The storage that has it, and not another one by its name."""
        found = run_on_rank0(self.collectives, lambda: which_has(self.storages, name, self.lineage, self.held))
        return None if found is None else self.storages[found]

    def _damage(self, storage: Storage, name: str) -> str | None:
        """What is wrong with it; None where nothing is."""
        try:
            verify(storage, name)
        except UnreadableCheckpointError as error:
            raise UnreadableCheckpointError(
                f"The run was to end with the weights of its best checkpoint. {error} See that it can be read, and go "
                "on from the last checkpoint, or do that with load_best_model_at_end=False."
            ) from error
        except CheckpointError as error:
            told = str(error)
            if isinstance(error, DamagedCheckpointError) and storage is self.storages[0]:
                told = set_aside_if_possible(storage, name, error)
            return f"its best checkpoint is not good: {told.removesuffix('.')}"
        return None


def which_has(storages: Sequence[Storage], name: str, lineage: Lineage, held: Collection[int] = ()) -> int | None:
    """Which of the storages has the checkpoint `name` of a lineage, by its place among them; None where none has.

    held: the steps that the lineage is known to have on the first of them, where its manifest may be unreadable by now.
    """
    for place, storage in enumerate(storages):
        try:
            has = lineage.holds(read_manifest(storage, name))
        except CheckpointError:
            has = place == 0 and step_of(name) in held
        if has:
            return place
    return None
