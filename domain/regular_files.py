"""Files that may come from elsewhere: regular files only, opened once, and read up to the size they had then.

Opening a named pipe would block, and reading a device may never end; a link may lead to a file that is not meant.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import asdict

from hexloop.domain.limits import limits

CHUNK = 1 << 22
"""Bytes read at a time."""

_SAFE = (
    getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
)

FOLDER_FLAGS: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
"""The flags with which a folder is opened."""

NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""The flag with which opening a link fails; 0 where there is none."""

LINK_ERRORS = frozenset({errno.ELOOP, errno.EMLINK})
"""Errors of opening a link with `NO_FOLLOW`."""


class NotRegularError(OSError):
    """A link, a folder, a pipe or a device where a regular file is to be read."""


def open_regular(
    path: str | os.PathLike[str], links: bool = False, folder: int | None = None, flags: int = os.O_RDONLY
) -> int:
    """Open a regular file, by default to read it, and return its descriptor.

    links: whether a link at `path` is followed; links above it are. folder: the descriptor of the folder that `path`
    is relative to. Raises NotRegularError for a link, a folder, a pipe and a device, and OSError.
    """
    return _open(os.fspath(path), flags, links, folder)


def open_lines(path: str | os.PathLike[str], mode: int = 0o666, folder: int | None = None) -> int:
    """Open a file of lines to append to it, ending its last line if a crash left that incomplete.

    Return its descriptor. A link is not followed: another user may have put it there to make this one write elsewhere.
    mode: the permissions of a new file, less the umask. folder: the descriptor of the folder that `path` is relative
    to. Raises NotRegularError, also for a pipe, and OSError.
    """
    descriptor = _open(os.fspath(path), os.O_RDWR | os.O_CREAT | os.O_APPEND, folder=folder, mode=mode)
    end = os.lseek(descriptor, 0, os.SEEK_END)
    if end > 0:
        os.lseek(descriptor, end - 1, os.SEEK_SET)
        if os.read(descriptor, 1) != b"\n":
            os.write(descriptor, b"\n")
    return descriptor


def chunks_of(descriptor: int, start: int = 0) -> Iterator[memoryview]:
    """Yield the bytes of an open file from byte `start` on, up to the size that it has now. Raises OSError."""
    remaining = os.fstat(descriptor).st_size - start
    if start and remaining > 0:
        os.lseek(descriptor, start, os.SEEK_SET)
    while remaining > 0 and (chunk := os.read(descriptor, min(CHUNK, remaining))):
        remaining -= len(chunk)
        yield memoryview(chunk)


def read_file(path: str | os.PathLike[str], limit: str = "document_bytes") -> bytes:
    """Return the bytes of a regular file that a user named, which may be a link.

    limit: the name of the limit on its size. Raises OSError, with the number EFBIG for a file that is larger.
    """
    with _opened(path, links=True) as descriptor:
        most, size = asdict(limits())[limit], os.fstat(descriptor).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most}; {limit} raises this limit", str(path))
        return b"".join(chunks_of(descriptor))


def lines_in(descriptor: int, path: str, start: int, longest: int, most: int | None = None) -> Iterator[bytes]:
    """Yield the lines of an open file from byte `start` on, without their ends. path: of the file, for messages.

    Raises OSError, with the number EFBIG for a line of more than `longest` bytes, and after more than `most` bytes, the
    limits `line_bytes` and `log_bytes`.
    """
    held, number, read = bytearray(), 0, 0
    for chunk in chunks_of(descriptor, start):
        read += len(chunk)
        if most is not None and read > most:
            raise OSError(errno.EFBIG, f"it is longer than {most} bytes; log_bytes raises this limit", path)
        *ended, rest = bytes(chunk).split(b"\n")
        for line in ended:
            number += 1
            yield bytes(held + line) if held else line
            held.clear()
        held += rest
        if len(held) > longest:
            text = f"its line {number + 1} is longer than {longest} bytes; line_bytes raises this limit"
            raise OSError(errno.EFBIG, text, path)
    if held:
        yield bytes(held)


def write_atomically(path: Path, data: bytes, private: bool = False) -> None:
    """Write a file completely or, if an error occurs, not at all; create its folder if needed.

    It is written under a name that cannot be foreseen, so nothing can be put in its way, and then renamed.
    private: only its owner may read it. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    descriptor = _open(str(partial), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _opened(path: str | os.PathLike[str], links: bool = False) -> Iterator[int]:
    descriptor = open_regular(path, links)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_link(path: str, folder: int | None = None) -> bool:
    """Return whether there is a link at a path, which is not followed. folder: as for `open_regular`."""
    try:
        return stat.S_ISLNK(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def link_error(path: str) -> OSError:
    """Return the error of a link where none is followed."""
    return NotRegularError(errno.ELOOP, "it is a link, and links are not followed", path)


def irregular(path: str, mode: int = 0) -> OSError:
    """Return the error of something that is not a regular file. mode: its file mode, 0 if that is not known."""
    if stat.S_ISLNK(mode):
        return link_error(path)
    return NotRegularError(errno.EINVAL, "it is not a regular file, and only regular files are used", path)


def _open(path: str, flags: int, links: bool = False, folder: int | None = None, mode: int = 0o666) -> int:
    if not links and not NO_FOLLOW and is_link(path, folder):  # Windows
        raise link_error(path)
    try:
        descriptor = os.open(path, flags | _SAFE | (0 if links else NO_FOLLOW), mode, dir_fd=folder)
    except OSError as error:
        if error.errno in LINK_ERRORS and not links:
            raise link_error(path) from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a pipe or a socket; a folder that is to be written
            raise irregular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise irregular(path)
    return descriptor
