"""Storage in a folder on a disk of this machine."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from typing import Any

from hexloop.adapters.storage import NO_SPACE, RunningDigest, check_algorithm, digest_of, new_digest, outside_error
from hexloop.adapters.storage.local.direct import DirectWriter
from hexloop.adapters.storage.local.syncing import make_durable
from hexloop.domain.checkpoints.manifest import stays_inside
from hexloop.domain.errors import IrregularFileError, MissingFileError, StorageError, StorageFullError
from hexloop.domain.holes import bytes_on_disk, may_be_hollow
from hexloop.domain.regular_files import LINK_ERRORS, NO_FOLLOW, NotRegularError, chunks_of, open_regular
from hexloop.ports.storage import PRIVATE, Entry, Publication, StorageCapabilities, Stored

PIECE = 1 << 25
"""Bytes written and hashed at a time."""

SMALL = 1 << 16
"""Bytes below which a file is written in one call, and chunks are joined before they are written."""

REMOVALS = 100
"""How often the removal of a folder is tried that other processes write to, with `PAUSE` seconds in between."""

PAUSE = 0.01

_FOLDER: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})

_ADVICE = {
    errno.ENOENT: "Check the name",
    errno.EEXIST: "Remove it, or choose another name",
    errno.EACCES: "Grant this user access, or choose another folder",
    errno.EROFS: "Choose a folder on a writable file system",
}


class LocalStorage:
    """Storage adapter for the folder `root`, which the first write creates.

    `sync` syncs files to the disk, with the folders above them, and a rename is synced before it returns. Symbolic
    links that lead out of `root` are not followed. A checkpoint is published by a rename, which is atomic on POSIX file
    systems, with one exception: if another process takes the name at the same instant, the rename may replace an empty
    folder.

    Args:
        root: the folder.
        digest: "xxh3-128", which detects damage at memory speed, or "blake2b", a cryptographic hash.
    """

    def __init__(self, root: str | os.PathLike[str], digest: str = "xxh3-128") -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._digest = check_algorithm(digest)
        self._new_above: list[str] = []

    @property
    def capabilities(self) -> StorageCapabilities:
        """Publication by rename, in a local folder."""
        root = self._root
        return StorageCapabilities(Publication.RENAME, root, root, self._modified, new_digest, self._digest)

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
            self._make_durable([self._locate(path) for path in paths], paths)

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Yield the file's bytes up to the size it has when it is opened, a few MiB at a time; see `Storage.read`."""
        with self._converting_errors(f"read {path}"):
            descriptor = self._open(path)
        try:
            chunks = chunks_of(descriptor, start)
            while True:
                with self._converting_errors(f"read {path}"):
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                yield chunk
        finally:
            os.close(descriptor)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder; see `Storage.list`."""
        with self._converting_errors(f"list {folder or 'everything'}"):
            try:
                with os.scandir(self._locate(folder) if folder else self._root) as entries:
                    found = [Entry(entry.name, entry.is_dir(), *_sizes_of(entry)) for entry in entries]
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
            self._make_durable([], [destination, source])

    def remove(self, path: str) -> None:
        """Remove a file or a folder; see `Storage.remove`."""
        with self._converting_errors(f"remove {path}"):
            full = self._locate(path)
            with suppress(FileNotFoundError, NotADirectoryError):  # another process may remove it, too
                if stat.S_ISDIR(os.lstat(full).st_mode):
                    _remove_tree(full)
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

    def _open(self, path: str) -> int:
        """Open a file below the root to read it.

        No link is followed, as one may appear at any moment; one that is found is resolved first, and must lead to a
        place in the root.
        """
        if not stays_inside(path):
            raise outside_error(path, self._root)
        if os.open not in os.supports_dir_fd:  # Windows
            return open_regular(os.path.realpath(self._locate(path)))
        try:
            return self._open_without_links(path.split("/"))
        except OSError as error:
            if error.errno not in LINK_ERRORS | {errno.ENOTDIR}:
                raise
        resolved = os.path.relpath(os.path.realpath(self._locate(path)), os.path.realpath(self._root))
        if not stays_inside(resolved):  # it has changed since `_locate` looked
            raise outside_error(path, self._root)
        return self._open_without_links(resolved.split("/"))

    def _open_without_links(self, names: Sequence[str]) -> int:
        folder = os.open(self._root, _FOLDER)
        try:
            for name in names[:-1]:
                inner = os.open(name, _FOLDER | NO_FOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            return open_regular(names[-1], folder=folder)
        finally:
            os.close(folder)

    def _make_folder(self, folder: str) -> None:
        """Create a folder and its parents. Above the root, remember those whose entries are to be synced."""
        top = self._root
        while not os.path.isdir(top):
            top = os.path.dirname(top)
            self._new_above.append(top)
        os.makedirs(folder, exist_ok=True)

    def _make_durable(self, files: Sequence[str], below: Sequence[str]) -> None:
        """Sync files, and every folder above the paths `below` in the root; those above the root if it was created."""
        above = list(self._new_above)
        names = [path.split("/") for path in below]
        inside = {os.path.join(self._root, *each[:depth]) for each in names for depth in range(len(each))}
        make_durable(files, sorted(inside.union(above), key=len, reverse=True))
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
            if isinstance(error, NotRegularError):
                raise IrregularFileError(f"Cannot {action} in {self._root}: {error.strerror}.") from error
            advice = _ADVICE.get(error.errno or 0, "Check the disk, or choose another folder")
            kind = MissingFileError if error.errno == errno.ENOENT else StorageError
            raise kind(f"Cannot {action} in {self._root}: {error.strerror or error}. {advice}.") from error


def _sizes_of(entry: os.DirEntry[str]) -> tuple[int | None, int | None]:
    """Return the size of a regular file, and its bytes on the disk; None for anything else, and for what is gone."""
    with suppress(OSError):
        if entry.is_file():
            found = entry.stat()
            return found.st_size, _on_disk(entry.path) if may_be_hollow(found) else found.st_size
    return None, None


def _on_disk(path: str) -> int:
    descriptor = open_regular(path, links=True)
    try:
        return bytes_on_disk(descriptor)
    finally:
        os.close(descriptor)


def _remove_tree(folder: str) -> None:
    """Remove a folder, although other processes may remove and create files in it at the same time."""

    def skip_missing(_: object, __: str, raised: Any) -> None:
        error = raised[1] if isinstance(raised, tuple) else raised  # before Python 3.12
        if not isinstance(error, FileNotFoundError):
            raise error

    handler: Any = {"onexc" if sys.version_info >= (3, 12) else "onerror": skip_missing}
    for attempt in range(1, REMOVALS + 1):
        try:
            shutil.rmtree(folder, **handler)
        except OSError as error:
            if error.errno not in _NOT_EMPTY or attempt == REMOVALS:
                raise
            time.sleep(PAUSE)
        else:
            return


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
