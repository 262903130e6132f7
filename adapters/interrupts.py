"""Where requests to stop come from: signals, a touched file, a deadline, code; several of them, or none."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Protocol, TypeAlias

from attrs import define, field

from hexloop.domain.errors import ConfigurationError
from hexloop.ports.process import Clock, Interrupts

Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"


class SignalInterrupts:
    """Interrupts adapter for signals, by default SIGINT and SIGTERM.

    The first occurrence of each signal requests a stop. The second stops at once: it calls the handler that was
    installed before, which for SIGINT raises KeyboardInterrupt. If there was no handler, SystemExit(128 + n) is raised
    in the main thread instead of terminating the process, so that all open resources are closed.

    `stop` restores every handler. Python allows that only in the main thread: if `stop` is called in another thread,
    each signal has its previous effect again, and the handlers are restored by the next signal or the next `start`.

    Args:
        signals: the signals that request a stop.
    """

    def __init__(self, signals: Collection[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self._signals = tuple(signals)
        self._previous: dict[int, Handler] = {}
        self._ask: Callable[[str], None] | None = None
        self._process = 0
        self._received: set[int] = set()

    def start(self, ask: Callable[[str], None]) -> None:
        """Install the handlers.

        Raises:
            ConfigurationError: if called outside the main thread.
        """
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
        ask, previous = self._ask, self._previous.get(number)
        if os.getpid() != self._process:  # a forked process inherits the handler but is not the run
            ask = None
        if ask is not None and number not in self._received:
            self._received.add(number)
            ask(f"signal {signal.Signals(number).name}")
        elif callable(previous):
            previous(number, frame)
        elif ask is not None:
            raise SystemExit(128 + number)
        else:
            signal.signal(number, previous or signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous or signal.SIG_DFL)  # None: the handler was not installed from Python
        self._previous.clear()


class StopCondition(Protocol):
    """Condition under which a run is asked to stop."""

    def begin(self) -> None:
        """Start watching."""
        ...

    def reason(self) -> str | None:
        """Return why to stop, or None if the condition does not hold."""
        ...


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(path)


@define
class FileTouched:
    """Holds once the file `path` is created or touched after `begin`.

    A file that is left over from an earlier stop does not count.

    Args:
        path: the file.
    """

    path: str = field(converter=_absolute)
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

    The margin is the time that a last step and a save need.

    Args:
        seconds: the time from the creation of this object to the deadline.
        margin: how long before the deadline it holds, in seconds.
        clock: where the time is read.

    Raises:
        ConfigurationError: if it leaves no time to train.
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

    Args:
        condition: what is checked.
        period: seconds between two checks.
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
    """Interrupts adapter that combines `sources`: each of them can request a stop.

    Args:
        sources: the adapters that are combined.
    """

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


class ManualInterrupts:
    """Interrupts adapter for programs and tests: `interrupt` requests the stop.

    Examples:
        >>> from hexloop.testing import ManualInterrupts
        >>> interrupts, asked = ManualInterrupts(), []
        >>> interrupts.start(asked.append)
        >>> interrupts.interrupt("enough")
        >>> asked
        ['enough']
    """

    def __init__(self) -> None:
        self._ask: Callable[[str], None] | None = None

    @property
    def listening(self) -> bool:
        """Whether a run has called `start` and not yet `stop`."""
        return self._ask is not None

    def start(self, ask: Callable[[str], None]) -> None:
        """Call `ask` at every `interrupt` from now on."""
        self._ask = ask

    def stop(self) -> None:
        """Ignore every `interrupt` from now on."""
        self._ask = None

    def interrupt(self, reason: str = "interrupted by hand") -> None:
        """Request a stop. No-op unless a run is listening.

        Args:
            reason: passed to the run.
        """
        if self._ask is not None:
            self._ask(reason)


class NoInterrupts:
    """Interrupts adapter that never requests a stop."""

    def start(self, ask: Callable[[str], None]) -> None:
        """No-op."""

    def stop(self) -> None:
        """No-op."""
