"""Background tasks in threads of their own, at low priority where supported; and without a thread, for tests."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

NICENESS = 15
"""The niceness of a low-priority thread (19 is the lowest priority)."""


class ThreadTask:
    """A task in a thread that starts at once. The thread is not a daemon, so the interpreter waits for it at exit."""

    def __init__(self, act: Callable[[], None], name: str, low_priority: bool) -> None:
        self._act = act
        self._low_priority = low_priority
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Join the thread and raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        if self._low_priority and sys.platform == "linux":  # elsewhere a thread has no priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            self._act()
        except BaseException as error:
            self._error = error


class ThreadBackground:
    """Implements the Background port with one thread for each task."""

    def submit(self, act: Callable[[], None], name: str, low_priority: bool = True) -> ThreadTask:
        """Start a thread that calls `act`."""
        return ThreadTask(act, name, low_priority)


class InlineTask:
    """A task that runs in the calling thread, the first time that `done` is read or `wait` is called."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Run the task if it has not run yet; always True."""
        act, self._act = self._act, None
        if act is not None:
            try:
                act()
            except BaseException as error:
                self._error = error
        return True

    def wait(self) -> None:
        """Run the task if it has not run yet, and raise what it raised."""
        if self.done and self._error is not None:
            raise self._error


class InlineBackground:
    """Implements the Background port deterministically: what a task does happens between two steps, in the caller."""

    def submit(self, act: Callable[[], None], name: str, low_priority: bool = True) -> InlineTask:
        """Return a task that has not run yet."""
        return InlineTask(act)
