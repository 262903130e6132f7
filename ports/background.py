"""Running one task while training continues.

A checkpoint is written in the background, from a snapshot of the run's state. The port is small because the domain does
the rest: there is one save in flight at most, it is waited for at a step boundary, and its own code decides how fast it
writes. How a task runs (a thread, at which priority, or in the calling thread in tests) is up to the adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Task(Protocol):
    """A task that was submitted."""

    @property
    def done(self) -> bool:
        """Whether the task has finished, successfully or not. Does not wait for another thread."""

    def wait(self) -> None:
        """Wait until the task has finished. Raises the exception that it raised, at every call."""


class Background(Protocol):
    """Runs tasks beside the training loop."""

    def submit(self, act: Callable[[], None], name: str, low_priority: bool = True) -> Task:
        """Start a task that calls `act` once. It runs to its end even if the program ends before it.

        name: for debuggers and stack dumps. low_priority: yield processor time to training, which does not wait for it.
        """
