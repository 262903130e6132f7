"""Receivers of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from attrs import field, frozen

Value: TypeAlias = "float | int | str | bool | None"


@frozen
class RunInformation:
    """What a logger receives at the start: name, configuration, folder and length of the run, and its current step."""

    name: str
    configuration: Mapping[str, object] = field(factory=dict)
    folder: str | None = None
    total_steps: int | None = None
    step: int = 0


@frozen
class Record:
    """The values of one log. `step` is the optimizer step; `epoch` may be fractional."""

    step: int
    epoch: float
    values: Mapping[str, Value]


class Logger(Protocol):
    """A receiver of metrics. It may fail: the run warns once and continues without it."""

    def start(self, run: RunInformation) -> None:
        """A run starts, or resumes at `run.step`."""

    def write(self, record: Record) -> None:
        """Values were logged."""

    def finish(self) -> None:
        """The run has ended, with or without an error."""
