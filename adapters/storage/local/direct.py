"""Writing files past the page cache of the operating system."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from contextlib import suppress

from hexloop.ports.storage import PAGE

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

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
