"""Interrupts raised by code, and none at all."""

from __future__ import annotations

from collections.abc import Callable


class ManualInterrupts:
    """Interrupts adapter for programs and tests: `interrupt` requests the stop."""

    def __init__(self) -> None:
        self._ask: Callable[[str], None] | None = None

    @property
    def listening(self) -> bool:
        """Whether a run has called `start` and not yet `stop`."""
        return self._ask is not None

    def start(self, ask: Callable[[str], None]) -> None:
        """Call `ask` at every `interrupt` from now on."""
        self._ask = ask

    def stop(self) -> None:
        """Ignore every `interrupt` from now on."""
        self._ask = None

    def interrupt(self, reason: str = "interrupted by hand") -> None:
        """Request a stop. No-op unless a run is listening."""
        if self._ask is not None:
            self._ask(reason)


class NoInterrupts:
    """Interrupts adapter that never requests a stop."""

    def start(self, ask: Callable[[str], None]) -> None:
        """No-op."""

    def stop(self) -> None:
        """No-op."""
