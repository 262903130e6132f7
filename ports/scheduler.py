"""The learning rates of a run: hexloop's own schedules, or a scheduler object of the user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from hexloop.ports.state import Part


class Scheduler(Protocol):
    """Sets the learning rates. The loop calls it after each update that was taken and after each evaluation."""

    def start(self, updates: int) -> None:
        """Set the rates of the update numbered `updates`, from 0."""

    def advance(self, updates: int) -> None:
        """Set the rates of the next update, after `updates` updates were taken."""

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Adapt the rates to the metrics of an evaluation, if the schedule follows one."""

    def rates(self) -> tuple[float, ...]:
        """Return the current rates, one for each parameter group."""

    def export(self) -> Iterator[Part]:
        """Export the state that the number of updates does not determine."""

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported state."""
