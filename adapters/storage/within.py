"""A folder of another storage as a storage of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve, field, frozen

from hexloop.ports.storage import Entry, Storage, StorageCapabilities, Stored


@frozen
class StorageWithin:
    """Storage adapter for the folder `folder` of the storage `inner`. It only forwards.

    Args:
        inner: the storage that has the folder.
        folder: the path of the folder in it.
    """

    inner: Storage
    folder: str = field()

    @folder.validator
    def _refuse_other_places(self, _attribute: object, folder: str) -> None:
        if any(name in ("", ".", "..") for name in folder.split("/")):
            raise ValueError(f"{folder!r} is not the path of a folder within a storage")

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of the other storage, with the location of the folder."""
        inner = self.inner.capabilities
        root, modified = inner.local_folder, inner.modified
        return evolve(
            inner,
            location=f"{inner.location.rstrip('/')}/{self.folder}",
            local_folder=None if root is None else os.path.join(root, *self.folder.split("/")),
            modified=lambda path: modified(self._inside(path)),
        )

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """See `Storage.write`."""
        return self.inner.write(self._inside(path), chunks)

    def sync(self, paths: Sequence[str]) -> None:
        """See `Storage.sync`."""
        self.inner.sync([self._inside(path) for path in paths])

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """See `Storage.read`."""
        return self.inner.read(self._inside(path), start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """See `Storage.list`."""
        return self.inner.list(self._inside(folder) if folder else self.folder)

    def move(self, source: str, destination: str) -> None:
        """See `Storage.move`."""
        self.inner.move(self._inside(source), self._inside(destination))

    def remove(self, path: str) -> None:
        """See `Storage.remove`."""
        self.inner.remove(self._inside(path))

    def digest(self, path: str) -> Stored:
        """See `Storage.digest`."""
        return self.inner.digest(self._inside(path))

    def _inside(self, path: str) -> str:
        return f"{self.folder}/{path}"
