"""The progress display of notebooks: a bar as HTML, a table that grows with every evaluation, and curves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from html import escape
from time import monotonic
from typing import Any

from attrs import define, field

from hexloop.app.callbacks.base import Logs, TrainerControl
from hexloop.app.callbacks.curves import RunCurves
from hexloop.app.callbacks.progress import DisabledOnFailure, ProgressDisplay
from hexloop.app.callbacks.trainer_state import TrainerState
from hexloop.domain.evaluation import CLOCK_READINGS

WIDTH = 300
"""Pixels."""


@define
class Bar:
    """A progress bar as HTML: how many of `total` are done, the time since the start, and the estimated rest.

    done: the initial value, from which the rate is measured. clock: returns seconds from any point in time.
    """

    total: int
    done: int = 0
    comment: str = ""
    clock: Callable[[], float] = monotonic
    _began_with: int = field(init=False)
    _began_at: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._began_with, self._began_at = self.done, self.clock()

    def html(self) -> str:
        """Return the bar with the counts, the times and the comment beside it."""
        return (
            f"<div><progress value='{self.done}' max='{self.total}' "
            f"style='width:{WIDTH}px; height:20px; vertical-align: middle;'></progress> {self.label()}</div>"
        )

    def label(self) -> str:
        """Return the text beside the bar: `[3/10 00:06 < 00:14, 0.50 it/s, comment]`."""
        seconds, counted = self.clock() - self._began_at, self.done - self._began_with
        parts = [f"{self.done}/{self.total} {as_time(seconds)}"]
        if counted > 0 and seconds > 0:
            if self.done < self.total:
                parts[0] += f" &lt; {as_time(seconds / counted * (self.total - self.done))}"
            parts.append(f"{counted / seconds:.2f} it/s")
        if self.comment:
            parts.append(self.comment)
        return f"[{', '.join(parts)}]"


def as_time(seconds: float) -> str:
    """Return whole seconds as `mm:ss`, from an hour on as `h:mm:ss`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


MISSING = "No log"
"""The content of cells without a value."""


class MetricsTable:
    """Rows of named cells as HTML. The first column identifies rows: values under its last value are added to that row.

    columns: the names of the first columns, in order; rows may add others.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = list(columns)
        self.rows: list[dict[str, object]] = []

    def enter(self, row: Mapping[str, object]) -> None:
        """Add `row`, which has the first column, as a new row or to the last one."""
        self.columns += [name for name in row if name not in self.columns]
        key = self.columns[0]
        if self.rows and self.rows[-1][key] == row[key]:
            self.rows[-1] |= row
        else:
            self.rows.append(dict(row))

    def html(self) -> str:
        """Return the table, floats with six decimals."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        lines = [f'<table border="1" class="dataframe"><thead><tr style="text-align: left;">{head}</tr></thead><tbody>']
        for row in self.rows:
            cells = (_cell(row.get(name, MISSING)) for name in self.columns)
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return "\n".join([*lines, "</tbody></table>"])


def _cell(value: object) -> str:
    return f"<td>{value:.6f}</td>" if isinstance(value, float) else f"<td>{escape(str(value))}</td>"


SECONDS_BETWEEN_DRAWINGS = 0.2


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


