"""A stop that a program asks for in the place of a signal."""

from __future__ import annotations

from collections.abc import Callable


class ManualInterrupts:
    """Answers the Interrupts port: whoever listens hears of every `interrupt`."""

    def __init__(self) -> None:
        self._ask: Callable[[str], None] | None = None

    @property
    def listening(self) -> bool:
        """Whether somebody listens."""
        return self._ask is not None

    def start(self, ask: Callable[[str], None]) -> None:
        """Call `ask` from now on."""
        self._ask = ask

    def stop(self) -> None:
        """Call nobody."""
        self._ask = None

    def interrupt(self, reason: str = "interrupted by hand") -> None:
        """Ask for a stop; nothing happens where nobody listens."""
        if self._ask is not None:
            self._ask(reason)


class NoInterrupts:
    """Answers the Interrupts port by listening to nothing."""

    def start(self, ask: Callable[[str], None]) -> None:
        """There is nothing to listen to."""

    def stop(self) -> None:
        """There was nothing to listen to."""
