"""NotebookProgressCallback shows a run as a bar and a table, and its failures never end the run."""

from __future__ import annotations

import re
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import IPython.display
import pytest
from attrs import define, field

from hexloop.app.callbacks import TrainerControl, TrainerState
from hexloop.app.callbacks.curves import RunCurves
from hexloop.app.callbacks.notebook import Bar, MetricsTable, NotebookProgressCallback, as_time, in_notebook
from hexloop.testing import ManualClock

CONTROL = TrainerControl()
BY_STEPS, BY_EPOCHS, NEVER = (SimpleNamespace(eval_strategy=each) for each in ("steps", "epoch", "no"))


@define
class Screen:
    """The pages that a notebook shows, in order of their first display, each with its latest content."""

    pages: list[str] = field(factory=list)
    drawings: int = 0

    def display(self, page: Any, display_id: bool) -> Any:
        self.pages.append(page.data)
        self.drawings += 1
        return SimpleNamespace(update=partial(self.update, len(self.pages) - 1))

    def update(self, place: int, page: Any) -> None:
        self.pages[place] = page.data
        self.drawings += 1


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Replace IPython's display."""
    shown = Screen()
    monkeypatch.setattr(IPython.display, "display", shown.display)
    return shown


def cells(page: str) -> list[list[str]]:
    """Return the table of a page by rows, header first."""
    rows = page.split("<tr")[1:]
    return [[cell.split("<")[0] for cell in row.replace("<th>", "<td>").split("<td>")[1:]] for row in rows]


def test_one_row_for_each_evaluation(screen: Screen) -> None:
    """A row shows the step, the last training loss and the metrics without times."""
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=4, num_train_epochs=2)
    callback.on_train_begin(BY_STEPS, state, CONTROL)
    assert cells(screen.pages[0]) == [["Step", "Training Loss", "Validation Loss"]]
    state.global_step = 2
    callback.on_evaluate(
        BY_STEPS, state, CONTROL, metrics={"eval_loss": 2.0, "eval_f1_score": 0.5, "eval_runtime": 3.0}
    )
    state.global_step = 4
    state.log_history.append({"loss": 1.5, "step": 4})
    metrics = {"eval_loss": 1.0, "eval_f1_score": 0.75, "eval_samples_per_second": 3.0, "epoch": 2.0}
    callback.on_evaluate(BY_STEPS, state, CONTROL, metrics=metrics)
    callback.on_train_end(BY_STEPS, state, CONTROL)
    assert cells(screen.pages[0]) == [
        ["Step", "Training Loss", "Validation Loss", "F1 Score"],
        ["2", "No log", "2.000000", "0.500000"],
        ["4", "1.500000", "1.000000", "0.750000"],
    ]
    assert len(screen.pages) == 1
    assert "epoch" in metrics, "the metrics are the caller's"


def test_several_evaluation_sets_share_a_row(screen: Screen) -> None:
    """Metrics of another data set at the same step join the row under prefixed names."""
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(BY_EPOCHS, state, CONTROL)
    state.epoch = 1.0
    callback.on_evaluate(BY_EPOCHS, state, CONTROL, metrics={"eval_few_loss": 2.0})
    callback.on_evaluate(BY_EPOCHS, state, CONTROL, metrics={"eval_many_loss": 1.0})
    assert cells(screen.pages[0]) == [
        ["Epoch", "Training Loss", "Validation Loss", "Few Loss", "Many Loss"],
        ["1", "No log", "No log", "2.000000", "1.000000"],
    ]


def test_one_row_for_each_log_without_evaluations(screen: Screen) -> None:
    """Logs without a loss, such as the final ones, add no row."""
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(NEVER, state, CONTROL)
    for step, logs in ((2, {"loss": 0.5}), (4, {"loss": 0.25}), (4, {"train_loss": 0.4})):
        state.global_step = step
        callback.on_log(NEVER, state, CONTROL, logs=logs)
    assert cells(screen.pages[0]) == [["Step", "Training Loss"], ["2", "0.500000"], ["4", "0.250000"]]


def test_evaluation_outside_a_run_has_its_own_table(screen: Screen) -> None:
    """Outside a run, evaluation has its own table and prediction its own bar."""
    callback, state = NotebookProgressCallback(), TrainerState()
    for _batch in range(2):
        callback.on_prediction_step(NEVER, state, CONTROL, eval_dataloader=["batch"] * 2)
    callback.on_evaluate(NEVER, state, CONTROL, metrics={"eval_loss": 2.0})
    assert [cells(page) for page in screen.pages if "<table" in page] == [
        [["Step", "Training Loss", "Validation Loss"], ["0", "No log", "2.000000"]]
    ]
    callback.on_prediction_step(NEVER, state, CONTROL, eval_dataloader=["batch"] * 3)
    assert "value='1' max='3'" in screen.pages[-1]
    callback.on_predict(NEVER, state, CONTROL, metrics={})
    callback.on_prediction_step(NEVER, state, CONTROL, eval_dataloader=iter(()))
    assert callback.prediction_bar is None


