"""A search as pages show it: the record in its folder, read for showing, with what its trials add up to."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from hexloop.domain.errors import HexloopError
from hexloop.domain.folders import Folder
from hexloop.domain.search.records import (
    DEFINITION,
    LINES,
    MINIMIZE,
    RecordedTrial,
    SearchDefinition,
    SearchRecord,
    read_search,
)
from hexloop.ports.search import TrialState

MOST_OBJECTIVES = 6
"""How many objectives are shown, the first ones."""

RUNNING = "running"
"""What the state of a trial that has not ended is called."""


@frozen
class ShownSearch:
    """A search. trials: in order. remarks: sentences about what could not be read."""

    folder: str
    definition: SearchDefinition
    trials: Sequence[RecordedTrial] = ()
    remarks: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The name of the folder."""
        return os.path.basename(os.path.normpath(self.folder)) or self.folder

    @property
    def objectives(self) -> list[tuple[str, bool]]:
        """The names of the objectives, and whether less is better, for each."""
        minimized = [each == MINIMIZE for each in self.definition.directions][:MOST_OBJECTIVES]
        names = self.definition.metrics or []
        if len(names) == len(self.definition.directions) and len(set(names)) == len(names):
            return list(zip(names, minimized, strict=False))
        if len(minimized) == 1:
            return [("objective", minimized[0])]
        return [(f"objective {number}", less) for number, less in enumerate(minimized, 1)]

    def ended(self, state: TrialState | None) -> list[RecordedTrial]:
        """Return the trials that ended in a state, or with None those that have not."""
        return [each for each in self.trials if each.state is state]

    @property
    def best(self) -> RecordedTrial | None:
        """The complete trial with the best objective, the first of equal ones; None if there are several objectives."""
        if len(self.definition.directions) != 1:
            return None
        sign = 1.0 if self.definition.directions[0] == MINIMIZE else -1.0
        rated = [
            (sign * value, each.number, each)
            for each in self.ended(TrialState.COMPLETE)
            if (value := objective_of(each, 0)) is not None
        ]
        return min(rated)[2] if rated else None

    @property
    def front(self) -> list[RecordedTrial]:
        """The complete trials for which no other is as good in every objective and better in one."""
        objectives = self.objectives
        rated = list[tuple[RecordedTrial, tuple[float, ...]]]()
        for each in self.ended(TrialState.COMPLETE):
            values = [objective_of(each, number) for number in range(len(objectives))]
            costs = [
                value if less else -value
                for value, (_, less) in zip(values, objectives, strict=True)
                if value is not None
            ]
            if len(costs) == len(objectives):
                rated.append((each, tuple(costs)))
        return [each for each, costs in rated if not any(_dominates(other, costs) for _, other in rated)]


def holds_search(folder: Path) -> bool:
    """Return whether a folder is that of a search."""
    return os.path.lexists(folder / DEFINITION)


def shown_search(folder: Path) -> ShownSearch:
    """Read the search in a folder. What is damaged is left out, and said in the remarks."""
    try:
        record = read_search(Folder(str(folder)))
    except HexloopError as error:
        return ShownSearch(str(folder), SearchDefinition("", [MINIMIZE]), remarks=[str(error)])
    if record is None:
        return ShownSearch(str(folder), SearchDefinition("", [MINIMIZE]), remarks=[f"There is no {DEFINITION}."])
    return ShownSearch(str(folder), record.definition, in_order(record), list(_remarks(record)))


def in_order(record: SearchRecord) -> list[RecordedTrial]:
    """Return the trials of a record, ordered by their numbers."""
    return [record.trials[number] for number in sorted(record.trials)]


def objective_of(trial: RecordedTrial, index: int) -> float | None:
    """Return an objective, if it is finite: the final one, or of a trial without it, the last that it reported."""
    values = trial.values
    if values is None and trial.reports:
        values = trial.reports[max(trial.reports)]
    value = values[index] if values is not None and index < len(values) else None
    return value if value is not None and math.isfinite(value) else None


def state_text(trial: RecordedTrial) -> str:
    """Return the state of a trial in a word."""
    return RUNNING if trial.state is None else trial.state.value


def _remarks(record: SearchRecord) -> list[str]:
    if not record.skipped:
        return []
    return [f"{record.skipped:,} lines of {LINES} are left out: they are not valid."]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a trial is as good in every objective and better in one. Both are to be minimized."""
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
