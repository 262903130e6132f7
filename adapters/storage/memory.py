"""Storage in memory, which can lose what is not yet durable, for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TypeVar

from hexloop.adapters.storage import digest_of, outside_error
from hexloop.domain.checkpoints.manifest import stays_inside
from hexloop.domain.errors import MissingFileError, StorageError, StorageFullError
from hexloop.ports.storage import Entry, Publication, StorageCapabilities, Stored

Data = TypeVar("Data", bytes, bytes | bytearray)


class MemoryStorage:
    """Storage adapter in memory.

    `crash` simulates a power cut: whatever is not durable is undone, or only in part if the caller wishes. A file is
    durable once `sync` has returned, and a move at once; it does not make files durable. A removal is durable only
    after the next sync or move, because the port does not guarantee more. A write that is interrupted by a
    BaseException that is not an Exception (the process died) leaves a partial file until a crash. Operations within
    `losing` never become durable, as on a disk that acknowledges what is only in its cache; later operations do, unless
    they build on lost ones.

    Args:
        publication: what the capabilities report, so that both kinds of storage can be tested.
        capacity: maximum number of bytes (None: unlimited).

    Examples:
        >>> from hexloop.testing import MemoryStorage
        >>> storage = MemoryStorage()
        >>> for path in ("kept", "lost"):
        ...     _ = storage.write(path, [b"text"])
        >>> storage.sync(["kept"])
        >>> storage.crash()
        >>> [entry.name for entry in storage.list("")]
        ['kept']
    """

    def __init__(self, publication: Publication = Publication.RENAME, capacity: int | None = None) -> None:
        self._publication = publication
        self._capacity = capacity
        self._files: dict[str, bytes | bytearray] = {}
        self._durable: dict[str, bytes] = {}
        self._removals: set[str] = set()
        self._unsynced: set[str] = set()
        self._lost: set[str] = set()
        self._losing = False
        self._lock = threading.RLock()

    @property
    def capabilities(self) -> StorageCapabilities:
        """The chosen publication, and no local folder."""
        return StorageCapabilities(self._publication, "memory", digest="blake2b")

    def crash(self, kept: Callable[[str], float | None] = lambda _: None) -> None:
        """Undo everything that is not durable.

        Args:
            kept: called with each file that was not synced; returns the share of its bytes that the disk holds, or None
                if the file is lost. A disk may have written any part of any of them.
        """
        with self._lock:
            shares = {path: kept(path) for path in self._unsynced}
            held = {
                path: self._files[path][: int(len(self._files[path]) * share)]
                for path, share in shares.items()
                if share is not None
            }
            self._durable |= {path: bytes(data) for path, data in held.items()}
            self._files = dict(self._durable)
            for forgotten in (self._removals, self._unsynced, self._lost):
                forgotten.clear()

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Acknowledge operations in this context, and undo them at the next crash."""
        with self._lock:
            self._losing = True
            try:
                yield
            finally:
                self._losing = False

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`.

        Raises:
            StorageFullError: if the capacity is exceeded.
        """
        written = bytearray()
        with self._lock:
            self._check_free(path)
            room = None if self._capacity is None else self._capacity - sum(map(len, self._files.values()))
            self._files[path] = written
        try:
            for chunk in chunks:
                if room is not None and len(written) + memoryview(chunk).nbytes > room:
                    raise StorageFullError(
                        f"Cannot write {path}: the {self._capacity} bytes of memory are full. Free some space."
                    )
                written += memoryview(chunk).cast("B")
        except Exception:
            self.remove(path)
            raise
        with self._lock:
            self._files[path] = data = bytes(written)
            (self._lost if self._losing else self._unsynced).add(path)
        return digest_of([memoryview(data)], "blake2b")

    def sync(self, paths: Sequence[str]) -> None:
        """Make files durable; see `Storage.sync`."""
        with self._lock:
            files = {path: self._file(path) for path in paths}
            if self._make_durable():
                self._durable |= {path: data for path, data in files.items() if path not in self._lost}
                self._unsynced.difference_update(paths)

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Return the file's bytes, in two chunks if there are two bytes or more."""
        data = memoryview(self._file(path))[start:]
        middle = len(data) // 2
        return (chunk for chunk in (data[:middle], data[middle:]) if chunk)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder; see `Storage.list`."""
        start = len(folder) + 1 if folder else 0
        with self._lock:
            found = {path[start:].partition("/")[:2]: len(self._files[path]) for path in self._below(folder)}
        return tuple(Entry(name, bool(deep), None if deep else size) for (name, deep), size in sorted(found.items()))

    def move(self, source: str, destination: str) -> None:
        """Rename a file or folder atomically; see `Storage.move`."""
        with self._lock:
            if not self._at(source):
                raise StorageError(f"Cannot move {source}: it does not exist. Check the name.")
            self._check_free(destination)
            _rename(self._files, source, destination)
            self._lost = {_renamed(path, source, destination) for path in self._lost}
            unsynced = {path: _renamed(path, source, destination) for path in self._unsynced}
            self._unsynced = {new for path, new in unsynced.items() if path == new or not self._losing}
            if self._make_durable():
                _rename(self._durable, source, destination)

    def remove(self, path: str) -> None:
        """Remove a file or a folder; see `Storage.remove`."""
        with self._lock:
            for name in self._at(path):
                del self._files[name]
                self._lost.discard(name)
                self._unsynced.discard(name)
                if not self._losing:
                    self._removals.add(name)

    def digest(self, path: str) -> Stored:
        """Return the size and digest of a file."""
        return digest_of([memoryview(self._file(path))], "blake2b")

    def damage(self, path: str, data: bytes) -> None:
        """Replace a file's bytes silently, as a failing disk does.

        Args:
            path: the file.
            data: the bytes that replace the file's.
        """
        with self._lock:
            self._file(path)
            self._files[path] = self._durable[path] = data

    def _make_durable(self) -> bool:
        """Return whether the current operation is durable; if so, make the removals before it durable too."""
        if self._losing:
            return False
        for path in self._removals:
            self._durable.pop(path, None)
        self._removals.clear()
        return True

    def _file(self, path: str) -> bytes:
        with self._lock:
            if path not in self._files:
                raise MissingFileError(f"Cannot read {path}: the file does not exist. Check the name.")
            return bytes(self._files[path])

    def _below(self, folder: str) -> tuple[str, ...]:
        with self._lock:
            return tuple(path for path in self._files if folder == "" or path.startswith(f"{folder}/"))

    def _at(self, path: str) -> tuple[str, ...]:
        """Return the file at `path`, or the files below it."""
        return (path,) if path in self._files else self._below(path)

    def _check_free(self, path: str) -> None:
        """Raise StorageError if no file can be created at `path`."""
        if not stays_inside(path):
            raise outside_error(path, "the storage")
        names = (path, *map(str, PurePosixPath(path).parents))
        taken = tuple(name for name in names if name in self._files) or self._below(path)
        if taken:
            raise StorageError(f"Cannot use the path {path}: {taken[0]} exists already. Choose another.")


def _rename(files: dict[str, Data], source: str, destination: str) -> None:
    """Rename the file at `source`, or the files below it, if they exist."""
    moved = {path: _renamed(path, source, destination) for path in files}
    for path, new in moved.items():
        if new != path:
            files[new] = files.pop(path)


def _renamed(path: str, source: str, destination: str) -> str:
    """Return the path of a file after the rename of a file or folder."""
    moved = path == source or path.startswith(f"{source}/")
    return destination + path.removeprefix(source) if moved else path
