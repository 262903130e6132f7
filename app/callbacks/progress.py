"""Progress displays: bars or lines, and printed logs. A display that fails never ends the run."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks.base import Logs, TrainerCallback, TrainerControl
from hexloop.app.callbacks.beside_bars import GUARD, is_terminal
from hexloop.app.callbacks.console import AlignedRows, is_evaluation, new_bar, terminal_width
from hexloop.app.callbacks.trainer_state import TrainerState


class Display(ABC):
    """A display that is disabled, and says so in the log, when it fails, while the run continues."""

    shown_as: ClassVar[str]
    """The name of the display in the log."""

    _disabled = False

    def disable(self, error: Exception) -> None:
        """Disable the display, and log the error.

        Args:
            error: what the display raised.
        """
        self._vanish()
        self._disabled = True
        logging.getLogger("hexloop").warning(
            "The %s failed (%s: %s); the run continues without it. Set disable_tqdm=True to disable it.",
            self.shown_as,
            type(error).__name__,
            error,
        )

    @abstractmethod
    def _vanish(self) -> None:
        """Drop the display without updating it any more."""


class DisabledOnFailure:
    """A context in which an error disables the `display`, and nothing else."""

    __slots__ = ("_display",)

    def __init__(self, display: Display) -> None:
        self._display = display

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._display.disable(error)
        return True


class ProgressDisplay(TrainerCallback, Display):
    """A display of a run from its start to its end, with a bar of batches during evaluations and predictions.

    Only the first process displays anything. A display that fails is disabled with a warning, and the run continues.
    """

    prediction_bar: Any = None

    @abstractmethod
    def close(self) -> None:
        """Close the display of this run. Called however the run ends, also with an error; may be called twice."""

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Advance the bar of evaluation batches; there is none if their number is unknown.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            eval_dataloader: the batches of the evaluation.
            **kwargs: the other keywords of the event.
        """
        if not self._shows(state):
            return
        with DisabledOnFailure(self):
            if self.prediction_bar is None and (batches := batch_count(eval_dataloader)) is not None:
                self.prediction_bar = self._new_prediction_bar(batches)
            if self.prediction_bar is not None:
                self._advance_prediction()

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Logs | None = None, **kwargs: Any
    ) -> None:
        """Remove the bar of evaluation batches."""
        self._end_prediction()

    @abstractmethod
    def _new_prediction_bar(self, batches: int) -> Any: ...

    @abstractmethod
    def _advance_prediction(self) -> None: ...

    @abstractmethod
    def _end_prediction(self) -> None: ...

    def _shows(self, state: TrainerState) -> bool:
        return state.is_world_process_zero and not self._disabled


def batch_count(batches: Any) -> int | None:
    """Return the number of batches; None if it is unknown."""
    try:
        return len(batches)
    except (TypeError, NotImplementedError):
        return None


def readable(logs: Logs) -> dict[str, Any]:
    """Return readable logs: floats to four significant digits, without `total_flos`."""
    return {
        name: f"{value:.4g}" if isinstance(value, float) else value
        for name, value in logs.items()
        if name != "total_flos"
    }


class PrinterCallback(TrainerCallback):
    """Prints every log to standard output, from the first process of each machine."""

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Logs | None = None, **kwargs: Any
    ) -> None:
        """Print `logs` on one line.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            logs: the values by name.
            **kwargs: the other keywords of the event.
        """
        if logs is not None and state.is_local_process_zero:
            print(readable(logs))


