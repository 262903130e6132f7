"""Publishing on a storage that has no atomic rename."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from attrs import frozen

from hexloop.domain.checkpoints.manifest import MANIFEST, Owner, folders_of, free_folder, may_be_unfinished
from hexloop.domain.checkpoints.reading import is_published
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Storage


@frozen
class InPlacePublisher:
    """The Publisher that writes a checkpoint to its final folder, the manifest last, and removes the manifest first.

    An unfinished folder holds the owner's mark, an empty file that is durable before any other and removed last. The
    mark without a valid manifest says that the folder is unfinished, and which run left it.
    """

    storage: Storage
    owner: Owner

    def begin(self, name: str) -> str:
        """Move a folder of this name out of the way, and mark the new one."""
        if self.storage.list(name):
            self._rename_by_copy(name)
        self._mark(name)
        return name

    def publish(self, name: str, manifest: bytes, unsynced: Sequence[str] = ()) -> None:
        """Sync what the manifest lists, and write it. It makes the mark meaningless, which is then removed."""
        if unsynced:
            self.storage.sync(unsynced)
        self._write(f"{name}/{MANIFEST}", [manifest])
        with suppress(StorageError):
            self._unmark(name)

    def abandon(self, name: str) -> None:
        """Remove the marked folder. Whenever this is cut short, what remains is not a checkpoint and has the mark."""
        self.storage.remove(f"{name}/{MANIFEST}")
        for entry in self.storage.list(name):
            if not self.owner.left_behind(entry.name):
                self.storage.remove(f"{name}/{entry.name}")
        self.storage.remove(name)

    def delete(self, name: str) -> None:
        """Mark the checkpoint and remove it."""
        self._mark(name)
        self.abandon(name)

    def clean_up(self) -> None:
        """Remove every unfinished folder with a mark of this run, and the marks in finished folders."""
        for name in folders_of(self.storage):
            if may_be_unfinished(name) and self._marks(name):
                if is_published(self.storage, name):
                    self._unmark(name)
                else:
                    self.abandon(name)

    def _rename_by_copy(self, name: str) -> None:
        """Rename a folder by copying it: a move that is cut short could leave one half in each folder."""
        renamed = free_folder(self.storage, name)
        self._mark(renamed)
        paths = list(self._files(name))
        copies = [f"{renamed}/{path}" for path in paths if path != MANIFEST]
        for path, copy in zip((path for path in paths if path != MANIFEST), copies, strict=True):
            self.storage.write(copy, self.storage.read(f"{name}/{path}"))
        self.storage.sync(copies)
        if MANIFEST in paths:
            self._write(f"{renamed}/{MANIFEST}", self.storage.read(f"{name}/{MANIFEST}"))
        self._unmark(renamed)
        self.delete(name)

    def _files(self, folder: str, prefix: str = "") -> Iterator[str]:
        """Yield the path of every file in a folder and its subfolders."""
        for entry in self.storage.list(folder):
            if entry.is_folder:
                yield from self._files(f"{folder}/{entry.name}", f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name

    def _marks(self, name: str) -> list[str]:
        return [entry.name for entry in self.storage.list(name) if self.owner.left_behind(entry.name)]

    def _mark(self, name: str) -> None:
        if self.owner.mark not in self._marks(name):
            self._write(f"{name}/{self.owner.mark}", [])

    def _write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a file and make it durable."""
        self.storage.write(path, chunks)
        self.storage.sync([path])

    def _unmark(self, name: str) -> None:
        for mark in self._marks(name):
            self.storage.remove(f"{name}/{mark}")
