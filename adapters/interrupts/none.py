"""Nobody outside the program asks it to stop."""

from __future__ import annotations

from collections.abc import Callable


class NoInterrupts:
    """Answers the Interrupts port by listening to nothing."""

    def start(self, ask: Callable[[str], None]) -> None:
        """There is nothing to listen to."""

    def stop(self) -> None:
        """There was nothing to listen to."""
