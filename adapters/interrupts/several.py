"""Several sources of requests to stop as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from hexloop.ports.interrupts import Interrupts


class SeveralInterrupts:
    """Answers the Interrupts port by listening to all of `sources`; whoever asks first is heard, and the others too."""

    def __init__(self, sources: Sequence[Interrupts]) -> None:
        self.sources = tuple(sources)

    def start(self, ask: Callable[[str], None]) -> None:
        """Listen to all of them, or, where one refuses, to none. Raises what it raises."""
        with ExitStack() as undo:
            for source in self.sources:
                source.start(ask)
                undo.callback(source.stop)
            undo.pop_all()

    def stop(self) -> None:
        """Listen to none of them; every one is stopped, whatever the others do."""
        with ExitStack() as stack:
            for source in self.sources:
                stack.callback(source.stop)
