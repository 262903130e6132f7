"""What time it is."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Seconds. `monotonic` is for differences, `wall` for dates (since 1970-01-01 UTC)."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01 00:00 UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
