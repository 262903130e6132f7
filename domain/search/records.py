"""The record of a search in its folder: `search.json` says what is searched, `search.jsonl` what happened.

Each line of `search.jsonl` is a JSON object, appended and durable before the search continues::

    {"kind": "proposed", "trial": 3, "name": "run-3", "identifier": "3", "parameters": {"learning_rate": 0.01}, ...}
    {"kind": "reported", "trial": 3, "step": 40, "values": [0.71]}
    {"kind": "ended", "trial": 3, "state": "complete", "values": [0.65], "checkpoint": "run-3/checkpoint-80", ...}

Numbers that JSON lacks are the texts "NaN", "Infinity" and "-Infinity". A killed process leaves at most its last line
incomplete; such a line, and lines that are not valid, are skipped. The folder may come from elsewhere: reading is
bounded, names are checked, and no link is followed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Annotated, Any

from attrs import Factory, asdict, define, field, frozen

from hexloop.domain.checkpoints.manifest import step_of
from hexloop.domain.errors import CheckpointError
from hexloop.domain.folders import Folder
from hexloop.domain.json_documents import finite_json, read_json
from hexloop.domain.limits import limits
from hexloop.domain.ranges import LONGEST_NAME, Count, Holding, PositiveCount
from hexloop.domain.run_folder import within_own
from hexloop.domain.schemas import Open, read_document, shown, structured
from hexloop.ports.collectives import Json
from hexloop.ports.search import PastTrial, TrialExport, TrialState

SCHEMA = 1
"""The version of `search.json` and of the lines of `search.jsonl`."""

DEFINITION = "search.json"
LINES = "search.jsonl"

MINIMIZE, MAXIMIZE = "minimize", "maximize"
BEST, LAST = "best", "last"

DEEPEST = 4
"""How many folders a trial's name may be nested in."""


def is_trial_name(text: str) -> bool:
    """Return whether a text can be the path of a trial's folder within that of the search."""
    parts = text.split("/")
    return (
        len(text) <= LONGEST_NAME
        and len(parts) <= DEEPEST
        and all(part and not part.startswith(".") and part.isprintable() and "\\" not in part for part in parts)
    )


def _is_checkpoint(text: str) -> bool:
    name, _, checkpoint = text.rpartition("/")
    return is_trial_name(name) and step_of(checkpoint) is not None


def number_of(value: Any) -> float | None:
    """Return a number of a line, also one that JSON lacks; None for anything else."""
    if type(value) is int:
        return float(value) if abs(value) <= 2**1000 else None
    if type(value) is float:
        return value
    return _WITHOUT_JSON.get(value) if type(value) is str else None


_WITHOUT_JSON = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Direction = Annotated[str, Holding(f"{MINIMIZE} or {MAXIMIZE}", lambda text: text in (MINIMIZE, MAXIMIZE))]
Directions = Annotated[list[Direction], Holding("one to 100 directions", lambda given: 1 <= len(given) <= 100)]
Which = Annotated[str, Holding(f"{BEST} or {LAST}", lambda text: text in (BEST, LAST))]
Ending = Annotated[str, Holding("complete, pruned or failed", lambda text: text in {each.value for each in TrialState})]
TrialName = Annotated[str, Holding("the path of a folder within the search", is_trial_name)]
CheckpointPath = Annotated[str, Holding("the path of a checkpoint of a trial", _is_checkpoint)]
Number = Annotated[Any, Holding("a number", lambda value: number_of(value) is not None)]
Text = Annotated[str, Holding("a text of at most 10,000 characters", lambda text: len(text) <= 10_000)]


