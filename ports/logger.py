"""Who watches the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from attrs import field, frozen

Value: TypeAlias = "float | int | str | bool | None"


@frozen
class RunInformation:
    """What a watcher is told at the start: the run's name, its configuration, where it keeps its files, its length."""

    name: str
    configuration: Mapping[str, object] = field(factory=dict)
    folder: str | None = None
    total_steps: int | None = None
    step: int = 0


@frozen
class Record:
    """The numbers of one log. `step` is the optimizer step, `epoch` may be a fraction."""

    step: int
    epoch: float
    values: Mapping[str, Value]


class Logger(Protocol):
    """A watcher. It may fail: the run reports that once and goes on without it."""

    def start(self, run: RunInformation) -> None:
        """A run begins, or goes on from `run.step`."""
        ...

    def write(self, record: Record) -> None:
        """Numbers were logged."""
        ...

    def finish(self) -> None:
        """The run has ended, however it did."""
        ...
