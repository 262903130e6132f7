"""Writing a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol, cast

from attrs import field, frozen

from hexloop.domain.checkpoints.manifest import Manifest
from hexloop.domain.checkpoints.pace import Pace
from hexloop.domain.checkpoints.publication import Publisher
from hexloop.domain.checkpoints.together import by_leader, together
from hexloop.domain.errors import CheckpointError, CollectiveError, StorageError
from hexloop.ports.collectives import Collectives, Json
from hexloop.ports.files import File
from hexloop.ports.storage import Storage, Stored


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
        folder = by_leader(self.collectives, lambda: self.publisher.begin(name))
        published = False

        def publish(written: list[dict[str, Json]]) -> None:
            nonlocal published
            manifest = make_manifest(_merged(written))
            self.note("written", checkpoint=name, bytes=sum(stored.size for stored in manifest.files.values()))
            self.publisher.publish(name, manifest.to_json())
            published = True
            self.note("published", checkpoint=name)

        try:
            written = together(self.collectives, lambda: self._write(name, folder, files))
            by_leader(self.collectives, lambda: publish(written))
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
