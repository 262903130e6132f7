"""Saves a run, and takes it up again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from attrs import define, field

from hexloop.domain.checkpoints.background import Task
from hexloop.domain.checkpoints.best import BestCheckpoint
from hexloop.domain.checkpoints.commit import (
    PAUSES,
    CheckpointPolicy,
    Committer,
    Note,
    Saving,
    note_nothing,
    publisher_for,
)
from hexloop.domain.checkpoints.manifest import Lineage
from hexloop.domain.checkpoints.names import Owner, checkpoint_name, new_session, session_after, step_of
from hexloop.domain.checkpoints.pace import Pace, Pacer
from hexloop.domain.checkpoints.reading import Checkpoint, checkpoint_steps, read_manifest, warn_of_differences
from hexloop.domain.checkpoints.selection import newest, open_checkpoint, publish_staged, readable_manifests
from hexloop.domain.errors import CheckpointError, StorageError, StorageFullError
from hexloop.domain.events import AnyEvent, CheckpointPublished, Saved, SaveFailed, SaveSkipped, SaveWaits
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives
from hexloop.ports.contents import Contents, OpenFile
from hexloop.ports.storage import Storage

FAILURES = 3
"""How many saves may fail, one after the other, before the run does."""


@define(eq=False)
class CheckpointStore:
    """Answers `hexloop.domain.run.Checkpoints` on a storage.

    policy: which checkpoints are kept. environment: facts on which the last bits of a result may depend.
    load_best_at_end: whether the run ends with the weights of its best checkpoint.
    collectives: the run's processes, which all save together; None where there is only this one.
    session: the name of this process's part of the run; those of later processes sort after it.
    behind: write a snapshot behind the loop, rather than the run itself while it stands still. One save is in flight at
    most; what comes due meanwhile waits or, with `skip_when_busy`, is left out unless it is required, or the best.
    pauses: the seconds between attempts while the storage is full. note: told of each phase of a save.
    alone: whether no other run saves there. One that died before its first checkpoint left a name that nobody knows.
    latest: the newest checkpoint that led to where the run stands.
    """

    storage: Storage
    contents: Contents[RunState]
    policy: CheckpointPolicy = field(factory=CheckpointPolicy)
    environment: Mapping[str, str] = field(factory=dict)
    load_best_at_end: bool = False
    collectives: Collectives | None = None
    session: str = field(factory=new_session)
    in_background: bool = False
    skip_when_busy: bool = False
    pauses: tuple[float, ...] = PAUSES
    note: Note = note_nothing
    alone: bool = False
    latest: str | None = field(default=None, init=False)
    _ancestors: Mapping[str, int] = field(factory=dict, init=False)
    _held: set[int] = field(factory=set, init=False)
    _tidy: bool = field(default=False, init=False)
    _failures: int = field(default=0, init=False)
    _in_flight: tuple[Saving, Task, RunState] | None = field(default=None, init=False)
    _voted_on: Task | None = field(default=None, init=False)
    _answered: Task | None = field(default=None, init=False)
    _beside: Collectives | None = field(default=None, init=False)
    _preparation: Task | None = field(default=None, init=False)
    _given_up: threading.Event = field(factory=threading.Event, init=False)
    _pacer: Pacer = field(factory=Pacer, init=False)
    _resumed: RunState | None = field(default=None, init=False)
    _source: Storage | None = field(default=None, init=False)

    def resume(self, name: str | None = None, source: Storage | None = None) -> RunState | None:
        """Put the run where a checkpoint says it stood: the one named, else the newest good one.

        source: where that checkpoint is, if it is not on the storage that the run saves to.
        None where no name is given and there is none. Raises CheckpointError, naming those that are good, where the
        one named is not, where there are those of several runs and none is named, and where a good one does not fit.
        """
        storage = self.storage if source is None else source
        chosen = run_on_rank0(self.collectives, lambda: self._choose(storage, name))
        if chosen is None:
            return None
        checkpoint = Checkpoint(chosen, read_manifest(storage, chosen))
        warn_of_differences(checkpoint, self.environment, self._world_size)
        state = self.contents.restore(checkpoint.manifest.files, _opening(storage, chosen))
        lineage = Lineage.after(checkpoint.manifest, self.session)
        self._ancestors = lineage.ancestors
        latest, held = run_on_rank0(self.collectives, lambda: self._known_of(lineage))
        self.session = session_after(self.session, max(latest, checkpoint.manifest.session))
        self._held = set(held)
        self._source = source
        if source is None:
            self.latest, self._resumed = chosen, state
        best = self._best_of(state)
        if self.load_best_at_end and best.is_missing(state):
            warnings.warn(
                f"The best checkpoint of the run, {best.not_there(state)}. Unless you put it there, or a better "
                "evaluation comes, the run ends with its last weights.",
                stacklevel=3,
            )
        return state

    def prepare(self) -> None:
        """Make room for snapshots, beside the loop; the first save waits for that, so it does not stand back."""
        if self.in_background and self._preparation is None:
            make_room = self.contents.prepare()
            self._preparation = Task(make_room, "hexloop makes room for snapshots", stands_back=False)

    @property
    def writing(self) -> bool:
        """Whether this process has a save in flight that goes on; one that waits for room on any waits on all.

        What all said the time before is known when this is asked.
        """
        self._answered, self._voted_on = self._voted_on, None if self._in_flight is None else self._in_flight[1]
        return self._is_busy()

    @property
    def has_news(self) -> bool:
        """Whether the save in flight is done, or waits for room; of several processes none can tell by itself.

        Asked at every boundary, first at that of the step after the one that saved: from there on it is written.
        """
        if self._in_flight is None:
            return False
        saving, task, _ = self._in_flight
        saving.committer.pace.begin()
        if self._world_size > 1:
            return False
        return task.done or saving.room.full is not None

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Take a checkpoint of the run as it stands, unless its lineage has one of this step already.

        A failure of the storage is reported, and the run goes on; the third in a row raises StorageError, and so does
        a storage that stays full.
        """
        required_or_best = required or state.best_step == state.step
        if self.skip_when_busy and not required_or_best and run_on_rank0(self.collectives, self._is_busy):
            yield SaveSkipped(state.step, checkpoint_name(state.step))
            return
        yield from self._settle()
        try:
            saving = self._begin(state)
        except StorageError as error:
            yield from self._fail(state.step, error)
            return
        if saving is None:
            self.latest = checkpoint_name(state.step)
            yield CheckpointPublished(state.step, self.latest)
            return
        self.note("began", checkpoint=saving.name)
        if self.in_background:
            if required:  # who asked for it, or ends with it, waits for it
                saving.committer.pace.hurry()
            yield from self._save_in_background(saving, state)
        else:
            yield from self._ended(saving, saving.run, state, [Saved(state.step, saving.name)])

    def collect(self) -> Iterator[AnyEvent]:
        """What there is to tell of the save in flight; waits for it where it waits for room. See `save` for errors.

        Several processes come here when they agree that what was in flight is written.
        """
        agreed = self._world_size > 1 and self._in_flight is not None and self._in_flight[1] is self._answered
        if self.has_news or agreed:
            yield from self._settle()

    def load_best(self, state: RunState) -> None:
        """Put the weights of the best checkpoint in force, where the run is to end with them; see `BestCheckpoint`.

        It is looked for on the run's own storage and on the one that it was resumed from; what another run or another
        past of this one has there by its name is not taken.
        """
        if self.load_best_at_end:
            self._best_of(state).load(state, self.contents)

    def finish(self) -> Iterator[AnyEvent]:
        """Wait for the save in flight; where a resumed run came to its end without any, do the rest of its last one."""
        yield from self._settle()
        if self._resumed is not None:
            self._tidy_up(self._resumed)

    def close(self) -> Sequence[AnyEvent]:
        """Wait for the save in flight, and tell how it ended; interrupted, undo it whole."""
        events: list[AnyEvent] = []
        try:
            if self._preparation is not None:
                self._preparation.result()
            events.extend(self._settle())
        except StorageError as error:
            warnings.warn(str(error), stacklevel=2)
        except (KeyboardInterrupt, SystemExit):
            self._given_up.set()
            raise
        return events

    @property
    def _world_size(self) -> int:
        return 1 if self.collectives is None else self.collectives.world_size

    def _is_busy(self) -> bool:
        return self._in_flight is not None and not self._in_flight[1].done and self._in_flight[0].room.full is None

    def _apart(self) -> Collectives | None:
        """The processes, for the thread that writes behind the loop."""
        if self._beside is None and self.collectives is not None:
            self._beside = self.collectives.apart()
        return self._beside

    def _choose(self, storage: Storage, name: str | None) -> str | None:
        """The checkpoint to go on from, verified."""
        if storage is self.storage:  # elsewhere another run may be about to publish it
            with suppress(StorageError):
                publish_staged(storage, name)
        if name is not None:
            return open_checkpoint(storage, name).name
        found = newest(storage, quarantine=True)
        return None if found is None else found.name

    def _known_of(self, lineage: Lineage) -> tuple[str, list[int]]:
        """The session that came last of those of the run that have a checkpoint, and the lineage's steps."""
        manifests = readable_manifests(self.storage).values()
        latest = max((each.session for each in manifests if each.run == lineage.run), default="")
        return latest, [each.step for each in manifests if lineage.holds(each)]

    def _best_of(self, state: RunState) -> BestCheckpoint:
        storages = [self.storage] if self._source is None else [self.storage, self._source]
        lineage = Lineage(state.run, self.session, self._ancestors)
        return BestCheckpoint(storages, lineage, self._held, self.collectives)

    def _begin(self, state: RunState) -> Saving | None:
        """What is to be done for a save; None where this lineage has a checkpoint of this step already."""
        if self.collectives is not None:
            self.session = str(self.collectives.broadcast(self.session))
        before = state.parent_checkpoint, state.best_checkpoint
        if state.best_step in self._held | {state.step}:
            state.best_checkpoint = checkpoint_name(state.best_step)
        if state.step in self._held and run_on_rank0(
            self.collectives, lambda: state.step in checkpoint_steps(self.storage)
        ):
            return None
        state.parent_checkpoint = self.latest
        saving = self._saving(state, state.step, before)
        self._tidy, self._resumed = True, None
        return saving

    def _tidy_up(self, state: RunState) -> None:
        """Remove what a process that died in the last save of all left, as no save of this one came to do that."""
        self._resumed = None
        saving = self._saving(state, step_of(self.latest or "") or 0, (None, None))
        try:
            saving.tidy_up()
        except (StorageError, CheckpointError) as error:
            saving.complaint = f"What a process that died in a save left is still there: {error}"
        if saving.complaint is not None:
            warnings.warn(saving.complaint, stacklevel=2)

    def _saving(self, state: RunState, step: int, before: tuple[str | None, str | None]) -> Saving:
        publisher = publisher_for(self.storage, Owner(state.run, self.session, self.alone))
        return Saving(
            step=step,
            files=lambda: self.contents.files(state),
            committer=Committer(
                self.storage,
                publisher,
                self._apart() if self.in_background else self.collectives,
                self.note,
                self._given_up,
                self._pacer.next() if self.in_background else Pace.without_rest(),
            ),
            lineage=Lineage(state.run, self.session, self._ancestors),
            policy=self.policy,
            held=self._held,
            best=state.best_checkpoint,
            parent=state.parent_checkpoint,
            before=before,
            environment=self.environment,
            world_size=self._world_size,
            tidy=self._tidy,
            wait=self._given_up.wait,
            pauses=self.pauses,
        )

    def _save_in_background(self, saving: Saving, state: RunState) -> Iterator[AnyEvent]:
        if self._preparation is not None:
            self._preparation.result()
        saving.files = self.contents.snapshot(state)
        self.note("taken", checkpoint=saving.name)
        task = Task(saving.run, f"hexloop writes {saving.name}", saving.committer.pace.hurry)
        self._in_flight = saving, task, state
        yield Saved(state.step, saving.name)

    def _settle(self) -> Iterator[AnyEvent]:
        """Wait for the save in flight, and tell how it ended."""
        if self._in_flight is None:
            return
        saving, task, state = self._in_flight
        if saving.room.full is not None and not task.done:
            warnings.warn(f"The run stands still until {saving.name} can be written: {saving.room.full}", stacklevel=2)
            yield SaveWaits(saving.step, saving.room.full)
        yield from self._ended(saving, task.result, state, [])

    def _ended(
        self, saving: Saving, end: Callable[[], None], state: RunState, events: list[AnyEvent]
    ) -> Iterator[AnyEvent]:
        """Wait for the `end` of a save and tell how it was."""
        try:
            end()
        except StorageError as error:
            self._in_flight = None
            state.parent_checkpoint, best = saving.before
            if state.best_checkpoint == saving.name:
                state.best_checkpoint = best
            yield from self._fail(saving.step, error)
            return
        except BaseException:
            if self._in_flight is not None and self._in_flight[1].done:
                self._in_flight = None
            raise
        self._in_flight = None
        self._failures = 0
        self.latest = saving.name
        if saving.complaint is not None:
            self._tidy = False
            warnings.warn(saving.complaint, stacklevel=2)
        yield from events
        yield CheckpointPublished(saving.step, saving.name)

    def _fail(self, step: int, error: StorageError) -> Iterator[AnyEvent]:
        self._tidy = False
        self._failures += 1
        warnings.warn(f"{checkpoint_name(step)} was not saved: {error}", stacklevel=2)
        yield SaveFailed(step, error)
        saved = f"Everything up to {self.latest or 'the start'} is saved; make room or mend the storage, and resume."
        if isinstance(error, StorageFullError):
            raise StorageFullError(f"The storage stayed full: {error} {saved}") from error
        if self._failures >= FAILURES:
            raise StorageError(f"{FAILURES} saves in a row failed, the last with: {error} {saved}") from error


def _opening(storage: Storage, name: str) -> OpenFile:
    return lambda path, start=0: storage.read(f"{name}/{path}", start)
