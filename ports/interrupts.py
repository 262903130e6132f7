"""Requests from outside the program to stop the run.

A scheduler that reclaims the machine, or a Ctrl-C, requests one thing: finish the current step, save, and stop. The
port calls back instead of being polled, so that a run that is never interrupted has no cost per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Interrupts(Protocol):
    """A source of stop requests outside the program, such as signals."""

    def start(self, ask: Callable[[str], None]) -> None:
        """Call `ask(reason)` from now on whenever a stop is requested; `ask` returns at once.

        It may be called from any thread or signal handler. Raises ConfigurationError if the source is not available.
        """

    def stop(self) -> None:
        """Stop listening and restore everything as it was."""
