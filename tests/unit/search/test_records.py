"""The record of a search: what is written is read, and what comes from elsewhere is bounded and checked."""

from __future__ import annotations

import copy
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.errors import CheckpointError
from hexloop.domain.folders import Folder
from hexloop.domain.limits import reading_limits
from hexloop.domain.search.records import (
    DEFINITION,
    LINES,
    RecordedTrial,
    SearchDefinition,
    SearchLog,
    SearchRecord,
    is_trial_name,
    read_definition,
    read_search,
)
from hexloop.ports.search import PastTrial, TrialExport, TrialState

DEFINITION_OF_ONE = SearchDefinition("optuna", ["minimize"], trials=3, seed=7)

numbers = st.floats(allow_nan=True, allow_infinity=True)
values = st.one_of(st.none(), st.booleans(), st.integers(-(2**50), 2**50), st.text(max_size=5))
parameters = st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=3)
reports = st.dictionaries(st.integers(0, 10**6), st.tuples(numbers), max_size=4)


def same(one: Any, other: Any) -> bool:
    """Return whether two sequences of numbers are equal, with NaN equal to itself."""
    return [*map(repr, map(float, one))] == [*map(repr, map(float, other))]


@given(parameters, reports, st.sampled_from([None, *TrialState]), st.floats(allow_nan=False), st.floats(0, 1e6))
def test_what_is_written_is_read(
    drawn: dict[str, Any], reported: dict[int, Any], state: TrialState | None, value: float, seconds: float
) -> None:
    """A trial is the same after it went through the file, whatever its numbers are."""
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(path)
        log = SearchLog(folder)
        log.start(DEFINITION_OF_ONE)
        trial = RecordedTrial(2, "run-2", "2", drawn, drawn, {"more": [1]})
        log.proposed(trial, {"state": [1, 2]})
        for step, each in reported.items():
            log.reported(2, step, each, stop=False)
        if state is not None:
            trial.state, trial.reason, trial.seconds = state, "because", seconds
            trial.values = (value,) if state is TrialState.COMPLETE else None
            trial.checkpoint = "run-2/checkpoint-4"
            log.ended(trial, {"state": [3]})
        log.close()
        record = read_search(folder)

    assert record is not None
    assert record.definition == DEFINITION_OF_ONE
    assert record.skipped == 0
    (found,) = record.trials.values()
    assert (found.parameters, found.drawn, found.details) == (drawn, drawn, {"more": [1]})
    assert found.reports.keys() == reported.keys()
    assert all(same(found.reports[step], reported[step]) for step in reported)
    assert found.state is state
    assert record.sampler == ({"state": [1, 2]} if state is None else {"state": [3]})
    if state is TrialState.COMPLETE:
        assert found.values is not None
        assert same(found.values, [value])
    if state is not None:
        assert found.seconds == pytest.approx(seconds, abs=1e-3)
        assert found.checkpoint == "run-2/checkpoint-4"


LINE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
KEYS = ("kind", "trial", "name", "identifier", "parameters", "step", "values", "state", "checkpoint", "seconds", "stop")
LIKELY = st.one_of(
    st.sampled_from(["proposed", "reported", "ended", "complete", "failed", "run-0", "../x", "NaN"]),
    *(st.sampled_from([0, 1, -1, 2**60, True, None]), st.lists(st.floats(), max_size=2), LINE),
)


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), LIKELY), max_size=6), st.binary(max_size=20))
def test_no_line_does_harm(lines: list[dict[str, Any]], noise: bytes) -> None:
    """Whatever a line holds, it is taken up as a whole or skipped, and the record stays consistent."""
    record = SearchRecord(DEFINITION_OF_ONE)
    for line in lines:
        record.add(json.dumps(line).encode())
    record.add(noise)

    for number, trial in record.trials.items():
        assert trial.number == number >= 0
        assert is_trial_name(trial.name)
        assert all(len(each) == 1 for each in trial.reports.values())
        assert (trial.values is not None) == (trial.state is TrialState.COMPLETE)
        assert trial.checkpoint is None or ".." not in trial.checkpoint
    assert len({each.name for each in record.trials.values()}) == len(record.trials)


