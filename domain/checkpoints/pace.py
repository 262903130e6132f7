"""How fast a checkpoint is written beside the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

PIECE = 1 << 25
"""Bytes between two rests."""

SHARE = 1 / 8
"""The part of the time between two saves that writing waits to begin at most; for as long again it rests half of it."""

LONGEST_WAIT = 10.0
"""Seconds. A step that takes longer does not notice the writing; and a program that ends at once waits for no more."""


class Pace:
    """A wait for the beginning, and after each piece a rest as long as it took, until somebody waits for the whole.

    Writing takes memory, disk and processor from the step beside it. Kept out of the step that made the copy, and
    spread over more of them, it holds up none for long. seconds: the longest wait, where that is less than
    `LONGEST_WAIT`, and from then on how long there are rests.
    """

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
        rest: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._now, self._rest = now, rest
        self._seconds = seconds
        self._until = now() + seconds
        self._begun, self._waited_for = threading.Event(), threading.Event()

    @classmethod
    def without_rest(cls) -> Pace:
        """That of a save that somebody waits for from its beginning on."""
        return cls(0.0)

    def begin(self) -> None:
        """The step that made the copy is over: wait no more."""
        self._begun.set()

    def hurry(self) -> None:
        """Somebody waits: rest no more."""
        self._waited_for.set()
        self._begun.set()

    def await_beginning(self) -> None:
        """Wait until told to begin, or for as long as that may take."""
        if not self._begun.is_set():
            self._rest(self._begun, min(self._seconds, LONGEST_WAIT))
            self._until = self._now() + self._seconds

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
