"""The table of a search on the terminal, and its lines elsewhere."""

from __future__ import annotations

import io
import os

import pytest

from hexloop.app.command_line.search.progress import SearchProgress
from hexloop.domain.search.records import RecordedTrial
from hexloop.ports.search import TrialState
from tests.terminals import screen_of


def trial(number: int, state: TrialState | None = None, *values: float, reason: str | None = None) -> RecordedTrial:
    found = RecordedTrial(number, f"run-{number}", str(number), {"learning_rate": 0.012345, "optim": "sgd"}, {}, {})
    found.state, found.reason, found.seconds = state, reason, 2.5
    found.values = values if state is TrialState.COMPLETE else None
    found.reports = {} if state is TrialState.COMPLETE else {step: [value] for step, value in enumerate(values, 1)}
    return found


def screen(written: str) -> list[str]:
    """Return the rows of a terminal on which a text was written."""
    reading, writing = os.pipe()
    os.write(writing, written.encode())
    os.close(writing)
    try:
        return screen_until_end(reading)
    finally:
        os.close(reading)


def screen_until_end(reading: int) -> list[str]:
    data = b""
    while chunk := os.read(reading, 1 << 16):
        data += chunk
    master, slave = os.openpty()
    os.write(slave, data)
    os.close(slave)
    try:
        return screen_of(master)
    finally:
        os.close(master)


def test_lines_where_there_is_no_terminal() -> None:
    """One for each trial that has ended, without control characters."""
    stream = io.StringIO()
    progress = SearchProgress([False], stream)
    progress.started(trial(0))
    progress.reported(trial(0, None, 0.25))
    progress.ended(trial(0, TrialState.COMPLETE, 0.5))
    progress.started(trial(1))
    progress.reported(trial(1, None, 0.25))
    progress.ended(trial(1, TrialState.PRUNED))
    progress.ended(trial(2, TrialState.FAILED, reason="ValueError: \x1b[31mno"))
    assert stream.getvalue().splitlines() == [
        "trial 0 complete, objective 0.5, best 0.5, took 2.5 s: learning_rate=0.01235, optim=sgd",
        "trial 1 pruned, objective 0.25, best 0.5, took 2.5 s: learning_rate=0.01235, optim=sgd",
        "trial 2 failed (ValueError: \\x1b[31mno), best 0.5, took 2.5 s: learning_rate=0.01235, optim=sgd",
    ]


def test_rows_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that train are redrawn below those that have ended; rows are cut to the width."""
    monkeypatch.setenv("COLUMNS", "70")
    stream = io.StringIO()
    progress = SearchProgress([True], stream, clock=lambda: 0.0, draws=True)
    progress.started(trial(0))
    progress.started(trial(1))
    progress.reported(trial(0, None, 0.9))
    progress.ended(trial(1, TrialState.COMPLETE, 0.75))
    progress.started(trial(2))
    rows = [each for each in screen(stream.getvalue()) if each]
    assert rows[0].split() == ["trial", "state", "objective", "best", "took", "parameters"]
    assert rows[1].split()[:6] == ["1", "complete", "0.75", "0.75", "2.5", "s"]
    assert [each.split()[:2] for each in rows[2:]] == [["0", "training"], ["2", "training"]]
    assert all(len(each) < 70 for each in rows)


def test_the_best_of_several_objectives_is_not_shown() -> None:
    """Because there is none."""
    stream = io.StringIO()
    progress = SearchProgress([True, False], stream)
    progress.ended(trial(0, TrialState.COMPLETE, 0.5, 3.0))
    assert stream.getvalue().startswith("trial 0 complete, objectives 0.5, 3, took")
