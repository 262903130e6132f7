"""The commit protocol: how a checkpoint is written and published, and which older checkpoints are removed after it.

A save goes through these steps, in `CheckpointSave.run`:

1. Remove what an interrupted save left unfinished (`Publisher.clean_up`).
2. Write the files to a staging folder that no reader takes for a checkpoint, and sync them (`Committer.commit`).
3. Write the manifest with the size and digest of every file, and sync it.
4. Publish: let the folder appear under the checkpoint's name, in one step (`Publisher.publish`).
5. Remove the checkpoints that the policy no longer keeps (rotation).

Whenever the process or the machine dies, a reader finds a complete checkpoint or none. A save waits for the disk a
fixed number of times, whatever the number of files: for the files, the manifest, the rename that publishes, and the
rename before each deletion. If one process writes a checkpoint that is published by a rename, its files and the
manifest are synced together: if a crash loses some of them, the staging folder fails its verification.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol, cast

from attrs import define, field, frozen

from hexloop.domain.checkpoints.in_place import InPlacePublisher
from hexloop.domain.checkpoints.manifest import (
    MANIFEST,
    Lineage,
    Manifest,
    Owner,
    checkpoint_name,
    folders_of,
    free_folder,
)
from hexloop.domain.checkpoints.pace import Pace
from hexloop.domain.checkpoints.reading import (
    checkpoint_steps,
    is_in_lineage,
    is_protected,
    is_published,
    read_manifest,
)
from hexloop.domain.checkpoints.signatures import SIGNATURE, signature_of
from hexloop.domain.errors import CheckpointError, CollectiveError, StorageError, StorageFullError
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.ports.collectives import Collectives, Json
from hexloop.ports.storage import File, Publication, Storage, Stored

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Seconds between two attempts to write to a full storage: five minutes in all."""


class NotePhase(Protocol):
    """Called at each phase of a save, with facts about it. Must not raise."""

    def __call__(self, phase: str, /, **facts: Json) -> None:
        """Record the phase."""


def no_notes(_phase: str, /, **_facts: Json) -> None:
    """No-op.

    Args:
        _phase: the name of what is noted.
        **_facts: what is noted.
    """


@frozen
class CheckpointPolicy:
    """Which checkpoints of a run are kept. The newest always is.

    Checkpoints that must be kept count towards the limit and may exceed it: with a limit of 1, the best and the newest
    are kept.

    Args:
        save_total_limit: how many are kept; None, or a number below 1, means all.
        keep_best: also keep the one with the best metric.
        protected: names of others to keep.
        protects: returns whether one of a name is kept as well, by the time at which it would be removed.
    """

    save_total_limit: int | None = None
    keep_best: bool = True
    protected: frozenset[str] = frozenset()
    protects: Callable[[str], bool] = field(default=lambda _: False, eq=False)

    def surplus(
        self, steps: Iterable[int], best: str | None = None, is_protected: Callable[[str], bool] = lambda _: False
    ) -> tuple[int, ...]:
        """Return the steps of the checkpoints to remove, oldest first, out of those at `steps`.

        Args:
            steps: those of the checkpoints that there are.
            best: the name of the best checkpoint.
            is_protected: called with the name of a checkpoint that would be removed; returns whether a user protected
                it.
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
    """The Publisher for storages with an atomic rename: a complete staging folder is renamed to the checkpoint's name.

    A checkpoint is deleted by renaming it back before its files are removed.

    Args:
        storage: where the checkpoints are.
        owner: the run that writes.
    """

    storage: Storage
    owner: Owner

    def begin(self, name: str) -> str:
        """Return the name of the staging folder, which is created with its first file.

        Args:
            name: the name of the checkpoint.
        """
        return self.owner.staging_name(name)

    def publish(self, name: str, manifest: bytes, unsynced: Sequence[str] = ()) -> None:
        """Write the manifest, sync it and `unsynced`, rename a folder that has the name, and the staging folder.

        Args:
            name: the name of the checkpoint.
            manifest: what is in the checkpoint.
            unsynced: the files that are not durable yet.
        """
        staging = self.owner.staging_name(name)
        self.storage.write(f"{staging}/{MANIFEST}", [manifest])
        self.storage.sync([*unsynced, f"{staging}/{MANIFEST}"])
        if name in {entry.name for entry in self.storage.list("")}:
            self.storage.move(name, free_folder(self.storage, name))
        self.storage.move(staging, name)

    def abandon(self, name: str) -> None:
        """Remove the staging folder.

        Args:
            name: the name of the checkpoint.
        """
        self.storage.remove(self.owner.staging_name(name))

    def delete(self, name: str) -> None:
        """Rename the checkpoint back to its staging folder and remove that.

        Args:
            name: the name of the checkpoint.
        """
        self.storage.move(name, self.owner.staging_name(name))
        self.abandon(name)

    def clean_up(self) -> None:
        """Remove every staging folder that this run left behind."""
        for name in folders_of(self.storage):
            if self.owner.left_behind(name):
                self.storage.remove(name)


Publisher = RenamingPublisher | InPlacePublisher
"""Makes checkpoints appear and disappear as a whole.

