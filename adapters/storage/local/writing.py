"""Writing a file whose bytes are not needed in memory again."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress

BLOCK = 1 << 23
"""Bytes that go to the disk at once."""


class FileWriter:
    """Writes a file past the cache of the operating system, where that can be done.

    What is written for good need not be kept in memory a second time, and a copy into the cache takes the processor and
    the memory's bandwidth from whoever computes meanwhile. Only whole blocks from aligned memory can go that way; the
    end of the file goes through the cache.
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
        """Take the next bytes. Raises OSError."""
        while data:
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

    def _write_block(self) -> None:
        if self._direct is None:
            self._direct = self._pass_cache(True)
        self._write(self._view)
        self._filled = 0

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
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
