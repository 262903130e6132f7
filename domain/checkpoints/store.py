"""The checkpoints of a run: saving it, resuming it, and loading its best weights."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from attrs import define, field

from hexloop.domain.checkpoints import commit
from hexloop.domain.checkpoints.manifest import (
    Lineage,
    Manifest,
    Owner,
    checkpoint_name,
    new_session,
    session_after,
    step_of,
)
from hexloop.domain.checkpoints.pace import Pace, Pacer
from hexloop.domain.checkpoints.reading import Checkpoint, checkpoint_steps
from hexloop.domain.checkpoints.restoring import BestCheckpoint, restore
from hexloop.domain.checkpoints.selection import publish_staged, readable_manifests
from hexloop.domain.errors import CheckpointError, StorageError, StorageFullError
from hexloop.domain.events import AnyEvent, CheckpointPublished, Saved, SaveFailed, SaveSkipped, SaveWaits
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.state import RunState
from hexloop.domain.wording import troubleshooting
from hexloop.ports.collectives import Collectives
from hexloop.ports.process import Background, Task
from hexloop.ports.storage import Contents, Storage

MAX_FAILURES = 3
"""How many saves may fail in a row before the run fails."""


@define(eq=False)
class CheckpointStore:
    """Implements `hexloop.domain.run.Checkpoints` on a storage.

    policy: which checkpoints are kept. environment: facts that the exact bits of a result may depend on.
    load_best_at_end: whether the run ends with the weights of its best checkpoint.
    collectives: the processes of the run, which all save together; None if there is one process.
    session: the name of this process's part of the run; names of later sessions sort after it.
    background: writes a snapshot of the run while training continues. None: each save writes the run's state itself,
    and training waits. One save is in flight at most; the next one waits for it or, with `skip_when_busy`, is skipped
    unless it is required or the best so far.
    pauses: seconds between attempts while the storage is full. note: called at each phase of a save.
    exclusive: no other run saves to this storage, so unfinished folders of any run may be removed.
    make_room: frees space that other things than checkpoints take on a full storage, and returns whether it did.
    latest: the newest checkpoint of the lineage of the present state. resumed_from: the one that it was resumed from.
    """

    storage: Storage
    contents: Contents[RunState]
    policy: commit.CheckpointPolicy = field(factory=commit.CheckpointPolicy)
    environment: Mapping[str, str] = field(factory=dict)
    load_best_at_end: bool = False
    collectives: Collectives | None = None
    session: str = field(factory=new_session)
    background: Background | None = None
    skip_when_busy: bool = False
    pauses: tuple[float, ...] = commit.PAUSES
    note: commit.NotePhase = commit.no_notes
    exclusive: bool = False
    make_room: Callable[[], bool] = field(default=lambda: False)
    latest: str | None = field(default=None, init=False)
    resumed_from: Checkpoint | None = field(default=None, init=False)
    _ancestors: Mapping[str, int] = field(factory=dict, init=False)
    _held: set[int] = field(factory=set, init=False)
    _is_clean: bool = field(default=False, init=False)
    _failures: int = field(default=0, init=False)
    _in_flight: tuple[commit.CheckpointSave, Task, RunState] | None = field(default=None, init=False)
    _announced: Task | None = field(default=None, init=False)
    _agreed: Task | None = field(default=None, init=False)
    _background_collectives: Collectives | None = field(default=None, init=False)
    _preparation: Task | None = field(default=None, init=False)
    _abandoned: threading.Event = field(factory=threading.Event, init=False)
    _pacer: Pacer = field(factory=Pacer, init=False)
    _resumed: RunState | None = field(default=None, init=False)
    _source: Storage | None = field(default=None, init=False)

    def resume(self, name: str | None = None, source: Storage | None = None) -> RunState | None:
        """Restore the run from the checkpoint `name`, or from the newest good one, and return its state.

        source: where that checkpoint is, if not on the storage that the run saves to.
        Returns None if no name is given and there is no checkpoint. Raises CheckpointError, listing the good ones, if
        the named one is not good, if no name is given and there are several runs, or if a good one does not fit.
        """
        storage = self.storage if source is None else source
        if storage is self.storage:  # on another storage, a live run may be about to publish it
            run_on_rank0(self.collectives, lambda: self._publish_staged(name))
        restored = restore(storage, name, self.contents, self.collectives, self.environment)
        if restored is None:
            return None
        checkpoint, state = restored
        self.resumed_from = checkpoint
        lineage = Lineage.after(checkpoint.manifest, self.session)
        self._ancestors = lineage.ancestors
        latest, held = run_on_rank0(self.collectives, lambda: self._known_of(lineage))
        self.session = session_after(self.session, max(latest, checkpoint.manifest.session))
        self._held = set(held)
        self._source = source
        if source is None:
            self.latest, self._resumed = checkpoint.name, state
        best = self._best_of(state)
        if self.load_best_at_end and best.is_missing(state):
            warnings.warn(
                f"The best checkpoint of the run, {best.describe_missing(state)}. Unless it is restored there or a "
                "better evaluation follows, the run will end with its last weights.",
                stacklevel=3,
            )
        return state

    def prepare(self) -> None:
        """Allocate the memory for snapshots in the background. At normal priority, as the first save waits for it."""
        if self.background is not None and self._preparation is None:
            allocate = self.contents.prepare()
            self._preparation = self.background.submit(allocate, "hexloop makes room for snapshots", low_priority=False)

    @property
    def writing(self) -> bool:
        """Whether this process has a save in flight that makes progress: one that waits for space does not count.

        Read once per exchange between ranks; the answer of the previous exchange is known by then.
        """
        self._agreed, self._announced = self._announced, None if self._in_flight is None else self._in_flight[1]
        return self._is_busy()

    @property
    def has_news(self) -> bool:
        """Whether the save in flight is done or waits for space. With several processes, False: the ranks must agree.

        Read at every boundary, first after the step that follows the snapshot. Writing starts then.
        """
        if self._in_flight is None:
            return False
        save, task, _ = self._in_flight
        save.committer.pace.start()
        if self._world_size > 1:
            return False
        return task.done or save.retry.full is not None

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Save a checkpoint of `state`, unless this lineage already has one of this step.

        An error of the storage is reported as an event, and the run continues. The third failure in a row raises
        StorageError, and so does a storage that stays full.
        """
        required_or_best = required or state.best_step == state.step
        if self.skip_when_busy and not required_or_best and run_on_rank0(self.collectives, self._is_busy):
            yield SaveSkipped(state.step, checkpoint_name(state.step))
            return
        yield from self._finish_save()
        try:
            save = self._start_save(state)
        except StorageError as error:
            yield from self._report_failure(state.step, error)
            return
        if save is None:
            self.latest = checkpoint_name(state.step)
            yield CheckpointPublished(state.step, self.latest)
            return
        self.note("began", checkpoint=save.name)
        if self.background is None:
            yield from self._complete(save, save.run, state, [Saved(state.step, save.name)])
        else:
            if required:  # a caller or the end of the run waits for it
                save.committer.pace.hurry()
            yield from self._write_in_background(self.background, save, state)

    def collect(self) -> Iterator[AnyEvent]:
        """Yield the outcome of the save in flight, if it is known. Waits if the storage is full. Raises as `save` does.

        Several processes call this when they have agreed that all of them have written the save.
        """
        agreed = self._world_size > 1 and self._in_flight is not None and self._in_flight[1] is self._agreed
        if self.has_news or agreed:
            yield from self._finish_save()

    def load_best(self, state: RunState) -> None:
        """Load the weights of the best checkpoint, if the run is to end with them; see `BestCheckpoint.load`.

        It is looked up on the run's own storage and on the one that the run was resumed from. A checkpoint of the same
        name that belongs to another run or lineage is not used.
        """
        if self.load_best_at_end:
            self._best_of(state).load(state, self.contents)

    def finish(self) -> Iterator[AnyEvent]:
        """Wait for the save in flight. If a resumed run never saved, finish the clean-up of its last session."""
        yield from self._finish_save()
        if self._resumed is not None:
            self._clean_up(self._resumed)

    def close(self) -> Sequence[AnyEvent]:
        """Wait for the save in flight and return its events. If the wait is interrupted, the save is undone."""
        events: list[AnyEvent] = []
        try:
            if self._preparation is not None:
                self._preparation.wait()
            events.extend(self._finish_save())
        except StorageError as error:
            warnings.warn(str(error), stacklevel=2)
        except (KeyboardInterrupt, SystemExit):
            self._abandoned.set()
            raise
        return events

    @property
    def _world_size(self) -> int:
        return 1 if self.collectives is None else self.collectives.world_size

    def _is_busy(self) -> bool:
        return self._in_flight is not None and not self._in_flight[1].done and self._in_flight[0].retry.full is None

    def _collectives_for_writing(self) -> Collectives | None:
        """Return the collectives for the thread that writes: separate ones if it writes in the background."""
        if self.background is None:
            return self.collectives
        if self._background_collectives is None and self.collectives is not None:
            self._background_collectives = self.collectives.apart()
        return self._background_collectives

    def _publish_staged(self, name: str | None) -> None:
        with suppress(StorageError):
            publish_staged(self.storage, name)

    def _known_of(self, lineage: Lineage) -> tuple[str, list[int]]:
        """Return the last session of the run that has a checkpoint, and the steps of the lineage's checkpoints."""
        manifests = readable_manifests(self.storage).values()
        latest = max((each.session for each in manifests if each.run == lineage.run), default="")
        return latest, [each.step for each in manifests if lineage.holds(each)]

    def _best_of(self, state: RunState) -> BestCheckpoint:
        storages = [self.storage] if self._source is None else [self.storage, self._source]
        lineage = Lineage(state.run, self.session, self._ancestors)
        return BestCheckpoint(storages, lineage, self._held, self.collectives)

    def _start_save(self, state: RunState) -> commit.CheckpointSave | None:
        """Update `state` for a save and return the save, or None if the lineage has a checkpoint of this step."""
        if self.collectives is not None:
            self.session = str(self.collectives.broadcast(self.session))
        previous = state.parent_checkpoint, state.best_checkpoint
        if state.best_step in self._held | {state.step}:
            state.best_checkpoint = checkpoint_name(state.best_step)
        if state.step in self._held and run_on_rank0(
            self.collectives, lambda: state.step in checkpoint_steps(self.storage)
        ):
            return None
        state.parent_checkpoint = self.latest
        save = self._make_save(state, state.step, previous)
        self._is_clean, self._resumed = True, None
        return save

    def _clean_up(self, state: RunState) -> None:
        """Remove what a process that died in its last save left behind, because no save of this session did so."""
        self._resumed = None
        save = self._make_save(state, step_of(self.latest or "") or 0, (None, None))
        try:
            save.clean_up()
        except (StorageError, CheckpointError) as error:
            save.problem = f"The unfinished files of a save that was cut short could not be removed: {error}"
        if save.problem is not None:
            warnings.warn(save.problem, stacklevel=2)

    def _make_save(self, state: RunState, step: int, previous: tuple[str | None, str | None]) -> commit.CheckpointSave:
        publisher = commit.publisher_for(self.storage, Owner(state.run, self.session, self.exclusive))
        session, ancestors, environment = self.session, self._ancestors, dict(self.environment)
        make_manifest = partial(
            Manifest, state.run, session, ancestors, state.parent_checkpoint, step, self._world_size, environment
        )
        return commit.CheckpointSave(
            step=step,
            files=lambda: self.contents.files(state),
            committer=commit.Committer(
                self.storage,
                publisher,
                self._collectives_for_writing(),
                self.note,
                self._abandoned,
                Pace() if self.background is None else self._pacer.next(),
            ),
            lineage=Lineage(state.run, session, ancestors),
            policy=self.policy,
            held=self._held,
            best=state.best_checkpoint,
            make_manifest=make_manifest,
            previous=previous,
            is_clean=self._is_clean,
            retry=commit.FullStorageRetry(self._abandoned.wait, self.pauses),
            make_room=self.make_room,
        )

    def _write_in_background(
        self, background: Background, save: commit.CheckpointSave, state: RunState
    ) -> Iterator[AnyEvent]:
        """Take a snapshot and start to write it."""
        if self._preparation is not None:
            self._preparation.wait()
        save.files = self.contents.snapshot(state)
        self.note("taken", checkpoint=save.name)
        self._in_flight = save, background.submit(save.run, f"hexloop writes {save.name}"), state
        yield Saved(state.step, save.name)

    def _finish_save(self) -> Iterator[AnyEvent]:
        """Wait for the save in flight and yield its outcome."""
        if self._in_flight is None:
            return
        save, task, state = self._in_flight
        if save.retry.full is not None and not task.done:
            warnings.warn(f"Training waits until {save.name} can be written: {save.retry.full}", stacklevel=2)
            yield SaveWaits(save.step, save.retry.full)
        save.committer.pace.hurry()
        yield from self._complete(save, task.wait, state, [])

    def _complete(
        self, save: commit.CheckpointSave, wait: Callable[[], None], state: RunState, events: list[AnyEvent]
    ) -> Iterator[AnyEvent]:
        """Call `wait`, which returns or raises when the save is over, and yield `events` and the outcome."""
        try:
            wait()
        except StorageError as error:
            self._in_flight = None
            state.parent_checkpoint, best = save.previous
            if state.best_checkpoint == save.name:
                state.best_checkpoint = best
            yield from self._report_failure(save.step, error)
            return
        except BaseException:
            if self._in_flight is not None and self._in_flight[1].done:
                self._in_flight = None
            raise
        self._in_flight = None
        self._failures = 0
        self.latest = save.name
        if save.problem is not None:
            self._is_clean = False
            warnings.warn(save.problem, stacklevel=2)
        yield from events
        yield CheckpointPublished(save.step, save.name)

    def _report_failure(self, step: int, error: StorageError) -> Iterator[AnyEvent]:
        """Warn of a failed save and yield its event. Raises StorageError if the run cannot continue."""
        self._is_clean = False
        self._failures += 1
        warnings.warn(f"{checkpoint_name(step)} was not saved: {error}", stacklevel=2)
        yield SaveFailed(step, error)
        saved = f"Everything up to {self.latest or 'the start'} is saved. Free space or fix the storage, then resume."
        if isinstance(error, StorageFullError):
            raise StorageFullError(
                f"The storage stayed full: {error} {saved} For help, {troubleshooting('disk full')}."
            ) from error
        if self._failures >= MAX_FAILURES:
            raise StorageError(f"{MAX_FAILURES} saves in a row failed, the last with: {error} {saved}") from error
