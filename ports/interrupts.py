"""Has somebody asked this process to stop?

Whoever asks from outside (a scheduler that wants its machine back, a Ctrl-C) asks for one thing: finish the step in
hand, save, and end. The port listens instead of being polled, so that a run that nobody interrupts pays nothing at each
step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Interrupts(Protocol):
    """A source of requests to stop that lies outside the program, such as signals."""

    def start(self, ask: Callable[[str], None]) -> None:
        """Call `ask(reason)` from now on whenever somebody asks for a stop; `ask` returns at once.

        Any thread may call it, a signal handler too. Raises ConfigurationError where this source cannot be listened to.
        """
        ...

    def stop(self) -> None:
        """Listen no more and leave everything as it was found."""
        ...
