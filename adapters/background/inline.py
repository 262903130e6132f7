"""Background tasks without a thread, for tests: a task runs when it is first asked about."""

from __future__ import annotations

from collections.abc import Callable


class InlineTask:
    """A task that runs in the calling thread, the first time that `done` is read or `wait` is called."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Run the task if it has not run yet; always True."""
        self._run()
        return True

    def wait(self) -> None:
        """Run the task if it has not run yet, and raise what it raised."""
        self._run()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            try:
                act()
            except BaseException as error:
                self._error = error


class InlineBackground:
    """Implements the Background port deterministically: what a task does happens between two steps, in the caller."""

    def submit(self, act: Callable[[], None], name: str, low_priority: bool = True) -> InlineTask:
        """Return a task that has not run yet."""
        return InlineTask(act)
