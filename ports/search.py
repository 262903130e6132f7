"""Hyperparameter search: which parameters to try next, whether a trial continues, and what became of it.

The port is small because the application does the rest: it trains the trials, takes their objectives, records
everything in the search folder, and makes all processes agree. Only one process has a search; the other ones receive
the parameters from it. Several trials may be in progress at once: `ask` does not wait for `tell`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

from attrs import field, frozen

from hexloop.ports.collectives import Json


class TrialState(Enum):
    """How a trial ended."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"


@frozen
class Proposal:
    """A trial that is to be run.

    Args:
        number: from 0, in the order of the proposals.
        identifier: of the trial in its library; its folder is `run-<identifier>`.
        parameters: what the search space returned, by argument; a name with dots is an entry of a dictionary.
        trial: the library's own object, which the user's functions receive.
    """

    number: int
    identifier: str
    parameters: Mapping[str, object]
    trial: object = field(default=None, eq=False)


@frozen
class TrialExport:
    """What is recorded of a trial, so that it can be proposed again after a restart.

    Args:
        drawn: the values drawn for the trial by the names that the search space gave them; `Proposal.parameters` may
            have other names.
        details: whatever else the library needs, such as the distributions that it drew from.
    """

    drawn: Mapping[str, Json]
    details: Mapping[str, Json]


@frozen
class PastTrial:
    """A recorded trial.

    Args:
        number: the number of the trial, from 0.
        identifier: its name in the backend.
        parameters: the values that were drawn, by name.
        export: what `export_trial` returned.
        reports: the objectives reported for each step, by step.
        state: None if the trial has not ended.
        values: its final objectives; None unless it is complete.
    """

    number: int
    identifier: str
    parameters: Mapping[str, object]
    export: TrialExport
    reports: Mapping[int, Sequence[float]]
    state: TrialState | None
    values: Sequence[float] | None


class Search(Protocol):
    """A strategy or service that proposes parameters. Its directions and its space are fixed at construction.

    Every proposal is told exactly once, also after a restart.
    """

    @property
    def summary(self) -> object:
        """The library's own result, such as a study, which callers find in `BestRun.run_summary`; None if none."""

    def ask(self) -> Proposal | None:
        """Return the next trial; None if there is none, such as at the end of a grid.

        Exceptions of the user's search space propagate.
        """

    def report(self, proposal: Proposal, step: int, values: Sequence[float]) -> bool:
        """Report the objectives at an optimizer step, and return whether the trial continues. Steps increase.

        Args:
            proposal: what `ask` returned.
            step: the optimizer step.
            values: the objectives, one per direction.
        """

    def tell(self, proposal: Proposal, state: TrialState, values: Sequence[float] | None = None) -> None:
        """Record how a trial ended.

        Args:
            proposal: what `ask` returned.
            state: how the trial ended.
            values: its objectives, one for each direction, if it is complete.
        """

    def close(self) -> None:
        """Release connections and processes. Trials that have not ended stay as they are."""

    # State

    def export_state(self) -> Json:
        """Return the random stream that further proposals are drawn from; None if it cannot be read."""

    def export_trial(self, proposal: Proposal) -> TrialExport:
        """Return what is recorded of a trial as it is now.

        Args:
            proposal: what `ask` returned.
        """

    def load_state(self, state: Json, trials: Sequence[PastTrial]) -> Sequence[Proposal]:
        """Continue after these trials, in the order of their numbers; return those that have not ended, to be run.

        Called before anything else.

        Args:
            state: what was exported of the search.
            trials: the recorded trials.

        Raises:
            CheckpointError: for a state or trials that are not this search's.
        """


# Libraries that run the trials by themselves


Report: TypeAlias = Callable[[int, Sequence[float], Mapping[str, object], "str | None"], bool]
"""Reports the objectives and metrics at an optimizer step, with the folder of the newest checkpoint if that is new;
returns whether the trial continues."""


class RunTrial(Protocol):
    """Trains one trial. A service calls it, possibly in a process of its own, for which it is pickled."""

    def __call__(self, proposal: Proposal, report: Report, checkpoint: str | None) -> None:
        """Train to the end, or until `report` returns False. checkpoint: the folder to resume from, None to start.

        Raises TrialFailedError, or whatever the user's code raises, for a trial that failed.
        """


class TrialFailedError(Exception):
    """A trial failed, for the reason that the message says. It must survive pickling, so it has only a message."""


class TrialListener(Protocol):
    """Follows the trials of a service, in the process that started it."""

    def started(self, proposal: Proposal) -> None:
        """Take up a trial that starts.

        Args:
            proposal: what `ask` returned.
        """

    def reported(self, proposal: Proposal, step: int, values: Sequence[float], stop: bool) -> None:
        """Take up a report.

        Args:
            proposal: what `ask` returned.
            step: the optimizer step.
            values: the objectives, one per direction.
            stop: whether the trial ends with it, because it is pruned.
        """

    def ended(self, proposal: Proposal, state: TrialState, reason: str | None, seconds: float) -> None:
        """Take up the end of a trial.

        Args:
            proposal: what `ask` returned.
            state: how the trial ended.
            reason: why it ended so; empty if it is complete.
            seconds: how long it took.
        """


class SearchService(Protocol):
    """A library or service that proposes parameters and runs the trials by itself, several at a time if it can."""

    def run(self, train: RunTrial, listener: TrialListener) -> tuple[Proposal | None, float | None, object]:
        """Run all trials; return the best one and its objective, if there is one, and the library's own result.

        Args:
            train: trains a trial.
            listener: receives what happens to the trials.
        """
