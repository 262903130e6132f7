"""Who sets the learning rates: hexloop's own pure schedules, or a scheduler object that the user supplies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from hexloop.ports.state import Part


class Scheduler(Protocol):
    """Moves the learning rates along; the loop tells it when an update was taken and what an evaluation measured."""

    def start(self, updates: int) -> None:
        """Put the rates of the update numbered `updates` (0 is the first) in force."""
        ...

    def advance(self, updates: int) -> None:
        """`updates` updates have been taken: put the next one's rates in force."""
        ...

    def observe(self, metrics: Mapping[str, float]) -> None:
        """An evaluation measured `metrics`; a schedule that adapts to one of them does so now."""
        ...

    def rates(self) -> tuple[float, ...]:
        """The rates now in force, one for each parameter group."""
        ...

    def export(self) -> Iterator[Part]:
        """What `start` cannot compute again from the count of updates."""
        ...

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an exported state."""
        ...
