"""A folder that others may write to: what is in it is used through its handle, and no link on the way is followed."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from attrs import field, frozen

from hexloop.domain.limits import limits
from hexloop.domain.regular_files import (
    FOLDER_FLAGS,
    NO_FOLLOW,
    NotRegularError,
    chunks_of,
    irregular,
    is_link,
    lines_in,
    link_error,
    open_lines,
    open_regular,
)
from hexloop.domain.run_folder import OWN
from hexloop.ports.storage import Entry

MOST_ENTRIES = 10_000
"""How many names of a folder are looked at."""

DEEPEST = 50
"""How many folders may be nested in what is removed or walked through."""

_HAS_HANDLES = {os.open, os.mkdir, os.unlink, os.rename, os.stat} <= os.supports_dir_fd and os.scandir in os.supports_fd


def place_of(path: str | os.PathLike[str]) -> tuple[Folder, str]:
    """Return the folder of a file of a run, and its name there. hexloop's own folder must not be a link."""
    above, name = os.path.split(_absolute(path))
    root, own = os.path.split(above)
    return (Folder(root, own) if own == OWN else Folder(above)), name


def open_in_run(path: str | os.PathLike[str]) -> int:
    """Open a file of a run to read it, and return its descriptor; see `place_of`. Raises OSError as `Folder.open`."""
    folder, name = place_of(path)
    return folder.open(name)


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.fspath(path))


