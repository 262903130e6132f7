"""Reading here and there in a file whose bytes come in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hexloop.domain.errors import CheckpointError


class Stream:
    """A file that is opened anew only where a read lies before the end of the last one."""

    def __init__(self, open_file: Callable[[], Iterator[memoryview]]) -> None:
        self._open = open_file
        self._chunks: Iterator[memoryview] = iter(())
        self._rest = memoryview(b"")
        self._position = -1

    def read(self, start: int, size: int) -> memoryview:
        """The `size` bytes from byte `start` on, the reader's own. Raises CheckpointError where the file is shorter.

        Memory is taken as the bytes come: a file that promises more than it has costs what it has.
        """
        if not 0 <= self._position <= start:
            self._chunks, self._rest, self._position = self._open(), memoryview(b""), 0
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
