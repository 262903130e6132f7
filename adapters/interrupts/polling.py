"""Reasons to stop that have to be looked for: a file that somebody touches, a deadline that draws near."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from attrs import define, field

from hexloop.domain.errors import ConfigurationError
from hexloop.ports.clock import Clock
from hexloop.ports.interrupts import Interrupts


class StopCondition(Protocol):
    """Something that may come to be."""

    def begin(self) -> None:
        """Look from now on."""
        ...

    def reason(self) -> str | None:
        """Why to stop; None while there is no reason."""
        ...


@define
class FileTouched:
    """The file `path` was made or touched since `begin`; one that lies there from an earlier stop is no reason."""

    path: str
    _before: tuple[int, int] | None = field(default=None, init=False)

    def begin(self) -> None:
        """Remember how the file is now."""
        self._before = self._stamp()

    def reason(self) -> str | None:
        """The file's name, once it is another than it was."""
        stamp = self._stamp()
        return f"the file {self.path}" if stamp not in (None, self._before) else None

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


class Deadline:
    """So many seconds after this object was made, less the `margin` that a last step and a save need.

    Raises ConfigurationError where the margin leaves no time.
    """

    def __init__(self, seconds: float, margin: float, clock: Clock) -> None:
        if not 0 <= margin < seconds:
            raise ConfigurationError(
                [
                    f"You chose to stop after {seconds:g} s with a margin of {margin:g} s, but that leaves no time to "
                    "train; choose a later deadline, or a smaller margin."
                ]
            )
        self._seconds = seconds
        self._clock = clock
        self._at = clock.monotonic() + seconds - margin

    def begin(self) -> None:
        """The time has been running since this was made."""

    def reason(self) -> str | None:
        """The deadline, once it is near."""
        return f"the deadline after {self._seconds:g} s" if self._clock.monotonic() >= self._at else None


class PolledInterrupts:
    """Answers the Interrupts port by looking every `period` seconds, in a thread, whether a condition holds.

    It asks once. The thread ends with `stop`, or with the program.
    """

    def __init__(self, condition: StopCondition, period: float = 1.0) -> None:
        self._condition = condition
        self._period = period
        self._ask: Callable[[str], None] | None = None
        self._asking = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ask: Callable[[str], None]) -> None:
        """Look from now on."""
        self._condition.begin()
        self._ask = ask
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._poll, args=(self._stopped,), name="hexloop interrupts", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        with self._asking:
            self._ask = None
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def look(self) -> None:
        """Look now."""
        with self._asking:
            reason = self._condition.reason() if self._ask is not None else None
            if self._ask is not None and reason is not None:
                ask, self._ask = self._ask, None
                ask(reason)

    def _poll(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._period) and self._ask is not None:
            self.look()


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
