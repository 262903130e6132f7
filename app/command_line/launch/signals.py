"""Signals to the launcher, which are for its workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attrs import define, field
from torch.distributed.elastic.multiprocessing.api import SignalException

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))
"""What ends a launch, after the grace period at the latest."""

PASSED_ON = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""What workers may know what to do with."""


@define
class Signals:
    """The signals that came.

    ending: the first one that ends the launch. count: how many of those came. waiting: those not yet passed on.
    """

    ending: signal.Signals | None = None
    count: int = 0
    waiting: list[signal.Signals] = field(factory=list)
    _raising: bool = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear them; the handlers that were there before are put back. For the main thread only."""
        before: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._hear) for number in (*ENDING, *PASSED_ON)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """While waiting for other machines, with no worker at hand: one that ends the launch raises SignalException."""
        if self.ending is not None:
            raise SignalException(self.ending.name, self.ending)
        self._raising = True
        try:
            yield
        finally:
            self._raising = False

    def take(self) -> list[signal.Signals]:
        """Those that are to be passed on now."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def _hear(self, number: int, frame: FrameType | None) -> None:
        heard = signal.Signals(number)
        self.waiting.append(heard)
        if heard in ENDING:
            self.count += 1
            self.ending = self.ending or heard
            if self._raising:
                raise SignalException(heard.name, heard)
