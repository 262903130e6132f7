"""A search as its folder describes it: its trials with their parameters, reports and ends, read within bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from attrs import define, field

from hexloop.app.pages.history import LONGEST_TEXT, number_of, step_in
from hexloop.app.pages.journal_lines import LinesRead, lines_between
from hexloop.domain.folders import open_in_run
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.limits import limits
from hexloop.domain.regular_files import chunks_of

SEARCH, TRIALS = "search.json", "search.jsonl"
"""The files of a search in its folder."""

MOST_TRIALS = 10_000
"""How many trials are kept, the first ones."""

MOST_REPORTS = 2_000
"""How many reports of a trial are kept, the first ones."""

MOST_PARAMETERS = 200
"""How many parameters of a trial are kept."""

MOST_OBJECTIVES = 16
"""How many objectives are kept."""


class TrialState(Enum):
    """What became of a trial; the values are shown to users."""

    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"


@define
class TrialRecord:
    """A trial. name: of its folder. values: an objective each, None if it is not known. seconds: that it took.

    reports: the steps of its evaluations, with the objectives at each. reason: why it failed or was pruned.
    """

    number: int
    name: str
    parameters: Mapping[str, Any]
    state: TrialState = TrialState.RUNNING
    values: tuple[float | None, ...] = ()
    reports: list[tuple[int, tuple[float | None, ...]]] = field(factory=list)
    reason: str = ""
    seconds: float | None = None

    def objective(self, index: int) -> float | None:
        """Return an objective: the final one, or for a trial without it, the last that it reported."""
        values = self.values or (self.reports[-1][1] if self.reports else ())
        return values[index] if index < len(values) else None


@define
class SearchRecord:
    """A search. minimized: for each objective, whether less is better. objectives: their names.

    wanted: how many trials it is to have, None if that is not known. remarks: what could not be read.
    """

    folder: str
    backend: str = ""
    minimized: Sequence[bool] = (True,)
    objectives: Sequence[str] = ("objective",)
    wanted: int | None = None
    seed: int | None = None
    trials: Sequence[TrialRecord] = ()
    remarks: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The name of the folder."""
        return os.path.basename(os.path.normpath(self.folder)) or self.folder

    def of(self, state: TrialState) -> list[TrialRecord]:
        """Return the trials in a state."""
        return [each for each in self.trials if each.state is state]

    @property
    def best(self) -> TrialRecord | None:
        """The complete trial with the best first objective: the first of equal ones. None for several objectives."""
        if len(self.minimized) != 1:
            return None
        sign = 1.0 if self.minimized[0] else -1.0
        found = [(sign * value, each.number, each) for each in self.of(TrialState.COMPLETE)
                 if (value := each.objective(0)) is not None]  # fmt: skip
        return min(found)[2] if found else None


def holds_search(folder: Path) -> bool:
    """Return whether a folder is that of a search."""
    return os.path.lexists(folder / SEARCH)


def read_search(folder: Path) -> SearchRecord:
    """Read the search in a folder. What is damaged is left out, and said in the remarks."""
    remarks: list[str] = []
    record = _described(folder, remarks)
    trials = _Trials(len(record.minimized))
    read = LinesRead()
    try:
        for note in _notes(folder / TRIALS, read):
            trials.take(note)
    except OSError as error:
        if os.path.lexists(folder / TRIALS):
            remarks.append(f"{TRIALS} cannot be read: {error.strerror or error}.")
    remarks += read.remarks(TRIALS)
    if trials.dropped:
        remarks.append(f"{trials.dropped:,} trials beyond the first {MOST_TRIALS:,} are left out.")
    record.trials, record.remarks = [trials.found[each] for each in sorted(trials.found)], remarks
    return record


def _described(folder: Path, remarks: list[str]) -> SearchRecord:
    """Return what the document of a search tells, without trials."""
    record = SearchRecord(str(folder))
    try:
        descriptor = open_in_run(folder / SEARCH)
        try:
            document = read_json(read_bytes(chunks_of(descriptor), limits().document_bytes))
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        remarks.append(f"{SEARCH} cannot be read: {getattr(error, 'strerror', None) or error}.")
        return record
    if not isinstance(document, Mapping):
        remarks.append(f"{SEARCH} is not a JSON object.")
        return record
    directions = document.get("directions")
    if isinstance(directions, list) and 0 < len(directions) <= MOST_OBJECTIVES:
        record.minimized = [each != "maximize" for each in directions]
    record.objectives = ["objective"] if len(record.minimized) == 1 else [
        f"objective {number}" for number in range(1, len(record.minimized) + 1)
    ]  # fmt: skip
    backend = document.get("backend")
    record.backend = backend[:LONGEST_TEXT] if isinstance(backend, str) else ""
    record.wanted, record.seed = step_in(document.get("trials")), step_in(document.get("seed"))
    return record


def _notes(path: Path, read: LinesRead) -> Iterator[Mapping[str, Any]]:
    """Yield the notes in a file of lines; others are counted in `read`. Raises OSError."""
    descriptor = open_in_run(path)
    try:
        size = os.fstat(descriptor).st_size
        most = min(size, limits().log_bytes)
        for line, _ in lines_between(descriptor, 0, most, read):
            try:
                note = read_json(line, finite=False)
            except ValueError:
                note = None
            if isinstance(note, Mapping):
                read.notes += 1
                yield note
            else:
                read.not_notes += bool(line.strip())
        read.skipped += size - most
    finally:
        os.close(descriptor)


@define
class _Trials:
    """The trials that notes add up to. Facts of an unexpected type are ignored."""

    objectives: int
    found: dict[int, TrialRecord] = field(factory=dict)
    dropped: int = 0

    def take(self, note: Mapping[str, Any]) -> None:
        number, kind = step_in(note.get("trial")), note.get("kind")
        if number is None:
            return
        if kind == "proposed":
            self._propose(number, note)
            return
        trial = self.found.get(number)
        if trial is None:
            return
        if kind == "reported":
            step = step_in(note.get("step"))
            if step is not None:
                # a trial that resumes reports steps again
                while trial.reports and trial.reports[-1][0] >= step:
                    trial.reports.pop()
                if len(trial.reports) < MOST_REPORTS:
                    trial.reports.append((step, self._values(note.get("values"))))
        elif kind == "ended":
            states = {each.value: each for each in TrialState if each is not TrialState.RUNNING}
            state = note.get("state")
            trial.state = states.get(state, TrialState.FAILED) if isinstance(state, str) else TrialState.FAILED
            trial.values = self._values(note.get("values"))
            reason = note.get("reason")
            trial.reason = reason[:LONGEST_TEXT] if isinstance(reason, str) else ""
            trial.seconds = number_of(note.get("seconds"))

    def _propose(self, number: int, note: Mapping[str, Any]) -> None:
        if number not in self.found and len(self.found) >= MOST_TRIALS:
            self.dropped += 1
            return
        name, given = note.get("name"), note.get("parameters")
        parameters = list(given.items())[:MOST_PARAMETERS] if isinstance(given, Mapping) else []
        self.found[number] = TrialRecord(
            number,
            name[:LONGEST_TEXT] if isinstance(name, str) else f"trial {number}",
            {str(key)[:LONGEST_TEXT]: value for key, value in parameters},
        )

    def _values(self, values: object) -> tuple[float | None, ...]:
        given = values if isinstance(values, list) else [values]
        found = [number_of(each) for each in given[: self.objectives]]
        if all(each is None for each in found):
            return ()
        return tuple(None if each is None or abs(each) == float("inf") or each != each else each for each in found)