@frozen
class SearchDefinition:
    """What is searched: the contents of `search.json`.

    backend: the name of the search backend. directions: minimize or maximize, for each objective. trials: how many are
    wanted; None if the backend decides. seed: of the proposals; None if the user passed a sampler. objective: whether a
    trial counts with its best or its last evaluation. space: the search space where it is data, such as that of a
    recipe; None where it is a function. run: from which the names of the trials' runs are derived. metrics: the names
    of the objectives, where they are metrics.
    """

    backend: Text
    directions: Directions
    trials: PositiveCount | None = None
    seed: int | None = None
    objective: Which = BEST
    space: Any = None
    run: Text | None = None
    metrics: list[Text] | None = None
    schema: PositiveCount = SCHEMA

    def differences(self, other: SearchDefinition) -> list[str]:
        """Return in what another search, that is to continue this one, differs; it may have more trials."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in _COMPARED]
        return [f"{name} was {shown(own)}, and is {shown(now)} now" for name, own, now in pairs if own != now]


_COMPARED = ("backend", "directions", "seed", "objective", "space", "metrics")


@frozen
class ProposedLine(Open):
    """A trial that starts. sampler: the random stream after the proposal."""

    trial: Count
    name: TrialName
    identifier: Text
    parameters: dict[str, Any]
    drawn: dict[str, Any] = Factory(dict)
    details: dict[str, Any] = Factory(dict)
    sampler: Any = None


@frozen
class ReportedLine(Open):
    """An evaluation of a trial. stop, diverged: whether it ends the trial, which is pruned or has diverged."""

    trial: Count
    step: Count
    values: list[Number]
    stop: bool = False
    diverged: bool = False


@frozen
class EndedLine(Open):
    """The end of a trial. drawn, details and sampler replace those of the proposal."""

    trial: Count
    state: Ending
    values: list[Number] | None = None
    reason: Text | None = None
    seconds: float = 0.0
    checkpoint: CheckpointPath | None = None
    drawn: dict[str, Any] | None = None
    details: dict[str, Any] | None = None
    sampler: Any = None


@define
class RecordedTrial:
    """A trial as the lines describe it.

    name: the path of its folder within that of the search. reports: its objectives, by step. pruned_at: the step at
    which it was found to be pruned. diverged_at: the step at which it was found to have diverged. reason: why it failed
    or was pruned. seconds: how long it took, in all sessions that ended it. checkpoint: the path of the checkpoint of
    its objective.
    """

    number: int
    name: str
    identifier: str
    parameters: Mapping[str, Any]
    drawn: Mapping[str, Json]
    details: Mapping[str, Json]
    reports: dict[int, Sequence[float]] = field(factory=dict)
    pruned_at: int | None = None
    diverged_at: int | None = None
    state: TrialState | None = None
    values: Sequence[float] | None = None
    reason: str | None = None
    seconds: float = 0.0
    checkpoint: str | None = None

    def past(self) -> PastTrial:
        """Return the trial as a search takes it up."""
        export = TrialExport(self.drawn, self.details)
        return PastTrial(self.number, self.identifier, self.parameters, export, self.reports, self.state, self.values)

    def report(self, step: int, values: Sequence[float], pruned: bool, diverged: bool) -> None:
        """Take up an evaluation. pruned, diverged: whether the trial ends with it."""
        self.reports[step] = values
        self.pruned_at = step if pruned else self.pruned_at
        self.diverged_at = step if diverged else self.diverged_at


@define
class SearchRecord:
    """What is known of a search. trials: by number. sampler: the newest state of its random stream.

    skipped: how many complete lines were not valid.
    """

    definition: SearchDefinition
    trials: dict[int, RecordedTrial] = field(factory=dict)
    sampler: Any = None
    skipped: int = 0
    _names: set[str] = field(factory=set)

    def add(self, line: bytes) -> None:
        """Take up a line of `search.jsonl`; one that is not valid is counted and skipped."""
        try:
            value = read_json(line)
            kind = value.get("kind") if type(value) is dict else None
            add = {"proposed": self._propose, "reported": self._report, "ended": self._end}.get(str(kind))
            if add is not None:  # lines of other kinds are those of a later version
                add(value)
        except ValueError:
            self.skipped += 1

    @property
    def unfinished(self) -> bool:
        """Whether trials are missing, or have not ended."""
        wanted = self.definition.trials
        return any(each.state is None for each in self.trials.values()) or (
            wanted is not None and len(self.trials) < wanted
        )

    def _propose(self, value: Any) -> None:
        line = structured(value, ProposedLine)
        if line.trial in self.trials or line.name in self._names:
            raise ValueError(f"trial {line.trial} is proposed twice")
        self._names.add(line.name)
        self.trials[line.trial] = RecordedTrial(
            line.trial, line.name, line.identifier, line.parameters, line.drawn, line.details
        )
        self._note_sampler(line.sampler)

    def _report(self, value: Any) -> None:
        line = structured(value, ReportedLine)
        values = self._numbers(line.values)
        self._open_trial(line.trial).report(line.step, values, line.stop, line.diverged or any(map(math.isnan, values)))

    def _end(self, value: Any) -> None:
        line = structured(value, EndedLine)
        trial = self._open_trial(line.trial)
        if (line.values is None) == (line.state == TrialState.COMPLETE.value):
            raise ValueError("a complete trial, and no other one, has values")
        values = None if line.values is None else self._numbers(line.values)
        if values is not None and any(map(math.isnan, values)):
            raise ValueError("a complete trial has no objective that is not a number")
        trial.values = values
        trial.state, trial.reason = TrialState(line.state), line.reason
        trial.seconds, trial.checkpoint = line.seconds, line.checkpoint
        trial.drawn = trial.drawn if line.drawn is None else line.drawn
        trial.details = trial.details if line.details is None else line.details
        self._note_sampler(line.sampler)

    def _open_trial(self, number: int) -> RecordedTrial:
        trial = self.trials.get(number)
        if trial is None or trial.state is not None:
            raise ValueError(f"trial {number} is not in progress")
        return trial

    def _numbers(self, values: Sequence[Any]) -> Sequence[float]:
        if len(values) != len(self.definition.directions):
            raise ValueError(f"{len(values)} values for {len(self.definition.directions)} objectives")
        return tuple(float("nan") if (number := number_of(each)) is None else number for each in values)

    def _note_sampler(self, state: Any) -> None:
        if state is not None:
            self.sampler = state


def read_definition(folder: Folder) -> SearchDefinition | None:
    """Return what is searched in a folder; None if there is no search.

    Raises CheckpointError if its file cannot be read or is not valid.
    """
    place = folder.location(DEFINITION)
    try:
        value = read_json(folder.read(DEFINITION, limits().document_bytes))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{place} cannot be read: {error}.") from error
    if type(value) is dict and type(value.get("schema")) is int and value["schema"] > SCHEMA:
        raise CheckpointError(f"{place} was written by a newer version of hexloop; update hexloop to read it.")
    if type(value) is not dict:
        raise CheckpointError(f"{place} is not a JSON object.")
    return read_document(value, SearchDefinition, place)


def read_search(folder: Folder) -> SearchRecord | None:
    """Return the record of the search in a folder; None if there is none.

    Raises CheckpointError if a file cannot be read, and if `search.json` is not valid.
    """
    definition = read_definition(folder)
    if definition is None:
        return None
    record = SearchRecord(definition)
    try:
        for line in lines_of(folder):
            record.add(line)
    except OSError as error:
        raise CheckpointError(f"{folder.location(LINES)} cannot be read: {error}.") from error
    return record


def lines_of(folder: Folder) -> Iterator[bytes]:
    """Yield the lines of the record, without their ends and without empty ones. Raises OSError."""
    try:
        yield from filter(None, folder.lines(LINES, most=limits().log_bytes))
    except FileNotFoundError:
        return


class SearchLog:
    """Appends to the record of a search. Each line is on the disk when its method returns. Raises OSError."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._file: int | None = None

    def start(self, definition: SearchDefinition) -> None:
        """Start the record of a new search; that of an earlier one is kept in hexloop's own folder."""
        self.close()
        self._set_aside()
        self.redefine(definition)
        self.resume()

    def redefine(self, definition: SearchDefinition) -> None:
        """Replace what is said of the search, such as the number of trials."""
        data = json.dumps(finite_json(asdict(definition)), indent=2, sort_keys=True).encode() + b"\n"
        self._folder.replace(DEFINITION, data)

    def resume(self) -> None:
        """Append to the record that is there."""
        self._file = self._folder.open_lines(LINES)
        os.fsync(self._file)

    def proposed(self, trial: RecordedTrial, sampler: Json) -> None:
        """Record that a trial starts."""
        self._append(
            "proposed",
            trial=trial.number,
            name=trial.name,
            identifier=trial.identifier,
            parameters=trial.parameters,
            drawn=trial.drawn,
            details=trial.details,
            sampler=sampler,
        )

    def reported(
        self, trial: int, step: int, values: Sequence[float], stop: bool = False, diverged: bool = False
    ) -> None:
        """Record an evaluation. stop: whether the trial is pruned with it. diverged: whether it has diverged."""
        endings = {name: True for name, ends in {"stop": stop, "diverged": diverged}.items() if ends}
        self._append("reported", trial=trial, step=step, values=values, **endings)

    def ended(self, trial: RecordedTrial, sampler: Json) -> None:
        """Record the end of a trial."""
        assert trial.state is not None
        self._append(
            "ended",
            trial=trial.number,
            state=trial.state.value,
            values=trial.values,
            reason=None if trial.reason is None else trial.reason[:2_000],
            seconds=round(trial.seconds, 3),
            checkpoint=trial.checkpoint,
            drawn=trial.drawn,
            details=trial.details,
            sampler=sampler,
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, kind: str, **facts: Any) -> None:
        assert self._file is not None
        rest = json.dumps({"kind": kind, **finite_json(facts)}, allow_nan=False).encode() + b"\n"
        while rest:
            rest = rest[os.write(self._file, rest) :]
        os.fsync(self._file)

    def _set_aside(self) -> None:
        """Move the files of an earlier search into hexloop's own folder, under a name that is free."""
        present = {each.name for each in self._folder.entries()} & {DEFINITION, LINES}
        if not present:
            return
        own = self._folder.below(within_own("searches"))
        own.make()
        taken = {each.name for each in own.entries()}
        number = next(each for each in count(1) if str(each) not in taken)
        own.make(str(number))
        for name in sorted(present, reverse=True):  # the lines first: without them, a search is one that never began
            self._folder.move(name, f"{within_own('searches')}/{number}/{name}")