class ProgressCallback(ProgressDisplay):
    """A bar of optimizer steps, one of evaluation batches during an evaluation, and the logs above them.

    On a terminal, evaluations are rows of a table. Where standard error is not a terminal, lines at a bounded rate take
    the place of the bars.

    Args:
        max_str_len: longer strings in the logs are not shown.
    """

    shown_as = "progress bar"

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: Any = None
        self.current_step = 0
        self._is_beside = False
        self._rows = AlignedRows()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Show a bar at the position of the run. Output of the other processes stays clear of it."""
        if not state.is_world_process_zero and not self._is_beside:
            GUARD.start(draws=False)
            self._is_beside = True
        if self._shows(state):
            with DisabledOnFailure(self):
                self.close()
                self.training_bar = new_bar(state.max_steps, state.global_step, "Training", "step")
                self.current_step = state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar."""
        if self.training_bar is not None:
            with DisabledOnFailure(self):
                self.training_bar.update(state.global_step - self.current_step)
                self.current_step = state.global_step

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Remove the bar of evaluation batches."""
        self._end_prediction()

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Logs | None = None, **kwargs: Any
    ) -> None:
        """Write `logs` above the bar, to standard output: an evaluation on a terminal as a row, others as they are.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            logs: the values by name.
            **kwargs: the other keywords of the event.
        """
        if self.training_bar is None or logs is None:
            return
        with DisabledOnFailure(self):
            shown = {name: self._shortened(value) for name, value in readable(logs).items()}
            if is_evaluation(logs) and is_terminal(sys.stdout):
                self._write_row(state.global_step, shown)
            else:
                self.training_bar.write(str(shown))
                self._rows.interrupt()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Complete the bar, also of a run that ends before its last step, and close it."""
        bar = self.training_bar
        if bar is not None:
            with DisabledOnFailure(self):
                bar.update(state.global_step - self.current_step)
                if state.global_step < bar.total:
                    bar.set_postfix_str(f"ended before step {bar.total:,}", refresh=False)
                    bar.total = state.global_step
        self.close()

    def close(self) -> None:
        """Close the bars, however the run ended."""
        if self._is_beside:
            GUARD.stop()
            self._is_beside = False
        self._end_prediction()
        bar, self.training_bar = self.training_bar, None
        if bar is not None:
            with DisabledOnFailure(self):
                bar.close()

    def _new_prediction_bar(self, batches: int) -> Any:
        return new_bar(batches, name="Evaluation", unit="batch", leave=self.training_bar is None)

    def _advance_prediction(self) -> None:
        self.prediction_bar.update(1)

    def _vanish(self) -> None:
        for bar in (self.training_bar, self.prediction_bar):
            if bar is not None:
                bar.disable = True  # otherwise it would draw once more when it is closed
                with suppress(Exception):
                    bar.close()
        self.training_bar = self.prediction_bar = None

    def _end_prediction(self) -> None:
        bar, self.prediction_bar = self.prediction_bar, None
        if bar is not None:
            with DisabledOnFailure(self):
                bar.close()

    def _write_row(self, step: int, shown: dict[str, Any]) -> None:
        """Write the metrics of an evaluation below those of the last one, without its speed in steps."""
        metrics = {name: value for name, value in shown.items() if not name.endswith("_steps_per_second")}
        row = {"step": f"{step:,}", "epoch": metrics.pop("epoch", ""), **metrics}
        for line in self._rows.lines(row, terminal_width()):
            self.training_bar.write(line)

    def _shortened(self, value: Any) -> Any:
        if isinstance(value, str) and len(value) > self.max_str_len:
            return f"<{len(value)} characters, more than max_str_len={self.max_str_len}>"
        return value


class SkipProgressBar(Display):
    """Shows how many of the samples before a resumed position are skipped."""

    shown_as = "progress bar of skipped samples"
    _bar: Any = None

    def __call__(self, skipped: int, total: int) -> None:
        """Show that `skipped` of `total` samples are skipped; remove the bar when all are."""
        if self._disabled:
            return
        with DisabledOnFailure(self):
            if self._bar is None:
                self._bar = new_bar(total, name="Skipping samples", unit="sample", leave=False)
            self._bar.update(skipped - self._bar.n)
            if skipped >= total:
                self._bar.close()
                self._bar = None

    def _vanish(self) -> None:
        if self._bar is not None:
            self._bar.disable = True
            with suppress(Exception):
                self._bar.close()
            self._bar = None


def shows_bars(args: TrainingArguments) -> bool:
    """Return whether this process shows progress bars: the first of each machine, unless they are disabled."""
    return not args.disable_tqdm and args.local_process_index == 0
