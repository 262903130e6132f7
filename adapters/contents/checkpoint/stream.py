"""Reading here and there in files whose bytes come in order, from anywhere on."""

from __future__ import annotations

from collections.abc import Iterator

from hexloop.domain.errors import CheckpointError
from hexloop.ports.contents import OpenFile

NEAR = 1 << 22
"""Bytes that are read in passing rather than to open the file anew behind them."""


class Stream:
    """The files of a checkpoint, of which one is open at a time: however many there are, one chunk is in memory.

    A file is opened anew only where a read lies before the end of the last one, far behind it, or in another file.
    """

    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file
        self._path: str | None = None
        self._chunks: Iterator[memoryview] = iter(())
        self._rest = memoryview(b"")
        self._position = 0

    def read(self, path: str, start: int, size: int) -> memoryview:
        """The `size` bytes from byte `start` on, the reader's own. Raises CheckpointError where the file is shorter.

        Memory is taken as the bytes come: a file that promises more than it has costs what it has.
        """
        if path != self._path or not 0 <= start - self._position <= max(NEAR, len(self._rest)):
            self._chunks, self._rest, self._position = self._open(path, start), memoryview(b""), start
            self._path = path
        while self._position < start:
            self._take(start - self._position)
        data = bytearray()
        while len(data) < size:
            data += self._take(size - len(data))
        return memoryview(data)

    def _take(self, most: int) -> memoryview:
        """The next bytes, at least one and at most `most`."""
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CheckpointError(f"The file ends after {self._position} bytes, before what it should hold.")
            self._rest = chunk
        piece, self._rest = self._rest[:most], self._rest[most:]
        self._position += len(piece)
        return piece
