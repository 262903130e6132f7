"""The callback that shows a run in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from hexloop.app.callbacks.control import TrainerControl
from hexloop.app.callbacks.display import ProgressDisplay
from hexloop.app.callbacks.given_up import GivenUpOnFailure
from hexloop.app.callbacks.notebook.bar import Bar
from hexloop.app.callbacks.notebook.table import MISSING, MetricsTable
from hexloop.app.callbacks.progress import batch_count
from hexloop.app.callbacks.trainer_state import TrainerState

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
