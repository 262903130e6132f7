"""How many checkpoints are kept, and which."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Protocol, cast

from attrs import define, field, frozen

from hexloop.domain.checkpoints.in_place import InPlacePublisher
from hexloop.domain.checkpoints.manifest import Lineage, Manifest
from hexloop.domain.checkpoints.names import MANIFEST, Owner, checkpoint_name, free_name
from hexloop.domain.checkpoints.pace import Pace
from hexloop.domain.checkpoints.reading import belongs, checkpoint_steps, is_protected, read_manifest
from hexloop.domain.errors import CheckpointError, CollectiveError, StorageError, StorageFullError
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.ports.collectives import Collectives, Json
from hexloop.ports.files import File
from hexloop.ports.storage import Publication, Storage, Stored


@frozen
class CheckpointPolicy:
    """Which checkpoints of a run are kept; the newest always is.

    save_total_limit: how many there may be; None, or a number below 1: any number.
    keep_best: the one with the best metric is kept, too. protected: names of others that are kept.
    What must be kept counts as well, and may be more than the limit: with a limit of 1, the best and the newest stay.
    """

    save_total_limit: int | None = None
    keep_best: bool = True
    protected: frozenset[str] = frozenset()

    def surplus(
        self, steps: Iterable[int], best: str | None = None, is_protected: Callable[[str], bool] = lambda _: False
    ) -> tuple[int, ...]:
        """Of the checkpoints at `steps`, those to remove, from the oldest on; `best` is the name of the best.

        is_protected: asked by name of those that would be removed otherwise, whether somebody protects them.
        """
        if self.save_total_limit is None or self.save_total_limit <= 0:
            return ()
        ordered = sorted(set(steps))
        kept = self.protected | {best} if self.keep_best else self.protected
        names = {step: checkpoint_name(step) for step in ordered[:-1]}
        removable = (step for step, name in names.items() if name not in kept and not is_protected(name))
        return tuple(islice(removable, max(len(ordered) - self.save_total_limit, 0)))


@frozen
class RenamingPublisher:
    """Answers `Publisher`: a checkpoint is renamed when it is whole, and renamed back before it is removed."""

    storage: Storage
    owner: Owner

    def begin(self, name: str) -> str:
        """The staging folder, which appears with its first file."""
        return self.owner.staging(name)

    def publish(self, name: str, manifest: bytes) -> None:
        """Write the manifest, rename what is in the way, rename the staging folder."""
        staging = self.owner.staging(name)
        self.storage.write(f"{staging}/{MANIFEST}", [manifest])
        taken = {entry.name for entry in self.storage.list("")}
        if name in taken:
            self.storage.move(name, free_name(name, taken))
        self.storage.move(staging, name)

    def abandon(self, name: str) -> None:
        """Remove the staging folder."""
        self.storage.remove(self.owner.staging(name))

    def delete(self, name: str) -> None:
        """Rename the checkpoint back to where it was staged, and remove it there."""
        self.storage.move(name, self.owner.staging(name))
        self.abandon(name)

    def clean_up(self) -> None:
        """Remove every staging folder that this run left behind."""
        for entry in self.storage.list(""):
            if self.owner.left_behind(entry.name):
                self.storage.remove(entry.name)


class Publisher(Protocol):
    """One way of publishing.

    Whatever a method leaves undone, by a StorageError or a death, `clean_up` finds; it comes before the next `begin`.
    """

    def begin(self, name: str) -> str:
        """Make ready for the checkpoint `name`, and say in which folder its files are to be written."""
        ...

    def publish(self, name: str, manifest: bytes) -> None:
        """Write the manifest and let the checkpoint appear. A folder that bears its name already is renamed first."""
        ...

    def abandon(self, name: str) -> None:
        """Remove what was written since `begin`."""
        ...

    def delete(self, name: str) -> None:
        """Remove a published checkpoint."""
        ...

    def clean_up(self) -> None:
        """Remove what this run left unfinished, in this session or an earlier one, and nothing else."""
        ...


def publisher_for(storage: Storage, owner: Owner) -> Publisher:
    """The publisher that makes do with what the storage promises."""
    if storage.capabilities.publication is Publication.RENAME:
        return RenamingPublisher(storage, owner)
    return InPlacePublisher(storage, owner)


PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Seconds between one attempt and the next: five minutes in all."""


