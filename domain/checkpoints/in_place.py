"""Publishing where there is no atomic rename."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from attrs import frozen

from hexloop.domain.checkpoints.names import MANIFEST, Owner, free_name, may_be_unfinished
from hexloop.domain.checkpoints.reading import is_published
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Storage


@frozen
class InPlacePublisher:
    """Answers `Publisher`: a checkpoint is written where it stays, its manifest last, and goes manifest first.

    A folder that is not whole holds the owner's mark, an empty file that comes first and goes last. The mark without a
    valid manifest says that the folder is unfinished, and whose it is.
    """

    storage: Storage
    owner: Owner

    def begin(self, name: str) -> str:
        """Get what is there out of the way, and mark the folder."""
        if self.storage.list(name):
            self._set_aside(name)
        self._mark(name)
        return name

    def publish(self, name: str, manifest: bytes) -> None:
        """Write the manifest; from then on the mark means nothing."""
        self.storage.write(f"{name}/{MANIFEST}", [manifest])
        with suppress(StorageError):
            self._unmark(name)

    def abandon(self, name: str) -> None:
        """Remove the marked folder so that, cut short anywhere, what remains is no checkpoint and has the mark."""
        self.storage.remove(f"{name}/{MANIFEST}")
        for entry in self.storage.list(name):
            if not self.owner.left_behind(entry.name):
                self.storage.remove(f"{name}/{entry.name}")
        self.storage.remove(name)

    def delete(self, name: str) -> None:
        """Mark the checkpoint, and remove it."""
        self._mark(name)
        self.abandon(name)

    def clean_up(self) -> None:
        """Remove every unfinished folder that has a mark of this run, and the mark from those that are finished."""
        for entry in self.storage.list(""):
            if may_be_unfinished(entry.name) and self._marks(entry.name):
                if is_published(self.storage, entry.name):
                    self._unmark(entry.name)
                else:
                    self.abandon(entry.name)

    def _set_aside(self, name: str) -> None:
        """Give a folder another name by copying: a move could be cut short with half of it on either side."""
        aside = free_name(name, {entry.name for entry in self.storage.list("")})
        self._mark(aside)
        for path in sorted(self._files(name), key=MANIFEST.__eq__):
            self.storage.write(f"{aside}/{path}", self.storage.read(f"{name}/{path}"))
        self._unmark(aside)
        self.delete(name)

    def _files(self, folder: str, prefix: str = "") -> Iterator[str]:
        """The path of every file in a folder, however deep."""
        for entry in self.storage.list(folder):
            if entry.is_folder:
                yield from self._files(f"{folder}/{entry.name}", f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name

    def _marks(self, name: str) -> list[str]:
        return [entry.name for entry in self.storage.list(name) if self.owner.left_behind(entry.name)]

    def _mark(self, name: str) -> None:
        if self.owner.mark not in self._marks(name):
            self.storage.write(f"{name}/{self.owner.mark}", [])

    def _unmark(self, name: str) -> None:
        for mark in self._marks(name):
            self.storage.remove(f"{name}/{mark}")
