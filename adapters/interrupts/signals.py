"""The signals by which a user, a shell or a cluster asks a process to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import TypeAlias

from hexloop.domain.errors import ConfigurationError

Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"


class SignalInterrupts:
    """Answers the Interrupts port with signals, SIGINT and SIGTERM if nothing else is chosen.

    A signal asks for a stop once; its second coming does what it did before, so that pressing Ctrl-C twice ends a
    process whose step takes long. Every handler is put back by `stop`.
    """

    def __init__(self, signals: Collection[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self._signals = tuple(signals)
        self._previous: dict[int, Handler] = {}

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

        def asked(number: int, frame: FrameType | None) -> None:
            self._put_back(number)
            ask(f"signal {signal.Signals(number).name}")

        for chosen in self._signals:
            self._previous[chosen] = signal.signal(chosen, asked)

    def stop(self) -> None:
        """Put the handlers back that were there before."""
        for number in list(self._previous):
            self._put_back(number)

    def _put_back(self, number: int) -> None:
        previous = self._previous.pop(number)
        # None: a handler from outside Python, which Python cannot put back.
        signal.signal(number, signal.SIG_DFL if previous is None else previous)
