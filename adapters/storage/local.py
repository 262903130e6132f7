"""Writing a file whose bytes are not needed in memory again."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from hexloop.adapters.storage.digests import RunningDigest, check_algorithm
from hexloop.domain.checkpoints.names import stays_inside
from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.ports.storage import PAGE, Entry, Publication, StorageCapabilities, Stored

CHUNK = 1 << 22
"""Bytes that are read at a time."""

PIECE = 1 << 25
"""Bytes that are written and hashed at a time."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})
"""What a file system answers that has no such way of syncing: some of FUSE's and of the network's, for folders."""

_ADVICE = {
    errno.ENOENT: "check the name",
    errno.EEXIST: "remove it, or choose another name",
    errno.EACCES: "give this user the right to, or choose another folder",
    errno.EROFS: "choose a folder that can be written to",
}


class LocalStorage:
    """Answers the Storage port with the folder `root`, which the first write creates.

    digest: "xxh3-128", which finds damage at the speed of memory, or "blake2b", which nobody can forge.
    A write and a rename are forced to the disk before they return, and so is every folder that they changed. A symbolic
    link that leads out of `root` is not followed. Publishes by rename: atomic on POSIX file systems, with an exception:
    a rename onto a name that another process takes at the same instant may replace an empty folder.
    """

    def __init__(self, root: str | os.PathLike[str], digest: str = "xxh3-128") -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._digest = check_algorithm(digest)

    @property
    def capabilities(self) -> StorageCapabilities:
        """A folder that appears whole by one rename."""
        return StorageCapabilities(Publication.RENAME, self._root, self._root, self._modified)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`. What could not be written whole is removed."""
        with self._reporting(f"write {path}"):
            full = self._locate(path)
            top = self._make_folder(os.path.dirname(full))
            descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                stored = self._fill(descriptor, path, chunks)
            finally:
                os.close(descriptor)
            with self._reporting(f"write {path}"):
                _sync_folders(os.path.dirname(full), top)
        except BaseException:
            with suppress(OSError):
                os.unlink(full)
            raise
        return stored

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """The file's bytes, a few MiB at a time; see `Storage.read`."""
        with self._reporting(f"read {path}"):
            # Without waiting: a pipe that nobody writes to would keep the opener for ever.
            descriptor = os.open(self._locate(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageError(f"{path} in {self._root} is no regular file, and nothing else is ever read.")
            if start:
                os.lseek(descriptor, start, os.SEEK_SET)
            while True:
                with self._reporting(f"read {path}"):
                    chunk = os.read(descriptor, CHUNK)
                if not chunk:
                    return
                yield memoryview(chunk)
        finally:
            os.close(descriptor)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """The names in a folder; see `Storage.list`."""
        with self._reporting(f"list {folder or 'all'}"):
            try:
                with os.scandir(self._locate(folder) if folder else self._root) as entries:
                    found = [Entry(entry.name, entry.is_dir()) for entry in entries]
            except (FileNotFoundError, NotADirectoryError):
                return ()
        return tuple(sorted(found, key=lambda entry: entry.name))

    def move(self, source: str, destination: str) -> None:
        """Rename; see `Storage.move`."""
        with self._reporting(f"move {source} to {destination}"):
            old, new = self._locate(source), self._locate(destination)
            if os.path.lexists(new):
                raise FileExistsError(errno.EEXIST, f"{destination} is there already")
            top = self._make_folder(os.path.dirname(new))
            os.rename(old, new)
            _sync_folders(os.path.dirname(new), top)
            _sync_folders(os.path.dirname(old), self._root)

    def remove(self, path: str) -> None:
        """Remove a file or a folder; see `Storage.remove`."""
        with self._reporting(f"remove {path}"):
            full = self._locate(path)
            if not os.path.lexists(full):
                return
            if os.path.isdir(full) and not os.path.islink(full):
                shutil.rmtree(full)
            else:
                os.unlink(full)
            _sync_folders(os.path.dirname(full), self._root)

    def digest(self, path: str) -> Stored:
        """Size and digest of a file, read through."""
        summary = RunningDigest(self._digest)
        for chunk in self.read(path):
            summary.update(chunk)
        return summary.stored()

    def _modified(self, path: str) -> float | None:
        with suppress(OSError):
            return os.stat(os.path.join(self._root, *path.split("/"))).st_mtime
        return None

    def _fill(self, descriptor: int, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write the chunks and force them to the disk."""
        summary = RunningDigest(self._digest)
        with DirectWriter(descriptor) as writer:
            for chunk in chunks:
                data = memoryview(chunk).cast("B")
                for start in range(0, len(data), PIECE):
                    piece = data[start : start + PIECE]
                    with self._reporting(f"write {path}"):
                        writer.write(piece)
                    summary.update(piece)
            with self._reporting(f"write {path}"):
                writer.flush()
                _sync(descriptor)
        return summary.stored()

    def _locate(self, path: str) -> str:
        """Where `path` is. Raises StorageError where it leads out of the root."""
        full = os.path.join(self._root, *path.split("/"))
        if not stays_inside(path) or not os.path.realpath(full).startswith(
            os.path.join(os.path.realpath(self._root), "")
        ):
            raise StorageError(
                f"You chose the path {path!r}, which leads out of {self._root}, and nothing outside of it is ever "
                "touched; choose a path within it."
            )
        return full

    def _make_folder(self, folder: str) -> str:
        """Create a folder with those above it; gives back the lowest one, at or above the root, that was there."""
        top = self._root
        while not os.path.isdir(top):
            top = os.path.dirname(top)
        os.makedirs(folder, exist_ok=True)
        return top

    @contextmanager
    def _reporting(self, action: str) -> Iterator[None]:
        """Turn what the operating system says into hexloop's errors."""
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            if error.errno in _FULL:
                raise StorageFullError(
                    f"You chose to {action} in {self._root}, but there is no room left ({error.strerror}); "
                    "make room, or choose a folder on another disk."
                ) from error
            advice = _ADVICE.get(error.errno or 0, "check the disk, or choose another folder")
            raise StorageError(
                f"You chose to {action} in {self._root}, but {error.strerror or error}; {advice}."
            ) from error


def _sync_folders(folder: str, top: str) -> None:
    """Force the names in `folder`, and in those above it up to `top`, to the disk."""
    while True:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync(descriptor)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise
        finally:
            os.close(descriptor)
        if folder == top:
            return
        folder = os.path.dirname(folder)


def _sync(descriptor: int) -> None:
    """Force to the disk; where fsync leaves it in the disk's own cache, as on macOS, out of that, too."""
    if _FULL_SYNC is not None:
        import fcntl

        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise
    os.fsync(descriptor)


def _full_sync() -> int | None:
    """The command of fcntl that empties a disk's own cache; None where the system has none."""
    try:
        import fcntl
    except ImportError:
        return None
    return getattr(fcntl, "F_FULLFSYNC", None)


_FULL_SYNC = _full_sync()

BLOCK = 1 << 23
"""Bytes of which the disk gets a copy at once."""

WORTH = 1 << 20
"""Bytes that are worth a write of their own."""

_NOT_SO = frozenset({errno.EINVAL, errno.EFAULT})
"""What answers a write past the cache that would be taken through it: some file systems, and a device's memory."""


class DirectWriter:
    """Writes a file past the cache of the operating system, where that can be done.

    What is written for good need not be kept in memory a second time, and a copy into the cache takes the processor and
    the memory's bandwidth from whoever computes meanwhile. Only whole pages can go that way, to where a page of the
    file begins: from where they lie, or, where that is not at the beginning of a page, from a copy of a block. The end
    of the file goes through the cache. A process that forks meanwhile does no harm, as it would to reading past the
    cache: nobody changes the bytes before they are written.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._block = mmap.mmap(-1, BLOCK)
        self._view = memoryview(self._block)
        self._filled = 0
        self._direct: bool | None = None

    def __enter__(self) -> DirectWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._view.release()
        with suppress(BufferError):  # what a write has failed of is still seen from the error's traceback
            self._block.close()

    def write(self, data: memoryview) -> None:
        """Take the next bytes, contiguous ones. Raises OSError."""
        while data:
            if whole := self._in_place(data):
                self._write_block()
                self._write(data[:whole])
                data = data[whole:]
                continue
            taken = min(len(data), BLOCK - self._filled)
            self._view[self._filled : self._filled + taken] = data[:taken]
            self._filled += taken
            data = data[taken:]
            if self._filled == BLOCK:
                self._write_block()

    def flush(self) -> None:
        """Write what is left. Raises OSError."""
        self._direct = self._pass_cache(False)
        self._write(self._view[: self._filled])
        self._filled = 0

    def _in_place(self, data: memoryview) -> int:
        """How many of the bytes can be written from where they lie, to where the file has come to."""
        if len(data) < WORTH or self._filled % PAGE or _address(data) % PAGE:
            return 0
        return len(data) // PAGE * PAGE

    def _write_block(self) -> None:
        """Write what the block holds, which is whole pages."""
        if self._direct is None:
            self._direct = self._pass_cache(True)
        self._write(self._view[: self._filled])
        self._filled = 0

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                if error.errno not in _NOT_SO or not self._direct:
                    raise
                self._direct = self._pass_cache(False)  # the file system does not take it so, or not from there on

    def _pass_cache(self, wished: bool) -> bool:
        """Switch the way; gives whether writes go past the cache now."""
        direct = getattr(os, "O_DIRECT", 0)
        if not direct:
            return False
        import fcntl

        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        with suppress(OSError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | direct if wished else flags & ~direct)
            return wished
        return False


def _address(data: memoryview) -> int:
    """Where in memory the bytes begin; where that cannot be told, an address that is no page's."""
    return 1 if data.readonly else ctypes.addressof(ctypes.c_char.from_buffer(data))
