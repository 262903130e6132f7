"""Signals to the launcher, which it forwards to its workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attrs import define, field
from torch.distributed.elastic.multiprocessing.api import SignalException

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))
"""The signals that end a launch, after the grace period at the latest."""

FORWARDED = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""Other signals that are forwarded, as workers may handle them."""


@define
class ReceivedSignals:
    """The signals received so far.

    ending: the first one that ends the launch. count: the number of such signals. waiting: signals not yet forwarded.
    """

    ending: signal.Signals | None = None
    count: int = 0
    waiting: list[signal.Signals] = field(factory=list)
    _raising: bool = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Install the signal handlers, and restore the previous ones afterwards. Only for the main thread."""
        before: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._handle) for number in (*ENDING, *FORWARDED)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise SignalException for a signal that ends the launch, while waiting for other machines without workers."""
        if self.ending is not None:
            raise SignalException(self.ending.name, self.ending)
        self._raising = True
        try:
            yield
        finally:
            self._raising = False

    def take(self) -> list[signal.Signals]:
        """Return the signals to forward now."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        self.waiting.append(received)
        if received in ENDING:
            self.count += 1
            self.ending = self.ending or received
            if self._raising:
                raise SignalException(received.name, received)