@frozen
class Folder:
    """The folder `inside` below `root`.

    root: a folder that the user named; it may be a link, or below one. inside: the path from there, with "/" between
    names, or "" for the root itself. No name on it may be a link, nor on the paths that methods are given, which are
    relative to this folder.

    Every method looks the folder up again, so it need not exist yet. Raises OSError, and NotRegularError, which names
    the place, for a link, and where a file is expected for whatever is not a regular file.
    """

    root: str = field(converter=_absolute)
    inside: str = ""

    def below(self, path: str) -> Folder:
        """Return a folder in this one."""
        return Folder(self.root, "/".join(filter(None, [self.inside, path])))

    def location(self, path: str = "") -> str:
        """Return an absolute path, for messages and for libraries that open files by themselves."""
        return os.path.join(self.root, *_names(self.root, self.below(path).inside))

    # Looking

    def exists(self, path: str = "") -> bool:
        """Return whether there is a folder, not reached through a link."""
        with suppress(OSError), self._entered(path):
            return True
        return False

    def status(self, path: str) -> os.stat_result:
        """Return the status of what is at a path, of the link itself if it is one."""
        with self._above(path) as (name, handle):
            return os.stat(name, dir_fd=handle, follow_symlinks=False)

    def own_status(self) -> os.stat_result:
        """Return the status of this folder itself."""
        with self._entered() as (place, handle):
            return os.stat(place if handle is None else handle)

    def entries(self, path: str = "", most: int = MOST_ENTRIES) -> list[Entry]:
        """Return what is in a folder, in order, without links; at most `most` names are looked at.

        Return nothing if there is no folder. The sizes are those of regular files, and None for anything else.
        """
        try:
            with self._entered(path) as (place, handle), os.scandir(place if handle is None else handle) as entries:
                found = [_entry(each) for each in islice(entries, most)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((each for each in found if each is not None), key=lambda each: each.name)

    def files(self, path: str = "", most: int = 10 * MOST_ENTRIES) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the paths of all regular files below a folder, relative to it, with their status.

        Raises NotRegularError for anything that is neither a regular file nor a folder, if more than `DEEPEST` folders
        are nested, and if there are more than `most` names.
        """
        pending, left = [""], most
        while pending:
            inner = pending.pop()
            with (
                self._entered("/".join(filter(None, [path, inner]))) as (place, handle),
                os.scandir(place if handle is None else handle) as entries,
            ):
                listed = [(each.name, each.stat(follow_symlinks=False)) for each in islice(entries, left + 1)]
            left -= len(listed)
            if left < 0 or inner.count("/") > DEEPEST:
                raise _too_much(self.location(path))
            listed.sort(key=lambda each: each[0])
            pending += [_joined(inner, name) for name, each in reversed(listed) if stat.S_ISDIR(each.st_mode)]
            for name, status in listed:
                if stat.S_ISREG(status.st_mode):
                    yield _joined(inner, name), status
                elif not stat.S_ISDIR(status.st_mode):
                    raise irregular(self.location("/".join(filter(None, [path, inner, name]))), status.st_mode)

    # Reading

    def open(self, path: str) -> int:
        """Open a regular file to read it, and return its descriptor."""
        with self._above(path) as (name, handle), _naming(self.location(path)):
            return open_regular(name, folder=handle)

    def read(self, path: str, most: int) -> bytes:
        """Return the bytes of a file. Raises OSError, with the number EFBIG, if it has more than `most`."""
        descriptor = self.open(path)
        try:
            size = os.fstat(descriptor).st_size
            if size > most:
                raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most}", self.location(path))
            return b"".join(chunks_of(descriptor))
        finally:
            os.close(descriptor)

    def lines(self, path: str, start: int = 0, longest: int | None = None, most: int | None = None) -> Iterator[bytes]:
        """Yield the lines of a file from byte `start` on, without their ends.

        longest: bytes of a line, by default the limit `line_bytes`. most: bytes altogether; no bound if unset.
        Raises OSError, with the number EFBIG beyond them.
        """
        descriptor = self.open(path)
        try:
            yield from lines_in(descriptor, self.location(path), start, longest or limits().line_bytes, most)
        finally:
            os.close(descriptor)

    def chunks(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Yield the bytes of a file from byte `start` on; it is opened when the first are asked for."""
        descriptor = self.open(path)
        try:
            yield from chunks_of(descriptor, start)
        finally:
            os.close(descriptor)

    # Writing

    def make(self, path: str = "", mode: int = 0o777) -> None:
        """Make a folder and those above it, the root included, unless they exist. mode: of new ones below the root."""
        os.makedirs(self.root, exist_ok=True)
        names = _names(self.root, self.below(path).inside)
        for depth, name in enumerate(names):
            above = Folder(self.root, "/".join(names[:depth]))
            with above._entered() as (place, handle), suppress(FileExistsError):
                os.mkdir(name if handle is not None else os.path.join(place, name), mode, dir_fd=handle)
        with self._entered(path):
            pass

    def open_lines(self, path: str, mode: int = 0o666) -> int:
        """Open a file of lines to append to it; see `regular_files.open_lines`. Its folder is made if needed."""
        self.make(path.rpartition("/")[0])
        with self._above(path) as (name, handle), _naming(self.location(path)):
            return open_lines(name, mode, folder=handle)

    def open_new(self, path: str, mode: int = 0o666) -> int:
        """Create a file that does not exist, and return its descriptor. Raises FileExistsError."""
        with self._above(path) as (name, handle):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            return os.open(name, flags | NO_FOLLOW, mode, dir_fd=handle)

    def open_own(self, path: str) -> int:
        """Open a file to write in it, and return its descriptor. Raises NotRegularError if it has another name, too."""
        with self._above(path) as (name, handle), _naming(self.location(path)):
            descriptor = open_regular(name, folder=handle, flags=os.O_WRONLY)
        if os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            raise NotRegularError(errno.EMLINK, "it is another name of a file elsewhere", self.location(path))
        return descriptor

    def replace(self, path: str, data: bytes, mode: int = 0o666) -> None:
        """Replace a file, or whatever has its name, completely or not at all. Its folder is made if needed."""
        self.make(path.rpartition("/")[0])
        with self._written(path, data, mode) as partial:
            self.move(partial, path)

    def create(self, path: str, data: bytes, mode: int = 0o666) -> None:
        """Write a new file, complete from the moment at which it appears. Raises FileExistsError."""
        with self._written(path, data, mode) as partial, self._above(path) as (name, handle):
            source = os.path.join(os.path.dirname(name), partial.rpartition("/")[2])
            try:
                os.link(source, name, src_dir_fd=handle, dst_dir_fd=handle, follow_symlinks=False)
            except FileExistsError:
                raise
            except (OSError, NotImplementedError):  # a file system without links
                with suppress(FileNotFoundError):
                    os.stat(name, dir_fd=handle, follow_symlinks=False)
                    raise FileExistsError(errno.EEXIST, "it exists already", self.location(path)) from None
                self.move(partial, path)

    def link(self, source: str | os.PathLike[str], path: str) -> None:
        """Make a hard link to a file of this machine, or a copy where the file system has no links.

        The folders above it are made. source: a path that the program chose, which is not a link itself.
        """
        self.make(path.rpartition("/")[0])
        with self._above(path) as (name, handle):
            try:
                os.link(source, name, dst_dir_fd=handle, follow_symlinks=False)
            except FileExistsError:
                raise
            except (OSError, NotImplementedError):
                pass  # a file system without links, or with this file on another one
            else:
                status = os.stat(name, dir_fd=handle, follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    os.unlink(name, dir_fd=handle)
                    raise irregular(os.fspath(source), status.st_mode)
                return
        read = open_regular(source)
        try:
            with os.fdopen(self.open_new(path), "wb") as written:
                for chunk in chunks_of(read):
                    written.write(chunk)
        finally:
            os.close(read)

    def move(self, path: str, to: str) -> None:
        """Rename, replacing a file."""
        with self._above(path) as (name, handle), self._above(to) as (new, target):
            os.replace(name, new, src_dir_fd=handle, dst_dir_fd=target)

    def remove(self, path: str = "") -> None:
        """Remove a file, a link itself, or a folder with all that is in it; what is not there is ignored."""
        with suppress(FileNotFoundError), self._above(path) as (name, handle):
            if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                _remove_tree(self, path)
            else:
                os.unlink(name, dir_fd=handle)

    def remove_empty(self, path: str = "") -> None:
        """Remove a folder if it is empty."""
        with suppress(OSError), self._above(path) as (name, handle):
            os.rmdir(name, dir_fd=handle)

    # Handles

    @contextmanager
    def _entered(self, path: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield the absolute path and, where the system has such, the handle of a folder below this one."""
        inside = self.below(path).inside
        names = _names(self.root, inside)
        if not _HAS_HANDLES:
            yield _checked(self.root, names), None
            return
        handle = os.open(self.root, FOLDER_FLAGS)
        try:
            for depth, name in enumerate(names, 1):
                try:
                    inner = os.open(name, FOLDER_FLAGS | NO_FOLLOW, dir_fd=handle)
                except OSError as error:
                    place = os.path.join(self.root, *names[:depth])
                    if is_link(name, handle):
                        raise link_error(place) from None
                    raise type(error)(error.errno, error.strerror, place) from None
                os.close(handle)
                handle = inner
            yield os.path.join(self.root, *names), handle
        finally:
            os.close(handle)

    @contextmanager
    def _above(self, path: str) -> Iterator[tuple[str, int | None]]:
        """Yield what a path is called in the folder above it, and the handle of that folder."""
        above, _, name = self.below(path).inside.rpartition("/")
        _names(self.root, name or "/")
        with Folder(self.root, above)._entered() as (place, handle):
            yield (os.path.join(place, name) if handle is None else name), handle

    @contextmanager
    def _written(self, path: str, data: bytes, mode: int) -> Iterator[str]:
        """Write a file of another name, which is removed at the end if it is still there."""
        above, _, name = path.rpartition("/")
        partial = _joined(above, f".{name[:100]}.{secrets.token_hex(8)}")
        descriptor = self.open_new(partial, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            yield partial
        finally:
            with suppress(OSError):
                self.remove(partial)


def is_private(status: os.stat_result) -> bool:
    """Return whether what has this status belongs to this user, and no other one can write to it."""
    if not hasattr(os, "geteuid"):  # Windows
        return True
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _names(root: str, path: str) -> list[str]:
    """Return the names on a path. Raises NotRegularError if it may lead out of `root`."""
    names = path.split("/") if path else []
    if any(each in ("", ".", "..") or "\0" in each or (os.sep != "/" and os.sep in each) for each in names):
        raise NotRegularError(errno.EINVAL, f"the name {path!r:.200} is not that of a file in it", root)
    return names


def _entry(entry: os.DirEntry[str]) -> Entry | None:
    """Return what a folder has under a name; None for a link, and for what is no longer there."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return None
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    return Entry(entry.name, stat.S_ISDIR(status.st_mode), size)


def _checked(root: str, names: list[str]) -> str:
    """Return the path of a folder on a system without handles. Raises OSError if it is none, or behind a link."""
    place = root
    for name in ["", *names]:
        place = os.path.join(place, name) if name else place
        if name and is_link(place):
            raise link_error(place)
        if not stat.S_ISDIR(os.stat(place).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", place)
    return place


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Let errors name the whole path of a file that is opened by its name in a folder."""
    try:
        yield
    except OSError as error:
        error.filename = place
        raise


def _remove_tree(folder: Folder, path: str) -> None:
    """Remove a folder below another, and links in it but not what they lead to."""
    with folder._above(path) as (name, handle):
        if handle is None:
            shutil.rmtree(name)
        else:
            _remove_in(handle, name, 0, folder.location(path))


def _remove_in(above: int, name: str, depth: int, place: str) -> None:
    if depth > DEEPEST:
        raise _too_much(place)
    handle = os.open(name, FOLDER_FLAGS | NO_FOLLOW, dir_fd=above)
    try:
        with os.scandir(handle) as entries:
            listed = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
        for each, is_folder in listed:
            with suppress(FileNotFoundError):
                if is_folder:
                    _remove_in(handle, each, depth + 1, place)
                else:
                    os.unlink(each, dir_fd=handle)
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=above)


def _too_much(place: str) -> OSError:
    return NotRegularError(
        errno.EINVAL, "it has more files, or deeper folders, than hexloop makes; remove it by hand", place
    )