`begin` returns the folder to write to, and `publish` makes it appear; a folder that already has its name is renamed
first. `unsynced` lists the paths of files that are to be synced before. `clean_up` removes what this run left
unfinished, in this session or an earlier one, and nothing else. It finds whatever a method leaves behind when it raises
StorageError or the process dies. Call it before the next `begin`.
"""


def publisher_for(storage: Storage, owner: Owner) -> Publisher:
    """Return the publisher that needs no more than the storage supports.

    Args:
        storage: where the checkpoints are.
        owner: the run that writes.
    """
    if storage.capabilities.publication is Publication.RENAME:
        return RenamingPublisher(storage, owner)
    return InPlacePublisher(storage, owner)


@frozen
class Committer:
    """Turns files into a published checkpoint, on behalf of all processes of a run.

    Every process writes its own files. Rank 0 begins, writes the manifest and publishes, and the others wait for it.

    Args:
        storage: where the checkpoints are.
        publisher: makes a folder appear as a checkpoint.
        collectives: how processes communicate; None if there is one process.
        note: notes what happened, for the journal.
        abandoned: set to undo a commit that is in progress.
        pace: when this process starts to write, and how fast.
    """

    storage: Storage
    publisher: Publisher
    collectives: Collectives | None = None
    note: NotePhase = no_notes
    abandoned: threading.Event = field(factory=threading.Event)
    pace: Pace = field(factory=Pace)

    def commit(
        self, name: str, files: Iterable[File], make_manifest: Callable[[Mapping[str, Stored]], Manifest]
    ) -> None:
        """Write the files and the manifest, and publish. Once this returns, the checkpoint is durable.

        Before that, no reader finds it. If anything fails, what was written is removed, or left for a later clean-up,
        and StorageError is raised on every process.

        Args:
            name: the name of the checkpoint.
            files: returns the files to write.
            make_manifest: returns the manifest that lists the written files.
        """
        folder = run_on_rank0(self.collectives, lambda: self.publisher.begin(name))
        alone = self.collectives is None or self.collectives.world_size == 1
        published = False

        def publish(written: list[dict[str, Json]]) -> None:
            nonlocal published
            manifest = make_manifest(_merged(written))
            self.note("written", checkpoint=name, bytes=sum(stored.size for stored in manifest.files.values()))
            unsynced = [f"{folder}/{path}" for path in manifest.files] if alone else []
            unsynced += self._sign(folder, manifest)
            self.publisher.publish(name, manifest.to_json(), unsynced)
            published = True
            self.note(
                "published", checkpoint=name, digests={path: each.digest for path, each in manifest.files.items()}
            )

        try:
            written = run_on_all_ranks(self.collectives, lambda: self._write(name, folder, files, sync=not alone))
            run_on_rank0(self.collectives, lambda: publish(written))
        except BaseException as error:
            if not published and self._may_abandon(error):
                with suppress(StorageError):
                    self.publisher.abandon(name)
            raise

    def _sign(self, folder: str, manifest: Manifest) -> list[str]:
        """Write the signature of the manifest if the storage has a key, and return its path, which is to be synced."""
        signatures = self.storage.capabilities.signatures
        if signatures is None:
            return []
        path = f"{folder}/{SIGNATURE}"
        self.storage.write(path, [signature_of(signatures, manifest)])
        return [path]

    def _may_abandon(self, error: BaseException) -> bool:
        """Return whether this process may remove the files: not if a rank that was lost might still be writing."""
        if self.collectives is None or self.collectives.world_size == 1:
            return True
        return self.collectives.rank == 0 and isinstance(error, Exception) and not isinstance(error, CollectiveError)

    def _write(self, name: str, folder: str, files: Iterable[File], sync: bool) -> dict[str, Json]:
        """Write the files of this process, sync them if so asked, and return the size and digest of each."""
        stored: dict[str, Json] = {}
        self.pace.wait_for_start()
        for file in files:
            if not stored:
                self.note("first_byte", checkpoint=name)
            done = self.storage.write(f"{folder}/{file.path}", self._paced(file.chunks))
            stored[file.path] = [done.size, done.digest]
        if sync and stored:
            self.storage.sync([f"{folder}/{path}" for path in stored])
        return stored

    def _paced(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for piece in self.pace.pieces(chunks):
            if self.abandoned.is_set():
                raise StorageError("The save was abandoned because the run was interrupted.")
            yield piece


def _merged(written: list[dict[str, Json]]) -> dict[str, Stored]:
    """Return the files of all processes. Raises CheckpointError if two of them wrote the same file."""
    files: dict[str, Stored] = {}
    for rank, stored in enumerate(written):
        for path, (size, digest) in cast("dict[str, tuple[int, str]]", stored).items():
            if path in files:
                raise CheckpointError(f"Rank {rank} and another rank both wrote {path}. Give each rank's files a name.")
            files[path] = Stored(size, digest)
    return files


@define(eq=False)
class FullStorageRetry:
    """Retries an action that fails because the storage is full.

    Args:
        wait: waits for that many seconds and returns True to stop retrying.
        pauses: seconds before each retry.

    Attributes:
        full: the storage's last error, from the first pause until the action succeeds.
    """

    wait: Callable[[float], object]
    pauses: tuple[float, ...] = PAUSES
    full: StorageFullError | None = field(default=None, init=False)

    def attempt(self, act: Callable[[], None], prune: Callable[[], bool]) -> None:
        """Call `act` until it succeeds.

        Args:
            act: what is tried.
            prune: frees some space and returns whether it did; then `act` is called again without a pause.

        Raises:
            StorageFullError: if there is no space after the last pause.
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