@given(st.text(max_size=300))
def test_a_trial_name_stays_inside(name: str) -> None:
    """A name that is accepted is below the folder of the search, and not one of hexloop's own."""
    if is_trial_name(name):
        whole = os.path.normpath(os.path.join("/search", name))
        assert whole.startswith("/search/")
        assert not os.path.isabs(name)
        assert not any(part.startswith(".") for part in name.split("/"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/../b", "/a", "a//b", ".hexloop", "a\\b", "a\0b", "a\nb", "x" * 256])
def test_names_that_are_refused(name: str) -> None:
    """They lead elsewhere, hide, or cannot be printed."""
    assert not is_trial_name(name)


def started(folder: Path) -> SearchLog:
    log = SearchLog(Folder(str(folder)))
    log.start(DEFINITION_OF_ONE)
    return log


def test_an_incomplete_last_line_is_skipped_and_ended(tmp_path: Path) -> None:
    """A killed process leaves part of a line; the next one starts a new line."""
    log = started(tmp_path)
    log.proposed(RecordedTrial(0, "run-0", "0", {}, {}, {}), None)
    log.close()
    with (tmp_path / LINES).open("ab") as file:
        file.write(b'{"kind": "reported", "trial": 0, "st')
    record = read_search(Folder(str(tmp_path)))
    assert record is not None
    assert record.trials[0].reports == {}
    log.resume()
    log.reported(0, 5, [1.5], stop=True)
    log.close()

    record = read_search(Folder(str(tmp_path)))
    assert record is not None
    assert (record.trials[0].reports, record.trials[0].pruned_at) == ({5: (1.5,)}, 5)
    assert record.skipped == 1


@pytest.mark.parametrize(
    ("value", "endings", "pruned_at", "diverged_at"),
    [
        (1.5, {}, None, None),
        (1.5, {"stop": True}, 5, None),
        (1.5, {"diverged": True}, None, 5),
        (math.nan, {}, None, 5),
    ],
)
def test_what_an_evaluation_decided_is_read(
    value: float, endings: dict[str, bool], pruned_at: int | None, diverged_at: int | None, tmp_path: Path
) -> None:
    """Also if the process is killed before the end of the trial is recorded. An objective that is NaN has diverged."""
    log = started(tmp_path)
    log.proposed(RecordedTrial(0, "run-0", "0", {}, {}, {}), None)
    log.reported(0, 4, [2.0])
    log.reported(0, 5, [value], **endings)
    log.close()
    record = read_search(Folder(str(tmp_path)))
    assert record is not None
    (found,) = record.trials.values()
    assert (found.state, found.pruned_at, found.diverged_at) == (None, pruned_at, diverged_at)
    assert [*found.reports] == [4, 5]


def test_a_new_search_keeps_the_record_of_the_earlier_one(tmp_path: Path) -> None:
    """Nothing is lost, and the files at the top are those of the newest search."""
    for number in range(3):
        log = started(tmp_path)
        log.proposed(RecordedTrial(number, f"run-{number}", str(number), {}, {}, {}), None)
        log.close()

    kept = [read_search(Folder(str(tmp_path / ".hexloop" / "searches" / str(each)))) for each in (1, 2)]
    newest = read_search(Folder(str(tmp_path)))
    assert [[*each.trials] for each in (*kept, newest) if each is not None] == [[0], [1], [2]]


def test_there_is_no_search(tmp_path: Path) -> None:
    """A folder without one has no definition."""
    assert read_definition(Folder(str(tmp_path))) is None
    assert read_search(Folder(str(tmp_path / "nowhere"))) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"schema": 99}', "newer version"),
        ('{"backend": "optuna", "directions": ["up"]}', r"directions\[0\]: 'up' is not minimize or maximize"),
        ('{"backend": "optuna", "directions": ["minimize"], "trials": 0}', "trials: 0 is not between"),
        ('{"backend": "optuna", "directions": ["minimize"], "other": 1}', "unknown entries 'other'"),
    ],
)
def test_a_definition_that_is_not_valid(text: str, message: str, tmp_path: Path) -> None:
    """The error names the file and the field."""
    (tmp_path / DEFINITION).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_search(Folder(str(tmp_path)))


@pytest.mark.parametrize("name", [DEFINITION, LINES])
def test_links_are_not_followed(name: str, tmp_path: Path) -> None:
    """A link in the place of a file is an error."""
    started(tmp_path).close()
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / name).rename(elsewhere)
    (tmp_path / name).symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="link"):
        read_search(Folder(str(tmp_path)))


def test_a_record_that_is_too_long(tmp_path: Path) -> None:
    """The limit on the length of a log holds."""
    log = started(tmp_path)
    for number in range(20):
        log.proposed(RecordedTrial(number, f"run-{number}", str(number), {}, {}, {}), None)
    log.close()
    with reading_limits(log_bytes=500), pytest.raises(CheckpointError, match="log_bytes"):
        read_search(Folder(str(tmp_path)))


PROPOSED: dict[str, Any] = {"kind": "proposed", "trial": 0, "name": "run-0", "identifier": "0", "parameters": {}}
COMPLETE: dict[str, Any] = {"kind": "ended", "trial": 0, "state": "complete", "values": [0.5]}


