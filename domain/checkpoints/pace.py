"""How fast a checkpoint is written in the background, so that the steps beside it are not slowed down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

PIECE_BYTES = 1 << 25
"""Bytes written between two pauses."""

PACED_FRACTION = 1 / 8
"""Of the time between two saves: writing waits this long to start at most, and makes pauses for as long after that."""

MAX_START_SECONDS = 10.0
"""Longest wait for the start. It has no effect on slower steps, and a program that exits waits no longer than this."""


class Pace:
    """Delays the start of writing, and pauses after each piece for as long as the piece took, until `hurry` is called.

    Writing competes with training for memory bandwidth, disk and processor. It therefore starts after the step that
    follows the snapshot, and is spread over several steps. seconds: the longest delay of the start (at most
    `MAX_START_SECONDS`), and the time from the start in which pauses are made; by default no delay and no pauses, for a
    save that training waits for. now, rest: the clock and the wait, for tests.
    """

    def __init__(
        self,
        seconds: float = 0.0,
        now: Callable[[], float] = time.monotonic,
        rest: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._now, self._rest = now, rest
        self._seconds = seconds
        self._until = now() + seconds
        self._started, self._hurried = threading.Event(), threading.Event()

    def start(self) -> None:
        """End the delay: the step that follows the snapshot is over."""
        self._started.set()

    def hurry(self) -> None:
        """End the delay and all pauses, because training waits for the save."""
        self._hurried.set()
        self._started.set()

    def wait_for_start(self) -> None:
        """Wait until `start` or `hurry` is called, or the longest delay is over."""
        if not self._started.is_set():
            self._rest(self._started, min(self._seconds, MAX_START_SECONDS))
            self._until = self._now() + self._seconds

    def pieces(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the chunks in pieces, and pause between them. The caller writes each piece it receives."""
        for chunk in chunks:
            data = memoryview(chunk).cast("B")
            for start in range(0, len(data), PIECE_BYTES):
                began = self._now()
                yield data[start : start + PIECE_BYTES]
                ended = self._now()
                if self.rests_at(ended):
                    self._rest(self._hurried, ended - began)

    def rests_at(self, moment: float) -> bool:
        """Return whether a piece that is finished at `moment` is followed by a pause."""
        return moment < self._until and not self._hurried.is_set()


class Pacer:
    """Makes the pace of each save of a run, assuming that the next save is as far away as the last one."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = now()

    def next(self) -> Pace:
        """Return the pace of a save that starts now. Its pauses end early enough for a slow disk to finish in time."""
        since, self._last = self._now() - self._last, self._now()
        return Pace(since * PACED_FRACTION, self._now)
