"""Storage in a folder on a disk of this machine."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain

from hexloop.adapters.storage import NO_SPACE, RunningDigest, check_algorithm, digest_of, new_digest, outside_error
from hexloop.domain.checkpoints.manifest import stays_inside
from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.ports.storage import PAGE, PRIVATE, Entry, Publication, StorageCapabilities, Stored

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__path__: list[str] = []  # lets hexloop._moved serve old paths such as hexloop.adapters.storage.local

CHUNK = 1 << 22
"""Bytes read at a time."""

PIECE = 1 << 25
"""Bytes written and hashed at a time."""

SMALL = 1 << 16
"""Bytes below which a file is written in one call, and chunks are joined before they are written."""

SYNC_THREADS = 8
"""Maximum number of threads that sync files."""

FILES_PER_THREAD = 3
"""Files that a thread syncs before another thread is worth its start."""

_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})
"""Errors of file systems that do not support fsync on a folder: some FUSE and network file systems."""

_ADVICE = {
    errno.ENOENT: "Check the name",
    errno.EEXIST: "Remove it, or choose another name",
    errno.EACCES: "Grant this user access, or choose another folder",
    errno.EROFS: "Choose a folder on a writable file system",
}


class LocalStorage:
    """Storage adapter for the folder `root`, which the first write creates.

    digest: "xxh3-128", which detects damage at memory speed, or "blake2b", a cryptographic hash.

    `sync` syncs files to the disk, with the folders above them, and a rename is synced before it returns. The files of
    a batch are synced in a few threads, so that the disk can combine what they wait for. Symbolic links that lead out
    of `root` are not followed. A checkpoint is published by a rename, which is atomic on POSIX file systems,
    with one exception: if another process takes the name at the same instant, the rename may replace an empty folder.
    """

    def __init__(self, root: str | os.PathLike[str], digest: str = "xxh3-128") -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._digest = check_algorithm(digest)
        self._new_above: list[str] = []

    @property
    def capabilities(self) -> StorageCapabilities:
        """Publication by rename, in a local folder."""
        return StorageCapabilities(Publication.RENAME, self._root, self._root, self._modified, new_digest)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`. A file that could not be written completely is removed."""
        with self._converting_errors(f"write {path}"):
            full = self._locate(path)
            mode = 0o600 if path.rpartition("/")[2] in PRIVATE else 0o666
            try:
                descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            except FileNotFoundError:
                self._make_folder(os.path.dirname(full))
                descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            try:
                return self._write_chunks(descriptor, path, chunks)
            finally:
                os.close(descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(full)
            raise

    def sync(self, paths: Sequence[str]) -> None:
        """Sync files, the folders above them, and those above a root that was created; see `Storage.sync`."""
        with self._converting_errors(f"sync {', '.join(paths)}"):
            files = [self._locate(path) for path in paths]
            _start_writing(files)
            self._sync_with_folders(files, paths)

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Yield the file's bytes, a few MiB at a time; see `Storage.read`."""
        with self._converting_errors(f"read {path}"):
            # Non-blocking: opening a named pipe without a writer would block forever.
            descriptor = os.open(self._locate(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageError(f"{path} in {self._root} is not a regular file, and only regular files are read.")
            if start:
                os.lseek(descriptor, start, os.SEEK_SET)
            while True:
                with self._converting_errors(f"read {path}"):
                    chunk = os.read(descriptor, CHUNK)
                if not chunk:
                    return
                yield memoryview(chunk)
        finally:
            os.close(descriptor)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder; see `Storage.list`."""
        with self._converting_errors(f"list {folder or 'everything'}"):
            try:
                with os.scandir(self._locate(folder) if folder else self._root) as entries:
                    found = [Entry(entry.name, entry.is_dir()) for entry in entries]
            except (FileNotFoundError, NotADirectoryError):
                return ()
        return tuple(sorted(found, key=lambda entry: entry.name))

    def move(self, source: str, destination: str) -> None:
        """Rename; see `Storage.move`."""
        with self._converting_errors(f"move {source} to {destination}"):
            old, new = self._locate(source), self._locate(destination)
            if os.path.lexists(new):
                raise FileExistsError(errno.EEXIST, f"{destination} exists already")
            self._make_folder(os.path.dirname(new))
            os.rename(old, new)
            self._sync_with_folders([], [destination, source])

    def remove(self, path: str) -> None:
        """Remove a file or a folder; see `Storage.remove`."""
        with self._converting_errors(f"remove {path}"):
            full = self._locate(path)
            if not os.path.lexists(full):
                return
            if os.path.isdir(full) and not os.path.islink(full):
                shutil.rmtree(full)
            else:
                os.unlink(full)

    def digest(self, path: str) -> Stored:
        """Read the file and return its size and digest."""
        return digest_of(self.read(path), self._digest)

    def _modified(self, path: str) -> float | None:
        with suppress(OSError):
            return os.stat(os.path.join(self._root, *path.split("/"))).st_mtime
        return None

    def _write_chunks(self, descriptor: int, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write the chunks; a small file in one call."""
        summary, pieces = RunningDigest(self._digest), _pieces(chunks)
        first = next(pieces, memoryview(b""))
        second = next(pieces, None) if len(first) < SMALL else None
        if second is None and len(first) < SMALL:
            with self._converting_errors(f"write {path}"):
                summary.update(first)
                while first:
                    first = first[os.write(descriptor, first) :]
            return summary.stored()
        with closing(DirectWriter(descriptor)) as writer:
            for piece in chain([first], () if second is None else [second], pieces):
                with self._converting_errors(f"write {path}"):
                    writer.write(piece)
                summary.update(piece)
            with self._converting_errors(f"write {path}"):
                writer.flush()
        return summary.stored()

    def _locate(self, path: str) -> str:
        """Return the absolute path. Raises StorageError if it leads out of the root.

        Only links below the root are followed to find out; the root itself may be one.
        """
        if not stays_inside(path):
            raise outside_error(path, self._root)
        full = self._root
        for name in path.split("/"):
            full = os.path.join(full, name)
            if os.path.islink(full):
                full = os.path.join(self._root, *path.split("/"))
                root = os.path.join(os.path.realpath(self._root), "")
                if not os.path.realpath(full).startswith(root):
                    raise outside_error(path, self._root)
                break
        return full

    def _make_folder(self, folder: str) -> None:
        """Create a folder and its parents. Above the root, remember those whose entries are to be synced."""
        top = self._root
        while not os.path.isdir(top):
            top = os.path.dirname(top)
            self._new_above.append(top)
        os.makedirs(folder, exist_ok=True)

    def _sync_with_folders(self, files: Sequence[str], below: Sequence[str]) -> None:
        """Sync files, and every folder above the paths `below` in the root; those above the root if it was created."""
        above = list(self._new_above)
        names = [path.split("/") for path in below]
        inside = {os.path.join(self._root, *each[:depth]) for each in names for depth in range(len(each))}
        _sync_all([*files, *sorted(inside.union(above), key=len, reverse=True)])
        self._new_above = [folder for folder in self._new_above if folder not in above]

    @contextmanager
    def _converting_errors(self, action: str) -> Iterator[None]:
        """Convert errors of the operating system to StorageError."""
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StorageFullError(
                    f"Cannot {action} in {self._root}: no space left ({error.strerror}). Free some space, or choose "
                    "a folder on another disk."
                ) from error
            advice = _ADVICE.get(error.errno or 0, "Check the disk, or choose another folder")
            raise StorageError(f"Cannot {action} in {self._root}: {error.strerror or error}. {advice}.") from error


def _pieces(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """Yield the bytes of the chunks, at most PIECE at a time; chunks below SMALL are copied and joined."""
    held = bytearray()
    for chunk in chunks:
        data = memoryview(chunk).cast("B")
        if len(data) < SMALL:
            held += data
        if held and max(len(held), len(data)) >= SMALL:
            yield memoryview(held)
            held = bytearray()
        if len(data) >= SMALL:
            for start in range(0, len(data), PIECE):
                yield data[start : start + PIECE]
    if held:
        yield memoryview(held)


def _start_writing(files: Sequence[str]) -> None:
    """Let the system start to write what it holds of the files, so that the first sync waits for most of the others."""
    if len(files) > 1 and hasattr(os, "posix_fadvise"):
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                with suppress(OSError):
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _sync_all(paths: Sequence[str]) -> None:
    """Sync files and folders in several threads. Raises the first OSError, after all threads have ended."""
    waiting, errors = list(reversed(paths)), list[OSError]()

    def work() -> None:
        while not errors:
            try:
                path = waiting.pop()
            except IndexError:
                return
            try:
                _sync_path(path)
            except OSError as error:
                errors.append(error)

    count = min(-(-len(paths) // FILES_PER_THREAD), SYNC_THREADS)
    others = [threading.Thread(target=work, name="hexloop sync") for _ in range(count - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]


def _sync_path(path: str) -> None:
    """Sync a file, or the entries of a folder if the file system supports that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    """Sync a file or folder; on macOS, where fsync leaves data in the disk's own cache, flush that too."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise
    os.fsync(descriptor)


_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""The fcntl command that flushes the disk's own cache, on macOS."""

BLOCK = 1 << 23
"""Bytes that are collected in an aligned buffer before they are written."""

DIRECT_MINIMUM = 1 << 20
"""Minimum number of bytes to write directly from where they are."""

_NOT_DIRECT = frozenset({errno.EINVAL, errno.EFAULT})
"""Errors of a direct write that would succeed through the page cache: some file systems, and device memory."""


class DirectWriter:
    """Writes a file past the page cache of the operating system (O_DIRECT), where that is possible.

    A checkpoint is not read again soon, and copying it into the page cache would take processor time and memory
    bandwidth from the training. Only whole pages can be written this way, to page-aligned offsets: directly from memory
    if that is page-aligned too, otherwise from a copy in an aligned block. The end of the file goes through the page
    cache. A fork during a direct write does no harm, because the bytes are not changed before they are written.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._block = mmap.mmap(-1, BLOCK)
        self._view = memoryview(self._block)
        self._filled = 0
        self._direct: bool | None = None

    def close(self) -> None:
        """Free the block, but leave the file open. What is left in the block is discarded."""
        self._view.release()
        with suppress(BufferError):  # the traceback of a failed write still references the view
            self._block.close()

    def write(self, data: memoryview) -> None:
        """Write contiguous bytes. Raises OSError."""
        while data:
            if whole := self._direct_size(data):
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
        """Write what is left in the block. Raises OSError."""
        self._direct = self._set_direct(False)
        self._write_block()

    def _direct_size(self, data: memoryview) -> int:
        """Return how many of the bytes can be written directly from memory at the current offset."""
        if len(data) < DIRECT_MINIMUM or self._filled % PAGE or _address(data) % PAGE:
            return 0
        return len(data) // PAGE * PAGE

    def _write_block(self) -> None:
        """Write what is in the block: whole pages, unless direct writes are off."""
        if self._direct is None:
            self._direct = self._set_direct(True)
        self._write(self._view[: self._filled])
        self._filled = 0

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                if error.errno not in _NOT_DIRECT or not self._direct:
                    raise
                self._direct = self._set_direct(False)  # unsupported by the file system, or from this offset on

    def _set_direct(self, wanted: bool) -> bool:
        """Turn direct writes on or off; return whether they are on now."""
        if direct := getattr(os, "O_DIRECT", 0):
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            with suppress(OSError):
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | direct if wanted else flags & ~direct)
                return wanted
        return False


def _address(data: memoryview) -> int:
    """Return the address of a writable buffer; an unaligned one for read-only buffers, whose address is unknown."""
    return 1 if data.readonly else ctypes.addressof(ctypes.c_char.from_buffer(data))
