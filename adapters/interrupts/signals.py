"""The signals by which a user, a shell or a cluster asks a process to stop."""

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
    """Answers the Interrupts port with signals, SIGINT and SIGTERM if nothing else is chosen.

    The first coming of each asks for a stop. The second stops at once: it goes to the handler that was there before,
    which for SIGINT raises KeyboardInterrupt; where there was none, SystemExit(128 + n) is raised in the main thread
    instead of ending the process on the spot, so that everything that is open is closed on the way out.

    Every handler is put back by `stop`. Should that be called in another thread than the main one, which may not do
    so, each signal does again what it did before, and the handlers are put back by the next one or the next `start`.
    """

    def __init__(self, signals: Collection[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self._signals = tuple(signals)
        self._previous: dict[int, Handler] = {}
        self._ask: Callable[[str], None] | None = None
        self._process = 0
        self._heard: set[int] = set()

    def start(self, ask: Callable[[str], None]) -> None:
        """Take the signals over. Raises ConfigurationError in any thread but the main one."""
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            raise ConfigurationError(
                [
                    f"You chose to stop at signals, but the run starts in the thread {thread.name!r} and Python hands "
                    "signals to its main thread only; start it there, or choose NoInterrupts and call request_stop."
                ]
            )
        self._put_back()
        self._ask, self._process = ask, os.getpid()
        self._heard.clear()
        for chosen in self._signals:
            self._previous[chosen] = signal.signal(chosen, self._handle)

    def stop(self) -> None:
        """Put the handlers back that were there before."""
        self._ask = None
        if threading.current_thread() is threading.main_thread():
            self._put_back()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ask = self._ask
        if ask is None or os.getpid() != self._process:  # a forked process inherits the handler, and is not the run
            self._do_as_before(number, frame)
        elif number not in self._heard:
            self._heard.add(number)
            ask(f"signal {signal.Signals(number).name}")
        else:
            self._stop_at_once(number, frame)

    def _stop_at_once(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        else:
            raise SystemExit(128 + number)

    def _do_as_before(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(number, _settable(previous))
            os.kill(os.getpid(), number)

    def _put_back(self) -> None:
        while self._previous:
            number, previous = self._previous.popitem()
            signal.signal(number, _settable(previous))


def _settable(previous: Handler) -> Handler:
    """A handler from outside Python cannot be put back by it: what comes nearest is the system's."""
    return signal.SIG_DFL if previous is None else previous
