"""Making written files durable, in as few waits for the disk as the system allows."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SYNC_THREADS = 8
"""Maximum number of threads that sync files."""

FILES_PER_THREAD = 3
"""Files that a thread syncs before another thread is worth its start."""

FEWEST = 3
"""Files and folders for which syncing the whole file system is worth it."""

MOST_UNWRITTEN = 1 << 23
"""Bytes, of all programs, that the system may hold in memory if the whole file system is synced: some 0.04 s."""

REPORTS_ERRORS = (5, 8)
"""The first version of Linux whose syncfs reports that a file could not be written."""

_MEMORY = "/proc/meminfo"

_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})
"""Errors of file systems that do not support fsync on a folder: some FUSE and network file systems."""


def make_durable(files: Sequence[str], folders: Sequence[str]) -> None:
    """Sync files, and the entries of folders. Raises OSError.

    One wait for the whole file system replaces one for each file where that is possible (Linux) and the system holds
    little that is not written yet; otherwise that of other programs would have to be waited for, too. Some file systems
    leave what describes the files in the cache of the disk; an fsync of the last file flushes that. Elsewhere the files
    are synced in a few threads, so that the disk can combine what they wait for.
    """
    if len(files) + len(folders) >= FEWEST and files and _is_on_one_disk(files, folders):
        sync_file_system = _syncfs()
        if sync_file_system is not None and _unwritten() <= MOST_UNWRITTEN and sync_file_system(files[-1]):
            _sync_path(files[-1])
            return
    _start_writing(files)
    _sync_all([*files, *folders])


def _is_on_one_disk(files: Sequence[str], folders: Sequence[str]) -> bool:
    return len({os.stat(path).st_dev for path in (files[-1], *folders)}) == 1


@cache
def _syncfs() -> Callable[[str], bool] | None:
    """Return what syncs the file system that a file is on, and returns whether it can; None if the system cannot.

    It raises OSError if anything could not be written.
    """
    if sys.platform != "linux" or _version(os.uname().release) < REPORTS_ERRORS:
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "syncfs"):
        return None

    def sync(path: str) -> bool:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if library.syncfs(descriptor) == 0:
                return True
            error = ctypes.get_errno()
            if error in _CANNOT_SYNC:
                return False
            raise OSError(error, os.strerror(error), path)
        finally:
            os.close(descriptor)

    return sync


def _version(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)[:2]))


def _unwritten() -> float:
    """Return how many bytes of files the system holds that are not written yet; infinity if that is unknown."""
    with suppress(OSError, ValueError):
        with open(_MEMORY, "rb") as file:
            found = dict(re.findall(rb"^(Dirty|Writeback): +(\d+) kB$", file.read(1 << 16), re.MULTILINE))
        if len(found) == 2:
            return sum(map(int, found.values())) * 1024
    return float("inf")


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
