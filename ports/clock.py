"""Time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Times in seconds: `monotonic` for differences, `wall` for dates."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment; never decreases."""

    def wall(self) -> float:
        """Return the seconds since 1970-01-01 00:00 UTC."""

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""
