"""ProgressCallback shows a run's progress, and its failures never end the run."""

from __future__ import annotations

import gc
import re
import sys
from typing import Any

import pytest
from tqdm.auto import tqdm

from hexloop.app.callbacks import ProgressCallback, TrainerControl, TrainerState

CONTROL = TrainerControl()


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard error count as a terminal, and standard output as a file."""
    monkeypatch.setattr("hexloop.app.callbacks.console.is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setattr("hexloop.app.callbacks.progress.is_terminal", lambda stream: stream is sys.stderr)


def steps(callback: ProgressCallback, state: TrainerState, *numbers: int) -> None:
    for number in numbers:
        state.global_step = number
        callback.on_step_end(None, state, CONTROL)


def last_frame(error_output: str) -> str:
    return error_output.rstrip("\n").rsplit("\r", 1)[-1]


def test_training_bar_ends_at_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    """After a run the bar shows the last step and stays on the screen."""
    callback, state = ProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(None, state, CONTROL)
    steps(callback, state, 1, 2, 3, 4)
    assert (callback.training_bar.n, callback.training_bar.total) == (4, 4)
    callback.on_train_end(None, state, CONTROL)
    assert re.match(r"100%\|.*\| 4/4 \[", last_frame(capsys.readouterr().err))
    assert callback.training_bar is None


def test_bar_of_a_run_that_stops_early_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """After early stopping the total is the steps done; the bar says which step it did not reach."""
    callback, state = ProgressCallback(), TrainerState(max_steps=1200)
    callback.on_train_begin(None, state, CONTROL)
    steps(callback, state, 1, 2, 3)
    callback.on_train_end(None, state, CONTROL)
    frame = last_frame(capsys.readouterr().err)
    assert re.match(r"100%\|.*\| 3/3 \[", frame)
    assert frame.endswith("ended before step 1,200]")


def test_bar_of_a_run_that_fails_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that raises is not shown as complete."""
    callback, state = ProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(None, state, CONTROL)
    steps(callback, state, 1)
    callback.close()
    assert re.match(r" 25%\|.*\| 1/4 \[", last_frame(capsys.readouterr().err))


def test_bar_of_a_resumed_run_starts_at_the_resumed_step(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar of a run resumed at step 6 shows 6 at first and 7 after a step."""
    callback, state = ProgressCallback(), TrainerState(max_steps=8, global_step=6)
    callback.on_train_begin(None, state, CONTROL)
    assert " 6/8 " in last_frame(capsys.readouterr().err)
    steps(callback, state, 7)
    assert callback.training_bar.n == 7
    callback.close()


def test_evaluation_has_its_own_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar counts the batches and disappears after the evaluation; the training bar stays."""
    callback, state = ProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(None, state, CONTROL)
    for _batch in range(3):
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=["batch"] * 3)
    bar = callback.prediction_bar
    assert (bar.n, bar.total, bar.leave) == (3, 3, False)
    callback.on_evaluate(None, state, CONTROL, metrics={})
    assert callback.prediction_bar is None
    assert bar.disable  # closed
    assert callback.training_bar is not None
    callback.on_train_end(None, state, CONTROL)


def test_bar_outside_a_run_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """Outside a run the bar of a prediction stays on the screen."""
    callback, state = ProgressCallback(), TrainerState()
    for _batch in range(2):
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=["batch"] * 2)
    callback.on_predict(None, state, CONTROL, metrics={})
    assert callback.prediction_bar is None
    assert re.match(r"100%\|.*\| 2/2 \[", last_frame(capsys.readouterr().err))