def line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "contradiction",
    [
        {**PROPOSED, "name": "run-1"},
        {**PROPOSED, "trial": 1},
        {"kind": "reported", "trial": 1, "step": 2, "values": [0.5]},
        {"kind": "reported", "trial": 0, "step": 2, "values": [0.5, 0.25]},
        {"kind": "reported", "trial": 0, "step": 2, "values": []},
        {"kind": "reported", "trial": 0, "step": 2, "values": [2**1001]},
        {"kind": "reported", "trial": 0, "step": 2, "values": [True]},
        {**COMPLETE, "trial": 1},
        {**COMPLETE, "values": None},
        {**COMPLETE, "values": [0.5, 0.25]},
        {**COMPLETE, "values": ["NaN"]},
        {**COMPLETE, "state": "pruned"},
        {**COMPLETE, "state": "failed"},
    ],
)
def test_a_line_that_contradicts_others_is_skipped(contradiction: dict[str, Any]) -> None:
    """It is counted, and the trial stays in progress as it was. What follows it is taken up."""
    record = SearchRecord(DEFINITION_OF_ONE)
    record.add(line(PROPOSED))
    trial = record.trials[0]
    before = copy.deepcopy(trial)
    record.add(line(contradiction))
    assert (record.skipped, record.trials) == (1, {0: before})
    record.add(line(COMPLETE))
    assert (record.skipped, trial.state, trial.values) == (1, TrialState.COMPLETE, (0.5,))


@pytest.mark.parametrize("late", [COMPLETE, {"kind": "reported", "trial": 0, "step": 2, "values": [0.5]}])
def test_a_trial_ends_once(late: dict[str, Any]) -> None:
    """Lines about a trial that has ended are skipped."""
    record = SearchRecord(DEFINITION_OF_ONE)
    record.add(line(PROPOSED))
    record.add(line({"kind": "ended", "trial": 0, "state": "failed", "reason": "no memory"}))
    record.add(line(late))
    trial = record.trials[0]
    assert (record.skipped, trial.state, trial.reason, trial.values) == (1, TrialState.FAILED, "no memory", None)
    assert trial.reports == {}


def test_whole_numbers_are_numbers() -> None:
    """An objective that was written without a decimal point is a float when it is read."""
    record = SearchRecord(DEFINITION_OF_ONE)
    record.add(line(PROPOSED))
    record.add(line({"kind": "reported", "trial": 0, "step": 2, "values": [3]}))
    (value,) = record.trials[0].reports[2]
    assert (record.skipped, value, type(value)) == (0, 3.0, float)


def test_a_search_takes_up_a_trial_as_it_was_recorded() -> None:
    """Its backend gets everything that it exported, the evaluations, and how the trial ended."""
    record = SearchRecord(DEFINITION_OF_ONE)
    record.add(line({**PROPOSED, "parameters": {"learning_rate": 0.1}, "drawn": {"rate": 0.1}, "details": {"more": 1}}))
    record.add(line({"kind": "reported", "trial": 0, "step": 2, "values": [0.5]}))
    parameters, export, reports = {"learning_rate": 0.1}, TrialExport({"rate": 0.1}, {"more": 1}), {2: (0.5,)}
    assert record.trials[0].past() == PastTrial(0, "0", parameters, export, reports, None, None)
    record.add(line({**COMPLETE, "drawn": {"rate": 0.1, "late": 4}}))
    export = TrialExport({"rate": 0.1, "late": 4}, {"more": 1})
    assert record.trials[0].past() == PastTrial(0, "0", parameters, export, reports, TrialState.COMPLETE, (0.5,))


def test_a_search_without_lines_has_no_trials(tmp_path: Path) -> None:
    """A process that was killed before its first line leaves a search that can be resumed."""
    started(tmp_path).close()
    (tmp_path / LINES).unlink()
    assert read_search(Folder(str(tmp_path))) == SearchRecord(DEFINITION_OF_ONE)


def test_what_differs_between_two_searches() -> None:
    """The number of trials may be raised; everything else is compared."""
    other = SearchDefinition("random", ["maximize"], trials=9, seed=7, run="abc")
    assert DEFINITION_OF_ONE.differences(other) == [
        "backend was 'optuna', and is 'random' now",
        "directions was ['minimize'], and is ['maximize'] now",
    ]


def test_an_unfinished_search() -> None:
    """It has trials to run, or to end."""
    record = SearchRecord(SearchDefinition("random", ["minimize"], trials=1))
    assert record.unfinished
    record.add(b'{"kind": "proposed", "trial": 0, "name": "run-0", "identifier": "0", "parameters": {}}')
    assert record.unfinished
    record.add(b'{"kind": "ended", "trial": 0, "state": "complete", "values": ["NaN"]}')
    assert record.unfinished
    assert record.skipped == 1
    record.add(b'{"kind": "ended", "trial": 0, "state": "complete", "values": ["Infinity"]}')
    assert not record.unfinished
    assert record.trials[0].values == (math.inf,)
