"""How fast a checkpoint is written beside the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

PIECE = 1 << 25
"""Bytes between two rests."""

SHARE = 1 / 8
"""The part of the time between two saves in which there are rests; at most half of it is rested."""


class Pace:
    """After each piece a rest as long as the piece took, for some seconds, or until somebody waits for the whole.

    Writing takes memory, disk and processor from the step beside it. Spread over more steps, it holds up none of them
    for long.
    """

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
        rest: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._now, self._rest = now, rest
        self._until = now() + seconds
        self._waited_for = threading.Event()

    @classmethod
    def without_rest(cls) -> Pace:
        """That of a save that somebody waits for from its beginning on."""
        return cls(0.0)

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
                ended = self._now()
                if self.rests_at(ended):
                    self._rest(self._waited_for, ended - began)

    def rests_at(self, moment: float) -> bool:
        """Whether a piece that ends then is followed by a rest."""
        return moment < self._until and not self._waited_for.is_set()


class Pacer:
    """Gives each save of a run its pace: the rests end so early that a slow disk is done before the next save is due.

    It takes the next save to be as far away as the last one, or the beginning, is.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = now()

    def next(self) -> Pace:
        """The pace of a save that begins now."""
        since, self._last = self._now() - self._last, self._now()
        return Pace(since * SHARE, self._now)
