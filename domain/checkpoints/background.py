"""One task at a time beside the loop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

NICENESS = 15
"""How far a task stands back behind whoever computes, on a scale that ends at 19."""


class Task:
    """Something that is done in a thread of its own, to its end, also where the program ends before.

    It takes what processor time the others leave, or its share with them where it does not stand back. Who waits for
    it leaves it all of theirs, and `hurry` is called.
    """

    def __init__(
        self, act: Callable[[], None], name: str, hurry: Callable[[], None] = lambda: None, stands_back: bool = True
    ) -> None:
        self._act = act
        self._hurry = hurry
        self._stands_back = stands_back
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def result(self) -> None:
        """Wait until it has ended. Raises what it raised."""
        self._hurry()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        if self._stands_back and sys.platform == "linux":  # elsewhere a thread has no priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            self._act()
        except BaseException as error:
            self._error = error
