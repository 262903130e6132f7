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