class NotebookProgressCallback(ProgressDisplay):
    """A bar of optimizer steps, and below it a table of the training loss and the metrics of evaluations, and curves.

    A row is added at each evaluation, or at each log if the run does not evaluate. Needs IPython.

    Args:
        clock: returns seconds from any point in time; the display is redrawn at most five times a second.
    """

    shown_as = "notebook's progress table"

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.table: MetricsTable | None = None
        self.curves: RunCurves | None = None
        self.training_bar: Bar | None = None
        self.prediction_bar: Bar | None = None
        self._clock = clock
        self._drawn_at = 0.0
        self._shown: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Show a bar at the position of the run, and an empty table."""
        if self._shows(state):
            with DisabledOnFailure(self):
                self.close()
                loss = ["Validation Loss"] if args.eval_strategy != "no" else []
                self.table = MetricsTable([_first_column(args), "Training Loss", *loss])
                self.curves = RunCurves()
                for entry in state.log_history:  # of a run that is resumed
                    self.curves.add(int(entry.get("step", 0)), entry)
                self.training_bar = Bar(state.max_steps, state.global_step, _epochs(state), self._clock)
                self._draw()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar."""
        bar = self.training_bar
        if bar is not None:
            bar.done = state.global_step
            if self._clock() - self._drawn_at >= SECONDS_BETWEEN_DRAWINGS:
                with DisabledOnFailure(self):
                    bar.comment = _epochs(state)
                    self._draw()

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Logs | None = None, **kwargs: Any
    ) -> None:
        """Add the values to the curves, and the training loss to the table, if no evaluation does.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            logs: the values by name.
            **kwargs: the other keywords of the event.
        """
        if self.curves is not None and logs:
            with DisabledOnFailure(self):
                self.curves.add(state.global_step, logs)
        if self.table is not None and logs and "loss" in logs and args.eval_strategy == "no":
            with DisabledOnFailure(self):
                self.table.enter({_first_column(args): state.global_step, "Training Loss": logs["loss"]})
                self._draw()

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Logs | None = None, **kwargs: Any
    ) -> None:
        """Add the metrics beside the last training loss; outside of a run show them in a separate table.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            metrics: the metrics by name.
            **kwargs: the other keywords of the event.
        """
        if not self._shows(state):
            return
        with DisabledOnFailure(self):
            row = _row(args, state, metrics or {})
            table = self.table or MetricsTable(row)
            table.enter(row)
            if self.table is None:
                self._display(table.html())
            self._end_prediction()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Complete the bar, also of a run that ends before its last step, and close it and the table."""
        if self.training_bar is not None:
            self.training_bar.done = self.training_bar.total = state.global_step
            self.training_bar.comment = _epochs(state)
        self.close()

    def close(self) -> None:
        """Show the last state of the run, however it ended, and close the display."""
        with DisabledOnFailure(self):
            self._end_prediction()
        self.table = self.curves = self.training_bar = self._shown = None

    def _new_prediction_bar(self, batches: int) -> Bar:
        return Bar(batches, clock=self._clock)

    def _advance_prediction(self) -> None:
        assert self.prediction_bar is not None
        self.prediction_bar.done += 1
        if self.prediction_bar.done == 1 or self._clock() - self._drawn_at >= SECONDS_BETWEEN_DRAWINGS:
            self._draw()

    def _vanish(self) -> None:
        self.table = self.curves = self.training_bar = self.prediction_bar = self._shown = None

    def _end_prediction(self) -> None:
        bar, self.prediction_bar = self.prediction_bar, None
        if bar is not None or self.training_bar is not None:
            with DisabledOnFailure(self):
                self._draw()
        if self.training_bar is None:
            self._shown = None

    def _draw(self) -> None:
        """Redraw everything in place."""
        parts = (self.training_bar, self.table, self.curves, self.prediction_bar)
        page = "\n".join(part.html() for part in parts if part is not None)
        self._drawn_at = self._clock()
        if self._shown is None:
            self._shown = self._display(page)
        else:
            from IPython.display import HTML

            self._shown.update(HTML(page))

    def _display(self, page: str) -> Any:
        from IPython.display import HTML, display

        return display(HTML(page), display_id=True)


def _first_column(args: Any) -> str:
    """Return the name of the column that identifies rows."""
    return "Epoch" if args.eval_strategy == "epoch" else "Step"


def _row(args: Any, state: TrainerState, metrics: Logs) -> dict[str, Any]:
    """Return the row of an evaluation; metrics are named without their prefix `eval`."""
    column = _first_column(args)
    losses = [logs["loss"] for logs in state.log_history if "loss" in logs]
    row: dict[str, Any] = {
        column: int(state.epoch) if column == "Epoch" else state.global_step,
        "Training Loss": losses[-1] if losses else MISSING,
    }
    for name, value in metrics.items():
        if name not in ("epoch", "total_flos") and not name.endswith(CLOCK_READINGS):
            words = name.split("_")[1:]
            row["Validation Loss" if words == ["loss"] else " ".join(word.capitalize() for word in words)] = value
    return row


def _epochs(state: TrainerState) -> str:
    done = int(state.epoch) if state.epoch == int(state.epoch) else f"{state.epoch:.2f}"
    return f"Epoch {done}/{state.num_train_epochs}"
