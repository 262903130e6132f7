"""Progress where there is no terminal, and rows of metrics where there is one."""

from __future__ import annotations

import io
import os
import pty
import sys
from itertools import pairwise
from typing import Any

import pytest

from hexloop.adapters.clock import ManualClock
from hexloop.app.callbacks import ProgressCallback, TrainerControl, TrainerState
from hexloop.app.callbacks.beside_bars import COPIED_TO_TERMINAL, is_terminal
from hexloop.app.callbacks.console import (
    AlignedRows,
    ProgressLines,
    duration_text,
    is_evaluation,
    size_text,
    terminal_width,
)

CONTROL = TrainerControl()


def test_what_counts_as_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pseudo-terminal does; files, closed streams, no stream and simple terminals do not."""
    monkeypatch.delenv(COPIED_TO_TERMINAL, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    closed = io.StringIO()
    closed.close()
    with os.fdopen(theirs, "w") as terminal:
        assert is_terminal(terminal)
        assert not any(map(is_terminal, (io.StringIO(), closed, None)))
        monkeypatch.setenv("TERM", "dumb")
        assert not is_terminal(terminal)
    os.close(ours)
    monkeypatch.setenv(COPIED_TO_TERMINAL, "91")
    assert is_terminal(io.StringIO()), "the launcher copies it to its terminal"
    assert terminal_width() == 91


def test_a_short_run_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal there are no carriage returns, and one line at the end."""
    callback, state = ProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(None, state, CONTROL)
    for step in (1, 2):
        state.global_step = step
        callback.on_step_end(None, state, CONTROL)
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=["batch"])
        callback.on_log(None, state, CONTROL, logs={"eval_loss": 0.25, "eval_runtime": 1.0})
        callback.on_evaluate(None, state, CONTROL, metrics={})
    callback.on_train_end(None, state, CONTROL)
    output, errors = capsys.readouterr()
    assert output == "{'eval_loss': '0.25', 'eval_runtime': '1'}\n" * 2
    assert "\r" not in errors
    (line,) = errors.splitlines()
    assert line.startswith("Training: step 2 of 2 (100%), ")
    assert line.endswith("ended before step 4")


def test_lines_come_at_a_bounded_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """Every 10 seconds at first; in a day some hundred, although there are 86,400 steps."""
    clock = ManualClock()
    lines = ProgressLines(86_400, name="Training", clock=clock.monotonic)
    printed_after: list[int] = []
    for second in range(1, 86_401):
        clock.advance(1.0)
        lines.update()
        if capsys.readouterr().err:
            printed_after.append(second)
    assert printed_after[:3] == [10, 20, 30]
    assert 200 < len(printed_after) < 400
    gaps = [after - before for before, after in pairwise(printed_after)]
    assert max(gaps) <= 86_400 / 50 + 1
    lines.close()
    assert capsys.readouterr().err == "Training: step 86,400 of 86,400 (100%), 24:00:00, 1 per second\n"


def test_a_line_states_what_is_left() -> None:
    """The rate counts from where the run resumed."""
    clock = ManualClock()
    lines = ProgressLines(1_000, 400, "Training", clock=clock.monotonic)
    clock.advance(50.0)
    lines.n = 500
    assert lines.line(clock.monotonic()) == (
        "Training: step 500 of 1,000 (50%), 50 s so far, 2 per second, 0:04:10 left"
    )


def test_a_short_evaluation_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Only one that takes longer than 10 seconds, which then prints its end as well."""
    clock = ManualClock()
    for seconds in (1.0, 6.0):
        lines = ProgressLines(2, name="Evaluation", unit="batch", leave=False, clock=clock.monotonic)
        for _batch in range(2):
            clock.advance(seconds)
            lines.update()
        lines.close()
        printed = capsys.readouterr().err.splitlines()
        expected = "Evaluation: batch 2 of 2 (100%), 12 s, 0.167 per second"
        assert printed == ([] if seconds < 5 else [expected, expected])


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("the pipe is closed")


def test_a_closed_pipe_ends_the_lines_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failing output is reported once."""
    monkeypatch.setattr(sys, "stderr", Gone())
    callback, state = ProgressCallback(), TrainerState(max_steps=1, global_step=1)
    callback.on_train_begin(None, state, CONTROL)
    callback.on_train_end(None, state, CONTROL)
    (reported,) = caplog.messages
    assert "the pipe is closed" in reported


def test_rows_are_aligned_below_one_header() -> None:
    """The header is repeated if the columns change, and after 20 lines, those between the rows included."""
    rows = AlignedRows()
    first = rows.lines({"step": "4", "epoch": "0.5", "eval_accuracy": "0.9062"}, 80)
    assert first == ["      step       epoch  eval_accuracy", "         4         0.5         0.9062"]
    assert rows.lines({"step": "1,000", "epoch": "10", "eval_accuracy": "1"}, 80) == [
        "     1,000          10              1"
    ]
    assert len(rows.lines({"step": "8", "epoch": "1", "test_accuracy": "1"}, 80)) == 2
    headed = []
    for step in range(24):
        rows.interrupt()
        headed.append(len(rows.lines({"step": str(step), "epoch": "1", "test_accuracy": "1"}, 80)) == 2)
    assert headed == [step in (10, 21) for step in range(24)]


def test_a_wide_row_continues_below() -> None:
    """No line is wider than the terminal, and every metric is shown."""
    row = {f"eval_metric_{number}": f"0.{number}" for number in range(20)}
    lines = AlignedRows().lines(row, 60)
    assert max(map(len, lines)) <= 60
    assert all(any(name in line for line in lines) for name in row)
    assert len(lines) == 2 * 6


@pytest.mark.parametrize(
    ("logs", "is_one"),
    [
        ({"eval_loss": 1.0, "eval_runtime": 2.0}, True),
        ({"eval_near_loss": 1.0, "eval_near_runtime": 2.0}, True),
        ({"train_loss": 1.0, "train_runtime": 2.0}, False),
        ({"loss": 1.0}, False),
    ],
)
def test_which_logs_are_evaluations(logs: dict[str, Any], is_one: bool) -> None:
    """Those with a time that is not the training's."""
    assert is_evaluation(logs) == is_one


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0021, "2.1 ms"), (0.0999, "0.0999 s"), (3.5219, "3.52 s"), (119.6, "120 s"), (3723.4, "1:02:03")],
)
def test_durations(seconds: float, text: str) -> None:
    """In milliseconds, seconds, or hours, minutes and seconds."""
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1234, "1.23 kB"), (34_000_000, "34 MB"), (2.5e9, "2.5 GB")]
)
def test_sizes(size: int, text: str) -> None:
    """In the decimal unit that fits."""
    assert size_text(size) == text