@define(eq=False)
class CheckpointSave:
    """One save: commits the checkpoint of `step`, then rotates. `run` may be called in another thread.

    Args:
        step: optimizer steps done.
        files: returns the files, once per attempt.
        committer: writes and publishes the files.
        lineage: the run and the branch that the checkpoint belongs to.
        policy: which checkpoints are kept.
        held: the steps of this lineage's checkpoints, kept up to date.
        best: the name of the best checkpoint.
        make_manifest: returns the manifest that lists the written files.
        previous: the parent and best checkpoint that the state named before this save, to restore them if it fails.
        is_clean: nothing on the storage is left unfinished by this run.
        retry: waits while the storage is full.
        make_room: frees space on rank 0 that other things than checkpoints take, and returns whether it did.

    Attributes:
        problem: why older checkpoints, or unfinished folders, could not be removed.
        replaces: whether a checkpoint of another run, or of an abandoned branch of this one, has the name, on rank 0.
    """

    step: int
    files: Callable[[], Iterator[File]]
    committer: Committer
    lineage: Lineage
    policy: CheckpointPolicy
    held: set[int]
    best: str | None
    make_manifest: Callable[[Mapping[str, Stored]], Manifest]
    previous: tuple[str | None, str | None]
    is_clean: bool
    retry: FullStorageRetry
    make_room: Callable[[], bool] = field(default=lambda: False)
    problem: str | None = field(default=None, init=False)
    replaces: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return checkpoint_name(self.step)

    def run(self) -> None:
        """Save durably and rotate. Whatever making the files raises is raised.

        Raises:
            StorageError: if the storage fails.
        """
        if not self._exists():
            if self.replaces:
                self.committer.note("replaces", checkpoint=self.name)
            self.retry.attempt(lambda: self.committer.commit(self.name, self.files(), self.make_manifest), self._prune)
        self.held.add(self.step)
        self._rotate()

    def clean_up(self) -> None:
        """Clean up and rotate without saving; the checkpoint exists already.

        Raises:
            StorageError: if the storage fails.
        """
        self._exists()
        self._rotate()

    def _exists(self) -> bool:
        """Clean up, update `held` from the storage, and return whether the checkpoint exists already."""
        exists, *held = run_on_rank0(self.committer.collectives, self._look)
        self.held &= set(held)
        return bool(exists)

    def _look(self) -> list[int]:
        """Clean up and return whether the checkpoint exists, followed by those steps of `held` that exist."""
        if not self.is_clean:
            try:
                self.committer.publisher.clean_up()
            except StorageError as error:  # what cannot be removed does not prevent a save
                self.problem = f"The unfinished files of an earlier save could not be removed: {error}"
        present = set(checkpoint_steps(self.committer.storage))
        exists = self.step in present and is_in_lineage(self.committer.storage, self.step, self.lineage)
        self.replaces = self.step in present and not exists and is_published(self.committer.storage, self.name)
        return [exists, *(self.held & present)]

    def _prune(self) -> bool:
        """Remove one checkpoint that this save makes superfluous, but never the newest existing one."""
        try:
            surplus = self._surplus(self.held | {self.step})
            spare = tuple(step for step in surplus if step != max(self.held))[:1]
            self._remove(spare)
        except (StorageError, CheckpointError):
            spare = ()
        return bool(spare) or bool(run_on_rank0(self.committer.collectives, self.make_room))

    def _rotate(self) -> None:
        """Remove what the policy no longer keeps, if the new checkpoint is readable. A failure postpones it."""
        removed: tuple[int, ...] = ()
        try:
            removed = self._surplus(self.held)
            self._remove(removed, after=self.name)
        except (StorageError, CheckpointError) as error:
            self.problem = f"Checkpoints beyond save_total_limit could not be removed: {error}"
        if removed:
            self.committer.note("rotated", checkpoint=self.name, removed=[checkpoint_name(step) for step in removed])

    def _surplus(self, steps: set[int]) -> tuple[int, ...]:
        """Return the steps that the policy no longer keeps and nothing protects, as rank 0 sees them."""
        if not self.policy.surplus(steps, self.best):
            return ()

        def is_kept(name: str) -> bool:
            return self.policy.protects(name) or is_protected(self.committer.storage, name)

        return tuple(
            run_on_rank0(self.committer.collectives, lambda: list(self.policy.surplus(steps, self.best, is_kept)))
        )

    def _remove(self, steps: tuple[int, ...], after: str | None = None) -> None:
        """Remove the checkpoints at `steps` that belong to this lineage, once the manifest of `after` was read.

        If it fails, `held` stays as it is on every rank.
        """
        if not steps:
            return
        storage, publisher = self.committer.storage, self.committer.publisher

        def remove() -> None:
            if after is not None:
                read_manifest(storage, after)
            for step in steps:
                if is_in_lineage(storage, step, self.lineage):
                    publisher.delete(checkpoint_name(step))

        run_on_rank0(self.committer.collectives, remove)
        self.held.difference_update(steps)
