"""What a run needs of its process: the time, requests to stop, and tasks that run while training continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Clock(Protocol):
    """Times in seconds: `monotonic` for differences, `wall` for dates."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment; never decreases."""

    def wall(self) -> float:
        """Return the seconds since 1970-01-01 00:00 UTC."""

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""


class Interrupts(Protocol):
    """A source of stop requests outside the program, such as signals.

    A scheduler that reclaims the machine, or a Ctrl-C, requests one thing: finish the current step, save, and stop. The
    port calls back instead of being polled, so that a run that is never interrupted has no cost per step.
    """

    def start(self, ask: Callable[[str], None]) -> None:
        """Call `ask(reason)` from now on whenever a stop is requested; `ask` returns at once.

        It may be called from any thread or signal handler. Raises ConfigurationError if the source is not available.
        """

    def stop(self) -> None:
        """Stop listening and restore everything as it was."""


class Task(Protocol):
    """A task that was submitted."""

    @property
    def done(self) -> bool:
        """Whether the task has finished, successfully or not. Does not wait for another thread."""

    def wait(self) -> None:
        """Wait until the task has finished. Raises the exception that it raised, at every call."""


class Background(Protocol):
    """Runs tasks while training continues: a checkpoint is written from a snapshot of the run's state.

    The port is small because the domain does the rest: there is one save in flight at most, it is waited for at a step
    boundary, and its own code decides how fast it writes. How a task runs (a thread, at which priority, or in the
    calling thread in tests) is up to the adapter.
    """

    def submit(self, act: Callable[[], None], name: str, low_priority: bool = True) -> Task:
        """Start a task that calls `act` once. It runs to its end even if the program ends before it.

        name: for debuggers and stack dumps. low_priority: yield processor time to training, which does not wait for it.
        """


class Machine(Protocol):
    """The computer that a process runs on, as far as its use is measured. One thread calls it.

    It has one method, since what is measured are numbers with names, of which a machine may have some and lack others;
    `hexloop.domain.system_metrics` lists them.
    """

    def measure(self) -> Mapping[str, float]:
        """Return what the machine and this process use now; rates are means since the last call.

        What cannot be measured is left out. It takes about a millisecond, and no lock that other threads wait for.
        """
