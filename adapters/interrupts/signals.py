"""Signals by which a user, a shell or a cluster asks a process to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import TypeAlias

from hexloop.domain.errors import ConfigurationError

Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"


class SignalInterrupts:
    """Interrupts adapter for signals, by default SIGINT and SIGTERM.

    The first occurrence of each signal requests a stop. The second stops at once: it calls the handler that was
    installed before, which for SIGINT raises KeyboardInterrupt. If there was no handler, SystemExit(128 + n) is raised
    in the main thread instead of terminating the process, so that all open resources are closed.

    `stop` restores every handler. Python allows that only in the main thread: if `stop` is called in another thread,
    each signal has its previous effect again, and the handlers are restored by the next signal or the next `start`.
    """

    def __init__(self, signals: Collection[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self._signals = tuple(signals)
        self._previous: dict[int, Handler] = {}
        self._ask: Callable[[str], None] | None = None
        self._process = 0
        self._received: set[int] = set()

    def start(self, ask: Callable[[str], None]) -> None:
        """Install the handlers. Raises ConfigurationError if called outside the main thread."""
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            raise ConfigurationError(
                f"The run starts in the thread {thread.name!r}, but Python delivers signals to the main thread "
                "only; start the run there, or pass NoInterrupts and call request_stop."
            )
        self._restore()
        self._ask, self._process = ask, os.getpid()
        self._received.clear()
        for chosen in self._signals:
            self._previous[chosen] = signal.signal(chosen, self._handle)

    def stop(self) -> None:
        """Restore the previous handlers."""
        self._ask = None
        if threading.current_thread() is threading.main_thread():
            self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ask = self._ask
        if ask is None or os.getpid() != self._process:  # a forked process inherits the handler but is not the run
            self._call_previous(number, frame)
        elif number not in self._received:
            self._received.add(number)
            ask(f"signal {signal.Signals(number).name}")
        else:
            self._stop_at_once(number, frame)

    def _stop_at_once(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        else:
            raise SystemExit(128 + number)

    def _call_previous(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(number, _settable(previous))
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        while self._previous:
            number, previous = self._previous.popitem()
            signal.signal(number, _settable(previous))


def _settable(previous: Handler) -> Handler:
    """Return a handler that `signal.signal` accepts: the default for a handler that was not installed from Python."""
    return signal.SIG_DFL if previous is None else previous
