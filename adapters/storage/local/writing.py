"""Writing a file whose bytes are not needed in memory again."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from contextlib import suppress

from hexloop.ports.storage import PAGE

BLOCK = 1 << 23
"""Bytes of which the disk gets a copy at once."""

WORTH = 1 << 20
"""Bytes that are worth a write of their own."""

_NOT_SO = frozenset({errno.EINVAL, errno.EFAULT})
"""What answers a write past the cache that would be taken through it: some file systems, and a device's memory."""


class FileWriter:
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

    def __enter__(self) -> FileWriter:
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