@pytest.mark.parametrize("batches", [None, iter([])])
def test_data_without_a_length_has_no_bar(batches: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Data without a length is predicted without a bar."""
    callback = ProgressCallback()
    callback.on_prediction_step(None, TrainerState(), CONTROL, eval_dataloader=batches)
    callback.on_evaluate(None, TrainerState(), CONTROL, metrics={})
    assert callback.prediction_bar is None
    assert capsys.readouterr().err == ""


def test_logs_are_written_above_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """A log is printed as one shortened line, and the logs are not modified."""
    callback, state = ProgressCallback(max_str_len=10), TrainerState(max_steps=4)
    logs = {"loss": 0.693147, "total_flos": 1e12, "epoch": 1, "short": "x" * 10, "long": "x" * 11}
    callback.on_train_begin(None, state, CONTROL)
    callback.on_log(None, state, CONTROL, logs=logs)
    callback.on_train_end(None, state, CONTROL)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    shown = "{'loss': '0.6931', 'epoch': 1, 'short': 'xxxxxxxxxx', 'long': '<11 characters, more than max_str_len=10>'}"
    assert line.strip("\r ") == shown
    assert len(logs["long"]) == 11  # type: ignore[arg-type]


def test_log_outside_a_run_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs are not printed if there is no training bar."""
    callback = ProgressCallback()
    callback.on_log(None, TrainerState(), CONTROL, logs={"loss": 1.0})
    callback.on_step_end(None, TrainerState(), CONTROL)
    callback.on_train_end(None, TrainerState(), CONTROL)
    assert capsys.readouterr() == ("", "")


def test_only_rank_0_shows_bars(capsys: pytest.CaptureFixture[str]) -> None:
    """Other processes show nothing."""
    callback, state = ProgressCallback(), TrainerState(max_steps=1, is_world_process_zero=False)
    callback.on_train_begin(None, state, CONTROL)
    steps(callback, state, 1)
    callback.on_prediction_step(None, state, CONTROL, eval_dataloader=["batch"])
    callback.on_evaluate(None, state, CONTROL, metrics={})
    callback.on_log(None, state, CONTROL, logs={"loss": 1.0})
    callback.on_train_end(None, state, CONTROL)
    assert capsys.readouterr() == ("", "")


def test_second_run_closes_open_bars(capsys: pytest.CaptureFixture[str]) -> None:
    """After a run that failed, the next run opens new bars."""
    callback, state = ProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(None, state, CONTROL)
    callback.on_prediction_step(None, state, CONTROL, eval_dataloader=["batch"])
    abandoned = [callback.training_bar, callback.prediction_bar]
    callback.on_train_begin(None, state, CONTROL)
    assert all(bar.disable for bar in abandoned)
    assert not callback.training_bar.disable
    callback.on_train_end(None, state, CONTROL)


class Screen:
    """A stream whose writes fail after the first `good_writes`: one of them, or all."""

    def __init__(self, good_writes: int, error: BaseException, recovers: bool) -> None:
        self._left, self._error, self._recovers = good_writes, error, recovers

    def write(self, text: str) -> int:
        self._left -= 1
        if self._left == -1 or (self._left < 0 and not self._recovers):
            raise self._error
        return len(text)

    def flush(self) -> None:
        pass


def whole_run(callback: ProgressCallback) -> None:
    state = TrainerState(max_steps=3)
    callback.on_train_begin(None, state, CONTROL)
    for step in (1, 2, 3):
        steps(callback, state, step)
        callback.on_log(None, state, CONTROL, logs={"loss": 1.0})
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=["batch"])
        callback.on_evaluate(None, state, CONTROL, metrics={})
    callback.on_train_end(None, state, CONTROL)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("good_writes", "recovers"), [*((writes, True) for writes in range(12)), (1, False)])
def test_failing_stream_disables_the_bar_only(
    good_writes: int, recovers: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing write is logged once, and neither this run nor the next shows a bar."""
    monkeypatch.setattr("sys.stderr", Screen(good_writes, OSError("terminal gone"), recovers))
    monkeypatch.setattr(tqdm, "monitor_interval", 0)
    gc.collect()  # tqdm's list of bars must not shrink while it is gone through
    callback = ProgressCallback()
    whole_run(callback)
    whole_run(callback)
    (reported,) = caplog.messages
    assert "terminal gone" in reported
    assert callback.training_bar is callback.prediction_bar is None


def test_keyboard_interrupt_while_drawing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control-C is not treated as a failure of the bar."""
    monkeypatch.setattr("sys.stderr", Screen(0, KeyboardInterrupt(), recovers=True))
    with pytest.raises(KeyboardInterrupt):
        ProgressCallback().on_train_begin(None, TrainerState(max_steps=3), CONTROL)
