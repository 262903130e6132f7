"""Saves a run, and takes it up again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import partial

from attrs import define, field

from hexloop.domain.checkpoints.commit import commit
from hexloop.domain.checkpoints.lineage import Lineage
from hexloop.domain.checkpoints.manifest import Manifest
from hexloop.domain.checkpoints.names import Owner, checkpoint_name, new_session, step_of
from hexloop.domain.checkpoints.policy import CheckpointPolicy
from hexloop.domain.checkpoints.publication import Publisher, publisher_for
from hexloop.domain.checkpoints.reading import Checkpoint, checkpoint_steps, newest, open_checkpoint, read_manifest
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.events import AnyEvent, CheckpointPublished, Saved, SaveFailed
from hexloop.domain.state import RunState
from hexloop.ports.contents import Contents, OpenFile
from hexloop.ports.storage import Storage, Stored

FAILURES = 3
"""How many saves may fail, one after the other, before the run does."""


@define(eq=False)
class CheckpointStore:
    """Answers `hexloop.domain.run.Checkpoints` on a storage.

    policy: which checkpoints are kept. environment: facts on which the last bits of a result may depend.
    load_best_at_end: whether the run ends with the weights of its best checkpoint. world_size: the run's processes.
    session: the name of this process's part of the run; those of later processes sort after it.
    latest: the newest checkpoint that led to where the run stands.
    """

    storage: Storage
    contents: Contents[RunState]
    policy: CheckpointPolicy = field(factory=CheckpointPolicy)
    environment: Mapping[str, str] = field(factory=dict)
    load_best_at_end: bool = False
    world_size: int = 1
    session: str = field(factory=new_session)
    latest: str | None = field(default=None, init=False)
    _ancestors: Mapping[str, int] = field(factory=dict, init=False)
    _held: set[int] = field(factory=set, init=False)
    _clean: bool = field(default=False, init=False)
    _failures: int = field(default=0, init=False)

    def resume(self, name: str | None = None) -> RunState | None:
        """Put the run where a checkpoint says it stood: the one named, else the newest good one.

        None where no name is given and there is none. Raises CheckpointError, naming those that are good, where the
        one named is not, and where a good one does not fit this run.
        """
        checkpoint = newest(self.storage) if name is None else open_checkpoint(self.storage, name)
        if checkpoint is None:
            return None
        self._warn_of_differences(checkpoint)
        state = self.contents.restore(checkpoint.manifest.files, self._open(checkpoint))
        lineage = Lineage.after(checkpoint.manifest, self.session)
        self._ancestors = lineage.ancestors
        self._held = {step for step in checkpoint_steps(self.storage) if self._is_ours(step, lineage)}
        self.latest = checkpoint.name
        return state

    def save(self, state: RunState) -> Iterator[AnyEvent]:
        """Take a checkpoint of the run as it stands, unless its lineage has one of this step already.

        A failure of the storage is reported, and the run goes on; the third in a row raises StorageError.
        """
        name = checkpoint_name(state.step)
        before = state.parent_checkpoint, state.best_checkpoint
        try:
            saved = self._save(state, name)
        except StorageError as error:
            state.parent_checkpoint, state.best_checkpoint = before
            yield from self._fail(state.step, error)
            return
        self._failures = 0
        if saved:
            yield Saved(state.step, name)
        yield CheckpointPublished(state.step, name)

    def load_best(self, state: RunState) -> None:
        """Put the weights of the best checkpoint in force, where the run is to end with them.

        Raises CheckpointError where that checkpoint is no longer good.
        """
        if not self.load_best_at_end:
            return
        name = state.best_checkpoint
        if name is None:
            warnings.warn(
                "The run ends with its last weights: it has no checkpoint of a best evaluation.", stacklevel=2
            )
            return
        if step_of(name) != state.best_step:
            warnings.warn(
                f"The run ends with the weights of {name}: there is no checkpoint of step {state.best_step}, "
                "at which the best evaluation was.",
                stacklevel=2,
            )
        checkpoint = open_checkpoint(self.storage, name)
        self.contents.restore_weights(checkpoint.manifest.files, self._open(checkpoint))

    def finish(self) -> Iterator[AnyEvent]:
        """Nothing is in flight between two events: a save is durable, or undone, when `save` yields."""
        return iter(())

    def close(self) -> None:
        """See `finish`."""

    def _save(self, state: RunState, name: str) -> bool:
        """Commit a checkpoint and rotate; False where there was nothing to do."""
        lineage = Lineage(state.run, self.session, self._ancestors)
        publisher = publisher_for(self.storage, Owner(state.run, self.session))
        if not self._clean:
            publisher.clean_up()
            self._clean = True
        present = set(checkpoint_steps(self.storage))
        self._held &= present
        if state.best_step in self._held | {state.step}:
            state.best_checkpoint = checkpoint_name(state.best_step)
        if state.step in present and self._is_ours(state.step, lineage):
            return False
        state.parent_checkpoint = self.latest
        commit(self.storage, publisher, name, self.contents.files(state), partial(self._manifest, state, lineage))
        self.latest = name
        self._held.add(state.step)
        self._rotate(state, lineage, publisher)
        return True

    def _rotate(self, state: RunState, lineage: Lineage, publisher: Publisher) -> None:
        """Remove what the policy no longer keeps, once the newest is seen to be there; a failure puts it off."""
        try:
            surplus = self.policy.surplus(self._held, state.best_checkpoint)
            if surplus:
                read_manifest(self.storage, checkpoint_name(state.step))
            for step in surplus:
                if self._is_ours(step, lineage):
                    publisher.delete(checkpoint_name(step))
                self._held.discard(step)
        except (StorageError, CheckpointError) as error:
            self._clean = False
            warnings.warn(f"Older checkpoints than save_total_limit allows are still there: {error}", stacklevel=2)

    def _fail(self, step: int, error: StorageError) -> Iterator[AnyEvent]:
        self._clean = False
        self._failures += 1
        warnings.warn(f"{checkpoint_name(step)} was not saved: {error}", stacklevel=2)
        yield SaveFailed(step, error)
        if self._failures >= FAILURES:
            raise StorageError(
                f"{FAILURES} saves in a row failed, the last with: {error} "
                f"Everything up to {self.latest or 'the start'} is saved; make room or mend the storage, and resume."
            ) from error

    def _manifest(self, state: RunState, lineage: Lineage, files: Mapping[str, Stored]) -> Manifest:
        return Manifest(
            run=state.run,
            session=self.session,
            ancestors=lineage.ancestors,
            parent=state.parent_checkpoint,
            step=state.step,
            world_size=self.world_size,
            environment=dict(self.environment),
            files=files,
        )

    def _is_ours(self, step: int, lineage: Lineage) -> bool:
        """Whether the checkpoint at `step` is of this lineage; one that cannot be read is not known to be."""
        try:
            return lineage.holds(read_manifest(self.storage, checkpoint_name(step)))
        except CheckpointError:
            return False

    def _open(self, checkpoint: Checkpoint) -> OpenFile:
        return lambda path: self.storage.read(f"{checkpoint.name}/{path}")

    def _warn_of_differences(self, checkpoint: Checkpoint) -> None:
        """Say where what the checkpoint was written with and what there is now may give other last bits."""
        manifest = checkpoint.manifest
        then = {**manifest.environment, "processes": str(manifest.world_size)}
        now = {**self.environment, "processes": str(self.world_size)}
        differences = [
            f"{fact} was {then.get(fact, 'not known')} and is {now.get(fact, 'not known')}"
            for fact in sorted(then.keys() | now.keys())
            if then.get(fact) != now.get(fact)
        ]
        if differences:
            warnings.warn(
                f"The run that goes on from {checkpoint.name} may differ in its last bits from one that was never "
                f"interrupted: {'; '.join(differences)}.",
                stacklevel=3,
            )
