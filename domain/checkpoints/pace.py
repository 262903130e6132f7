"""How fast a checkpoint is written beside the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

PIECE = 1 << 23
"""Bytes between two rests."""


class Pace:
    """After each piece a rest as long as the piece took, until somebody waits for the whole.

    Writing takes memory, disk and processor from the step beside it. Spread over more steps, it holds up none of them
    for long, and ends well before the next save is due.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        rest: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._now, self._rest = now, rest
        self._waited_for = threading.Event()

    @classmethod
    def without_rest(cls) -> Pace:
        """That of a save that somebody waits for from its beginning on."""
        pace = cls()
        pace.hurry()
        return pace

    def hurry(self) -> None:
        """Somebody waits: rest no more."""
        self._waited_for.set()

    def pieces(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The bytes of the chunks, for somebody who writes each piece before asking for the next."""
        for chunk in chunks:
            data = memoryview(chunk).cast("B")
            for start in range(0, len(data), PIECE):
                began = self._now()
                yield data[start : start + PIECE]
                if not self._waited_for.is_set():
                    self._rest(self._waited_for, self._now() - began)