@define(eq=False)
class RoomMaker:
    """Attempts something that takes room, again and again while there is none.

    wait: waits so many seconds; True says that the attempts are broken off. pauses: seconds before each further one.
    full: what the storage said last, from the first pause on until there is room.
    """

    wait: Callable[[float], object]
    pauses: tuple[float, ...] = PAUSES
    full: StorageFullError | None = field(default=None, init=False)

    def attempt(self, act: Callable[[], None], prune: Callable[[], bool]) -> None:
        """Do it. Raises StorageFullError where there is no room after the last pause.

        prune: removes something that may go, and says whether there was any; after that no pause is made.
        """
        pauses = iter(self.pauses)
        while True:
            try:
                act()
            except StorageFullError as error:
                if prune():
                    continue
                pause = next(pauses, None)
                if pause is None:
                    raise
                self.full = error
                if self.wait(pause) is True:
                    raise
            else:
                self.full = None
                return


class Note(Protocol):
    """Told of each phase of a save, with facts about it."""

    def __call__(self, phase: str, /, **facts: Json) -> None:
        """Note it; never fails."""
        ...


def note_nothing(_phase: str, /, **_facts: Json) -> None:
    """Nobody keeps a journal."""


@frozen
class Committer:
    """Makes a checkpoint out of files, on behalf of all processes of a run.

    Every process writes its own files; rank 0 begins, writes the manifest and publishes, and the others wait for it.
    collectives: None where this process is alone. given_up: set by whoever wants a commit under way to be undone.
    pace: when this process begins to write, and how fast it does.
    """

    storage: Storage
    publisher: Publisher
    collectives: Collectives | None = None
    note: Note = note_nothing
    given_up: threading.Event = field(factory=threading.Event)
    pace: Pace = field(factory=Pace.without_rest)

    def commit(
        self, name: str, files: Iterable[File], make_manifest: Callable[[Mapping[str, Stored]], Manifest]
    ) -> None:
        """Write the files, then the manifest over them, and publish: the checkpoint is there for good after a return.

        Until then no reader finds it. Where anything fails, what was written is removed, or left for a later clean-up.
        Raises StorageError, on every process.
        """
        folder = run_on_rank0(self.collectives, lambda: self.publisher.begin(name))
        published = False

        def publish(written: list[dict[str, Json]]) -> None:
            nonlocal published
            manifest = make_manifest(_merged(written))
            self.note("written", checkpoint=name, bytes=sum(stored.size for stored in manifest.files.values()))
            self.publisher.publish(name, manifest.to_json())
            published = True
            self.note("published", checkpoint=name)

        try:
            written = run_on_all_ranks(self.collectives, lambda: self._write(name, folder, files))
            run_on_rank0(self.collectives, lambda: publish(written))
        except BaseException as error:
            if not published and self._may_abandon(error):
                with suppress(StorageError):
                    self.publisher.abandon(name)
            raise

    def _may_abandon(self, error: BaseException) -> bool:
        """Whether nobody writes any more: where ranks were lost sight of, a later clean-up is left to do it."""
        if self.collectives is None or self.collectives.world_size == 1:
            return True
        return self.collectives.rank == 0 and isinstance(error, Exception) and not isinstance(error, CollectiveError)

    def _write(self, name: str, folder: str, files: Iterable[File]) -> dict[str, Json]:
        """Write this process's files; gives each one's size and digest."""
        stored: dict[str, Json] = {}
        self.pace.await_beginning()
        for file in files:
            if not stored:
                self.note("first_byte", checkpoint=name)
            done = self.storage.write(f"{folder}/{file.path}", self._until_given_up(file.chunks))
            stored[file.path] = [done.size, done.digest]
        return stored

    def _until_given_up(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for piece in self.pace.pieces(chunks):
            if self.given_up.is_set():
                raise StorageError("The save was given up, because the run was told to end at once.")
            yield piece


def _merged(written: list[dict[str, Json]]) -> dict[str, Stored]:
    """The files of all processes. Raises CheckpointError where two of them wrote the same."""
    files: dict[str, Stored] = {}
    for rank, stored in enumerate(written):
        for path, (size, digest) in cast("dict[str, tuple[int, str]]", stored).items():
            if path in files:
                raise CheckpointError(f"Rank {rank} wrote {path}, as another did; give each rank's files their names.")
            files[path] = Stored(size, digest)
    return files


@define(eq=False)
class Saving:
    """Commits the checkpoint at `step`, then rotates. `run` may be called in a thread beside the loop.

    files: gives the files, anew for each attempt. held: the steps of this lineage's checkpoints, kept up to date.
    best: the name of the best checkpoint. parent, environment, world_size: for the manifest.
    before: what the state named as parent and best before this save, for when it fails.
    tidy: nothing unfinished of this run is on the storage. wait, pauses: see `RoomMaker`.
    complaint: why older checkpoints are still there, where they could not be removed.
    """

    step: int
    files: Callable[[], Iterator[File]]
    committer: Committer
    lineage: Lineage
    policy: CheckpointPolicy
    held: set[int]
    best: str | None
    parent: str | None
    before: tuple[str | None, str | None]
    environment: Mapping[str, str]
    world_size: int
    tidy: bool
    wait: Callable[[float], object]
    pauses: tuple[float, ...] = PAUSES
    complaint: str | None = field(default=None, init=False)
    room: RoomMaker = field(init=False)

    @room.default
    def _make_room(self) -> RoomMaker:
        return RoomMaker(self.wait, self.pauses)

    @property
    def name(self) -> str:
        """The checkpoint's."""
        return checkpoint_name(self.step)

    def run(self) -> None:
        """Save; once this returns, the checkpoint is durable. Raises StorageError, and what making the files raised."""
        if not self._is_there():
            self.room.attempt(lambda: self.committer.commit(self.name, self.files(), self._manifest), self._prune)
        self.held.add(self.step)
        self._rotate()

    def tidy_up(self) -> None:
        """What a save does beside saving, of the checkpoint that is there. Raises StorageError."""
        self._is_there()
        self._rotate()

    def _is_there(self) -> bool:
        """Whether the checkpoint is there already. Takes note, on every rank, of which others are there still."""
        is_there, *held = run_on_rank0(self.committer.collectives, self._look)
        self.held &= set(held)
        return bool(is_there)

    def _look(self) -> list[int]:
        """Clean up, and see whether the checkpoint is there, and which of those held; all ranks go by what one saw."""
        if not self.tidy:
            try:
                self.committer.publisher.clean_up()
            except StorageError as error:  # what cannot be removed is no reason not to save
                self.complaint = f"What an earlier save left unfinished is still there: {error}"
        present = set(checkpoint_steps(self.committer.storage))
        is_there = self.step in present and belongs(self.committer.storage, self.step, self.lineage)
        return [is_there, *(self.held & present)]

    def _manifest(self, files: Mapping[str, Stored]) -> Manifest:
        return Manifest(
            run=self.lineage.run,
            session=self.lineage.session,
            ancestors=self.lineage.ancestors,
            parent=self.parent,
            step=self.step,
            world_size=self.world_size,
            environment=dict(self.environment),
            files=files,
        )

    def _prune(self) -> bool:
        """Remove one checkpoint that this save makes superfluous, but never the newest one there is."""
        try:
            surplus = self._surplus(self.held | {self.step})
            spare = tuple(step for step in surplus if step != max(self.held))[:1]
            self._remove(spare)
        except (StorageError, CheckpointError):
            return False
        return bool(spare)

    def _rotate(self) -> None:
        """Remove what the policy no longer keeps, once the newest is seen to be there; a failure puts it off."""
        removed: tuple[int, ...] = ()
        try:
            removed = self._surplus(self.held)
            self._remove(removed, after=self.name)
        except (StorageError, CheckpointError) as error:
            self.complaint = f"Older checkpoints than save_total_limit allows are still there: {error}"
        if removed:
            self.committer.note("rotated", checkpoint=self.name, removed=[checkpoint_name(step) for step in removed])

    def _surplus(self, steps: set[int]) -> tuple[int, ...]:
        """What the policy no longer keeps, and nobody protects; all ranks go by what one saw."""
        if not self.policy.surplus(steps, self.best):
            return ()
        looked_at = partial(is_protected, self.committer.storage)
        return tuple(
            run_on_rank0(self.committer.collectives, lambda: list(self.policy.surplus(steps, self.best, looked_at)))
        )

    def _remove(self, steps: tuple[int, ...], after: str | None = None) -> None:
        """Remove the checkpoints at `steps` that are still this lineage's, where the one named is there to stay.

        No rank holds them any more then; where it fails, every rank goes on holding all.
        """
        if not steps:
            return
        storage, publisher = self.committer.storage, self.committer.publisher

        def remove() -> None:
            if after is not None:
                read_manifest(storage, after)
            for step in steps:
                if belongs(storage, step, self.lineage):
                    publisher.delete(checkpoint_name(step))

        run_on_rank0(self.committer.collectives, remove)
        self.held.difference_update(steps)
