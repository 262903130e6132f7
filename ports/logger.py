"""Receivers of metrics: files, the screen, and services that keep the history of runs (trackers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from attrs import field, frozen

Value: TypeAlias = "float | int | str | bool | None"


@frozen
class RunInformation:
    """What a logger receives at the start: what the run is, and where it continues.

    name: what to call it. chosen_name: the name that the user chose, if any. run: identifies the run, also after it
    resumed in another process. tracked_as: what this logger returned when the run started first; None for a new run.
    configuration, model_configuration, adapter_configuration: the arguments, the model's own configuration, and that of
    its PEFT adapter; without secrets. folder: where the run writes. total_steps, step: its length, and where it is.
    parameters, trainable_parameters: how many numbers the model has, and how many are trained; None if not known.
    trial, trial_parameters: of a search, the name of this trial and its values. group: of the search's trials.
    model: the live model on the process that trains it; None where it is not at hand, as when a queue is worked off
    later.
    """

    name: str
    configuration: Mapping[str, object] = field(factory=dict)
    folder: str | None = None
    total_steps: int | None = None
    step: int = 0
    run: str = ""
    tracked_as: str | None = None
    chosen_name: str | None = None
    model_configuration: Mapping[str, object] = field(factory=dict)
    adapter_configuration: Mapping[str, object] = field(factory=dict)
    parameters: int | None = None
    trainable_parameters: int | None = None
    trial: str | None = None
    trial_parameters: Mapping[str, object] = field(factory=dict)
    group: str | None = None
    model: object | None = field(default=None, eq=False, repr=False)


@frozen
class Record:
    """The values of one log. `step` is the optimizer step; `epoch` may be fractional."""

    step: int
    epoch: float
    values: Mapping[str, Value]


@frozen
class SavedModel:
    """A folder with a model that a logger may upload; it does not change while the logger has it.

    name: of the checkpoint, such as "checkpoint-500", or "model" for the model at the end of the run. best: whether it
    is the best one by now. metrics: of the newest evaluation, and at the end also those of the training.
    """

    folder: str
    name: str
    step: int
    epoch: float
    final: bool = False
    best: bool = False
    metrics: Mapping[str, Value] = field(factory=dict)


@frozen
class Outcome:
    """How a run ended. problem: the error of a failed one, or the reason of one that was stopped; without secrets."""

    kind: Literal["finished", "failed", "stopped", "preempted"] = "finished"
    problem: str = ""


FINISHED = Outcome()


class Logger(Protocol):
    """A receiver of metrics. It may fail: the run warns once and continues without it.

    Calls come one at a time and in order, from a thread of hexloop's that is not the user's, so a slow logger costs the
    run nothing. If a logger has the attribute `in_loop` and it is true, the loop calls it itself; this is for loggers
    that write to a local file or to the screen.
    """

    def start(self, run: RunInformation) -> str | None:
        """A run starts, or resumes at `run.step`. Return what identifies it for this logger; None if nothing does.

        It is a part of the run's checkpoints, and is `run.tracked_as` when the run resumes.
        """

    def write(self, record: Record) -> None:
        """Values were logged. The same record may come twice, if a process died at the wrong moment."""

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """The run has ended, with or without an error."""


class ModelLogger(Logger, Protocol):
    """A logger that also takes models."""

    @property
    def models(self) -> Literal["none", "final", "checkpoints"]:
        """Which models it takes: none, the one at the end of the run, or that one and every checkpoint."""

    def save(self, model: SavedModel) -> None:
        """A model was saved. Return once it is uploaded or copied."""


class ThreadLogger(Logger, Protocol):
    """A logger whose library has a current run for each thread; the user's functions call the library too."""

    def enter_thread(self) -> None:
        """Make the run the current one of the calling thread. Called in the user's thread after `start` returned."""

    def leave_thread(self) -> None:
        """Undo it. Called in the user's thread before `finish`."""


class LinkedLogger(Logger, Protocol):
    """A logger that shows the run on a page that others can open. Model cards link it."""

    @property
    def page(self) -> str | None:
        """The URL of the page; None before it exists."""

    @property
    def card_tags(self) -> tuple[str, ...]:
        """The tags of model cards that say where the run is tracked; empty before the page exists."""
