"""The system clock, and a clock that a test advances by hand."""

from __future__ import annotations

import time


class SystemClock:
    """Clock of the operating system."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment."""
        return time.perf_counter()

    def wall(self) -> float:
        """Return the seconds since 1970-01-01 00:00 UTC."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""
        time.sleep(seconds)


class ManualClock:
    """Clock that moves only by `advance` and `sleep`; `sleep` returns at once.

    Args:
        wall: the initial date, in seconds since 1970-01-01 UTC.

    Examples:
        >>> from hexloop.testing import ManualClock
        >>> clock = ManualClock()
        >>> clock.sleep(90)
        >>> clock.monotonic()
        90.0
    """

    def __init__(self, wall: float = 0.0) -> None:
        self._start = wall
        self._elapsed = 0.0

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Args:
            seconds: how far to move it, at least 0.

        Raises:
            ValueError: if `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds}) would move the clock backwards; pass 0 or more.")
        self._elapsed += seconds

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self._elapsed

    def wall(self) -> float:
        """Return the initial date plus the seconds since."""
        return self._start + self._elapsed

    def sleep(self, seconds: float) -> None:
        """Move the clock forward, without blocking."""
        self.advance(seconds)
