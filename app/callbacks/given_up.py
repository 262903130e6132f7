"""What shows a run never ends it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Display(Protocol):
    """What shows something, and can do without."""

    def give_up(self, error: Exception) -> None:
        """Show nothing from now on, and say why."""
        ...


class GivenUpOnFailure:
    """What fails inside ends the `display`, and nothing else."""

    __slots__ = ("_display",)

    def __init__(self, display: Display) -> None:
        self._display = display

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._display.give_up(error)
        return True