def test_display_is_updated_five_times_a_second_at_most(screen: Screen) -> None:
    """Of 95 steps of 10 ms each, every twentieth is shown; a run that ends before its last step completes the bar."""
    clock = ManualClock()
    callback, state = NotebookProgressCallback(clock.monotonic), TrainerState(max_steps=100, num_train_epochs=1)
    callback.on_train_begin(NEVER, state, CONTROL)
    for step in range(1, 96):
        clock.advance(0.01)
        state.global_step = step
        callback.on_step_end(NEVER, state, CONTROL)
    assert screen.drawings <= 1 + 95 // 20
    callback.on_train_end(NEVER, state, CONTROL)
    assert "value='95' max='95'" in screen.pages[0]


def test_bar_shows_the_remaining_time() -> None:
    """The rate is measured from the step where the bar started, also after a resume."""
    clock = ManualClock()
    bar = Bar(total=20, done=10, comment="Epoch 1/2", clock=clock.monotonic)
    assert bar.label() == "[10/20 00:00, Epoch 1/2]"
    clock.advance(8.0)
    bar.done = 14
    assert bar.label() == "[14/20 00:08 &lt; 00:12, 0.50 it/s, Epoch 1/2]"
    assert [as_time(seconds) for seconds in (0, 61.9, 3600)] == ["00:00", "01:01", "1:00:00"]


def test_text_is_escaped() -> None:
    """Text metrics are accepted, and no text is rendered as HTML."""
    table = MetricsTable(["Step"])
    table.enter({"Step": 1, "a<b": "<script>"})
    assert "a&lt;b" in table.html()
    assert "&lt;script&gt;" in table.html()


def test_failing_display_is_disabled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, and nothing more is shown."""

    def failing(page: Any, display_id: bool) -> None:
        raise OSError("the notebook is gone")

    monkeypatch.setattr(IPython.display, "display", failing)
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(BY_STEPS, state, CONTROL)
    callback.on_step_end(BY_STEPS, state, CONTROL)
    callback.on_prediction_step(BY_STEPS, state, CONTROL, eval_dataloader=[1])
    callback.on_log(BY_STEPS, state, CONTROL, logs={"loss": 1.0})
    callback.on_evaluate(BY_STEPS, state, CONTROL, metrics={})
    callback.on_train_end(BY_STEPS, state, CONTROL)
    (reported,) = caplog.messages
    assert re.search("the notebook is gone.*disable_tqdm=True", reported)


def test_only_rank_0_displays(screen: Screen) -> None:
    """Only the first of all processes displays."""
    callback, state = NotebookProgressCallback(), TrainerState(is_world_process_zero=False, max_steps=4)
    callback.on_train_begin(BY_STEPS, state, CONTROL)
    callback.on_evaluate(BY_STEPS, state, CONTROL, metrics={"eval_loss": 1.0})
    callback.on_train_end(BY_STEPS, state, CONTROL)
    assert screen.pages == []


def test_only_a_kernel_counts_as_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without IPython, or IPython in a terminal, does not count as a notebook."""
    assert not in_notebook()
    terminal: dict[str, object] = {}
    for config, expected in ((terminal, False), ({"IPKernelApp": {}}, True)):
        shell = SimpleNamespace(get_ipython=partial(SimpleNamespace, config=config))
        monkeypatch.setitem(sys.modules, "IPython", shell)
        assert in_notebook() is expected


def test_curves_are_drawn_below_the_table(screen: Screen) -> None:
    """Once a value has two points: losses in one chart, each other value in its own. A resumed run has its history."""
    state = TrainerState(max_steps=9, global_step=2)
    state.log_history = [{"step": 1, "loss": 4.0}, {"step": 2, "loss": 3.0, "learning_rate": 0.1}]
    callback = NotebookProgressCallback()
    callback.on_train_begin(NEVER, state, CONTROL)
    assert svg(screen.pages[0]) == [("loss from step 1 to 2, last 3", 1)]
    state.global_step = 3
    callback.on_log(NEVER, state, CONTROL, logs={"loss": 2.0, "learning_rate": 0.05, "epoch": 0.5, "eval_runtime": 1.0})
    callback.on_log(NEVER, state, CONTROL, logs={"eval_loss": 2.5, "train_runtime": 3.0})
    callback.on_train_end(NEVER, state, CONTROL)
    assert svg(screen.pages[0]) == [
        ("loss from step 1 to 3, last 2.5", 2),
        ("learning_rate from step 2 to 3, last 0.05", 1),
    ]


def test_charts_bear_any_value() -> None:
    """Names with markup, values that are not finite or very large, equal ones, and many points."""
    curves = RunCurves()
    for step in range(5_000):
        curves.add(step, {"<b>'\"": step, "flat": 1, "huge": (-1) ** step * 1.7e308, "nan": float("nan"), "text": "x"})
    page = curves.html()
    assert ElementTree.fromstring(page).tag == "div"
    assert "<b>" not in page
    assert len(svg(page)) == 3
    assert len(page) < 30_000
    assert RunCurves().html() == ""


def svg(page: str) -> list[tuple[str, int]]:
    """Return the label of each chart, and how many lines it has."""
    charts = re.findall(r"aria-label='([^']*)'.*?</svg>", page)
    parts = page.split("<svg")[1:]
    return [(label, part.count("<polyline")) for label, part in zip(charts, parts, strict=True)]
