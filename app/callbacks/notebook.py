"""A progress bar as HTML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from html import escape
from time import monotonic
from typing import Any

from attrs import define, field

from hexloop.app.callbacks.base import TrainerControl
from hexloop.app.callbacks.progress import GivenUpOnFailure, ProgressDisplay, batch_count
from hexloop.app.callbacks.trainer_state import TrainerState

WIDTH = 300
"""Pixels."""


@define
class Bar:
    """How many of `total` are done, since when, and how long the rest may take.

    done: where it begins, which is where the rate is measured from. clock: seconds, from any point in time.
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
        """The bar, and beside it the counts, the times and the comment."""
        return (
            f"<div><progress value='{self.done}' max='{self.total}' "
            f"style='width:{WIDTH}px; height:20px; vertical-align: middle;'></progress> {self.label()}</div>"
        )

    def label(self) -> str:
        """What stands beside the bar: `[3/10 00:06 < 00:14, 0.50 it/s, comment]`."""
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
    """Whole seconds as `mm:ss`, from an hour on `h:mm:ss`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


MISSING = "No log"
"""What stands where nothing was measured."""


class MetricsTable:
    """Rows of named cells. The first column tells rows apart: what is entered under its last value joins that row.

    columns: the names of the first columns, in order; others are added as rows bring them.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = list(columns)
        self.rows: list[dict[str, object]] = []

    def enter(self, row: Mapping[str, object]) -> None:
        """Put `row`, which has the first column, below the others or into the last one."""
        self.columns += [name for name in row if name not in self.columns]
        key = self.columns[0]
        if self.rows and self.rows[-1][key] == row[key]:
            self.rows[-1] |= row
        else:
            self.rows.append(dict(row))

    def html(self) -> str:
        """The table, its fractions with six decimals."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        lines = [f'<table border="1" class="dataframe"><thead><tr style="text-align: left;">{head}</tr></thead><tbody>']
        for row in self.rows:
            cells = (_cell(row.get(name, MISSING)) for name in self.columns)
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return "\n".join([*lines, "</tbody></table>"])


def _cell(value: object) -> str:
    return f"<td>{value:.6f}</td>" if isinstance(value, float) else f"<td>{escape(str(value))}</td>"


SECONDS_BETWEEN_DRAWINGS = 0.2
NOT_MEASURED = ("_runtime", "_per_second")
"""Endings of what the table leaves out: times."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


class NotebookProgressCallback(ProgressDisplay):
    """A bar of optimizer steps, and below it a table of the training loss and of what evaluations measured.

    A row is entered at each evaluation, or at each log where nothing is evaluated. Needs IPython. Only the first
    process of all shows anything. A display that fails is given up with a warning, and the run goes on.

    clock: seconds, from any point in time; the display is drawn anew five times a second at most.
    """

    shown_as = "notebook's progress table"

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.table: MetricsTable | None = None
        self.training_bar: Bar | None = None
        self.prediction_bar: Bar | None = None
        self._clock = clock
        self._drawn_at = 0.0
        self._shown: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Show a bar that stands where the run does, and a table without rows."""
        if self._shows(state):
            with GivenUpOnFailure(self):
                self.close()
                loss = ["Validation Loss"] if evaluates(args) else []
                self.table = MetricsTable([first_column(args), "Training Loss", *loss])
                self.training_bar = Bar(state.max_steps, state.global_step, _epochs(state), self._clock)
                self._draw()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the bar on."""
        bar = self.training_bar
        if bar is not None:
            bar.done = state.global_step
            if self._clock() - self._drawn_at >= SECONDS_BETWEEN_DRAWINGS:
                with GivenUpOnFailure(self):
                    bar.comment = _epochs(state)
                    self._draw()

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Move the bar of held-out batches on; there is none where nobody knows how many batches there are."""
        if not self._shows(state):
            return
        with GivenUpOnFailure(self):
            if self.prediction_bar is None and (batches := batch_count(eval_dataloader)) is not None:
                self.prediction_bar = Bar(batches, clock=self._clock)
            if self.prediction_bar is not None:
                self.prediction_bar.done += 1
                if self.prediction_bar.done == 1 or self._clock() - self._drawn_at >= SECONDS_BETWEEN_DRAWINGS:
                    self._draw()

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Take the bar of held-out batches away."""
        self._end_prediction()

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Enter the training loss, where no evaluation will."""
        if self.table is not None and logs and "loss" in logs and not evaluates(args):
            with GivenUpOnFailure(self):
                self.table.enter({first_column(args): state.global_step, "Training Loss": logs["loss"]})
                self._draw()

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Enter what was measured, beside the last training loss; outside a run show it in a table of its own."""
        if not self._shows(state):
            return
        with GivenUpOnFailure(self):
            row = _row(args, state, metrics or {})
            table = self.table or MetricsTable(row)
            table.enter(row)
            if self.table is None:
                self._display(table.html())
            self._end_prediction()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave the bar and the table as they stand."""
        if self.training_bar is not None:
            self.training_bar.comment = _epochs(state)
        self.close()

    def close(self) -> None:
        """Show the last state of this run, however it ended, and nothing more."""
        with GivenUpOnFailure(self):
            self._end_prediction()
        self.table = self.training_bar = self._shown = None

    def _vanish(self) -> None:
        self.table = self.training_bar = self.prediction_bar = self._shown = None

    def _end_prediction(self) -> None:
        bar, self.prediction_bar = self.prediction_bar, None
        if bar is not None or self.training_bar is not None:
            with GivenUpOnFailure(self):
                self._draw()
        if self.training_bar is None:
            self._shown = None

    def _draw(self) -> None:
        """Show everything anew in its place."""
        parts = (self.training_bar, self.table, self.prediction_bar)
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


def evaluates(args: Any) -> bool:
    """Whether the run evaluates."""
    return str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no"


def first_column(args: Any) -> str:
    """By what the rows of a run are told apart."""
    by_epoch = str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "epoch"
    return "Epoch" if by_epoch else "Step"


def _row(args: Any, state: TrainerState, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A row of an evaluation; metrics are named without their first word, which is `eval`."""
    column = first_column(args)
    losses = [logs["loss"] for logs in state.log_history if "loss" in logs]
    row: dict[str, Any] = {
        column: int(state.epoch) if column == "Epoch" else state.global_step,
        "Training Loss": losses[-1] if losses else MISSING,
    }
    for name, value in metrics.items():
        if name not in ("epoch", "total_flos") and not name.endswith(NOT_MEASURED):
            words = name.split("_")[1:]
            row["Validation Loss" if words == ["loss"] else " ".join(word.capitalize() for word in words)] = value
    return row


def _epochs(state: TrainerState) -> str:
    done = int(state.epoch) if state.epoch == int(state.epoch) else f"{state.epoch:.2f}"
    return f"Epoch {done}/{state.num_train_epochs}"
