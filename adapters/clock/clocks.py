"""The clock of the machine."""

from __future__ import annotations

import time


class SystemClock:
    """Answers the Clock port from the operating system."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.perf_counter()

    def wall(self) -> float:
        """Seconds since 1970-01-01 00:00 UTC."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class ManualClock:
    """Answers the Clock port. Both times stand still but for `advance` and `sleep`, which returns at once.

    wall: the date at the start, in seconds since 1970-01-01 UTC.
    """

    def __init__(self, wall: float = 0.0) -> None:
        self._began = wall
        self._passed = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError where it would go back."""
        if seconds < 0:
            raise ValueError(f"You chose to let {seconds} s pass, but time does not go back; choose 0 or more.")
        self._passed += seconds

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self._passed

    def wall(self) -> float:
        """The date at the start, and what has passed since."""
        return self._began + self._passed

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.advance(seconds)
