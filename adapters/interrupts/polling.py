"""Reasons to stop that are polled for (a touched file, a deadline), and several sources combined."""

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
    """Condition under which a run is asked to stop."""

    def begin(self) -> None:
        """Start watching."""
        ...

    def reason(self) -> str | None:
        """Return why to stop, or None if the condition does not hold."""
        ...


@define
class FileTouched:
    """Holds once the file `path` is created or touched after `begin`.

    A file that is left over from an earlier stop does not count.
    """

    path: str
    _before: tuple[int, int] | None = field(default=None, init=False)

    def begin(self) -> None:
        """Record the file's current state."""
        self._before = self._stamp()

    def reason(self) -> str | None:
        """Return the file name if the file has changed since `begin`."""
        stamp = self._stamp()
        return f"the file {self.path}" if stamp not in (None, self._before) else None

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


class Deadline:
    """Holds `margin` seconds before the deadline, which is `seconds` after this object was created.

    The margin is the time that a last step and a save need. Raises ConfigurationError if it leaves no time to train.
    """

    def __init__(self, seconds: float, margin: float, clock: Clock) -> None:
        if not 0 <= margin < seconds:
            raise ConfigurationError(
                f"A deadline of {seconds:g} s with a margin of {margin:g} s leaves no time to train; choose a "
                "later deadline, or a smaller margin of 0 or more."
            )
        self._seconds = seconds
        self._clock = clock
        self._at = clock.monotonic() + seconds - margin

    def begin(self) -> None:
        """No-op: the time runs from construction."""

    def reason(self) -> str | None:
        """Return the deadline if less than the margin is left."""
        return f"the deadline after {self._seconds:g} s" if self._clock.monotonic() >= self._at else None


class PolledInterrupts:
    """Interrupts adapter that checks a condition every `period` seconds, in a daemon thread.

    It requests a stop once. The thread ends with `stop` or with the program.
    """

    def __init__(self, condition: StopCondition, period: float = 1.0) -> None:
        self._condition = condition
        self._period = period
        self._ask: Callable[[str], None] | None = None
        self._asking = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ask: Callable[[str], None]) -> None:
        """Start the polling thread."""
        self._condition.begin()
        self._ask = ask
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._poll, args=(self._stopped,), name="hexloop interrupts", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the polling thread."""
        with self._asking:
            self._ask = None
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def look(self) -> None:
        """Check the condition now."""
        with self._asking:
            reason = self._condition.reason() if self._ask is not None else None
            if self._ask is not None and reason is not None:
                ask, self._ask = self._ask, None
                ask(reason)

    def _poll(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._period) and self._ask is not None:
            self.look()


class SeveralInterrupts:
    """Interrupts adapter that combines `sources`: each of them can request a stop."""

    def __init__(self, sources: Sequence[Interrupts]) -> None:
        self.sources = tuple(sources)

    def start(self, ask: Callable[[str], None]) -> None:
        """Start all sources. If one raises, stop those already started and re-raise its exception."""
        with ExitStack() as undo:
            for source in self.sources:
                source.start(ask)
                undo.callback(source.stop)
            undo.pop_all()

    def stop(self) -> None:
        """Stop all sources, even if one of them raises."""
        with ExitStack() as stack:
            for source in self.sources:
                stack.callback(source.stop)
