"""What shows a run never ends it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Protocol

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks.base import TrainerCallback, TrainerControl
from hexloop.app.callbacks.trainer_state import TrainerState


class Display(Protocol):
    """What shows something, and can do without."""

    def give_up(self, error: Exception) -> None:
        """Show nothing from now on, and say why."""
        ...


class GivenUpOnFailure:
    """What fails inside ends the `display`, and nothing else."""

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
        self._display.give_up(error)
        return True


class ProgressDisplay(TrainerCallback, ABC):
    """A callback that has something on show from the beginning of a run to its end.

    Only the first process of all shows anything. A display that fails is given up with a warning, and the run goes on.
    """

    shown_as: ClassVar[str]
    """What the warning calls it."""

    _given_up = False

    @abstractmethod
    def close(self) -> None:
        """Show nothing more of this run. Called however it ends, with an error as well; may be called twice."""

    def give_up(self, error: Exception) -> None:
        """Show nothing from now on, and say why."""
        self._vanish()
        self._given_up = True
        warnings.warn(
            f"The {self.shown_as} failed ({type(error).__name__}: {error}); the run goes on without it. "
            "Set disable_tqdm=True to have none.",
            stacklevel=4,
        )

    @abstractmethod
    def _vanish(self) -> None:
        """Forget what is shown, without showing anything any more."""

    def _shows(self, state: TrainerState) -> bool:
        return state.is_world_process_zero and not self._given_up


def readable(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The logs for the eye: floats to four significant digits, and without `total_flos`."""
    return {
        name: f"{value:.4g}" if isinstance(value, float) else value
        for name, value in logs.items()
        if name != "total_flos"
    }


class PrinterCallback(TrainerCallback):
    """Prints every log on standard output, from the first process of each machine."""

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print `logs` on one line."""
        if logs is not None and state.is_local_process_zero:
            print(readable(logs))


def _bar(**options: Any) -> Any:
    from tqdm.auto import tqdm

    return tqdm(dynamic_ncols=True, **options)


class ProgressCallback(ProgressDisplay):
    """A bar of optimizer steps, one of held-out batches while they are predicted, and the logs above them.

    max_str_len: a longer string in the logs is not shown. Only the first process of all shows anything. A bar that
    fails is given up with a warning, and the run goes on.
    """

    shown_as = "progress bar"

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.current_step = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Show a bar that stands where the run does."""
        if self._shows(state):
            with GivenUpOnFailure(self):
                self.close()
                self.training_bar = _bar(total=state.max_steps, initial=state.global_step)
                self.current_step = state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the bar on."""
        if self.training_bar is not None:
            with GivenUpOnFailure(self):
                self.training_bar.update(state.global_step - self.current_step)
                self.current_step = state.global_step

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Move the bar of held-out batches on; there is none where nobody knows how many batches there are."""
        if not self._shows(state):
            return
        with GivenUpOnFailure(self):
            if self.prediction_bar is None and (batches := batch_count(eval_dataloader)) is not None:
                self.prediction_bar = _bar(total=batches, leave=self.training_bar is None)
            if self.prediction_bar is not None:
                self.prediction_bar.update(1)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the bar of held-out batches away."""
        self._close_prediction_bar()

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Take the bar of held-out batches away."""
        self._close_prediction_bar()

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write `logs` above the bar, on standard output."""
        if self.training_bar is not None and logs is not None:
            with GivenUpOnFailure(self):
                self.training_bar.write(str({name: self._shortened(value) for name, value in readable(logs).items()}))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave the bar as it stands."""
        self.close()

    def close(self) -> None:
        """Show nothing more of this run, however it ended."""
        self._close_prediction_bar()
        bar, self.training_bar = self.training_bar, None
        if bar is not None:
            with GivenUpOnFailure(self):
                bar.close()

    def _vanish(self) -> None:
        for bar in (self.training_bar, self.prediction_bar):
            if bar is not None:
                bar.disable = True  # else it would draw once more when it is collected
        self.training_bar = self.prediction_bar = None

    def _close_prediction_bar(self) -> None:
        bar, self.prediction_bar = self.prediction_bar, None
        if bar is not None:
            with GivenUpOnFailure(self):
                bar.close()

    def _shortened(self, value: Any) -> Any:
        if isinstance(value, str) and len(value) > self.max_str_len:
            return f"<{len(value)} characters, more than max_str_len={self.max_str_len}>"
        return value


def batch_count(batches: Any) -> int | None:
    """How many batches there are, None where nobody knows."""
    try:
        return len(batches)
    except (TypeError, NotImplementedError):
        return None


class SkipProgressBar:
    """Shows how many of the samples before a resumed position are skipped.

    If the bar fails, it is removed with a warning, and the run continues.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._failed = False

    def __call__(self, skipped: int, total: int) -> None:
        """Show that `skipped` of `total` samples are skipped; remove the bar when all are."""
        if self._failed:
            return
        try:
            self._show(skipped, total)
        except Exception as error:
            self._failed = True
            warnings.warn(
                f"The progress bar of skipped samples failed ({type(error).__name__}: {error}); the run continues "
                "without it. Set disable_tqdm=True to disable progress bars.",
                stacklevel=2,
            )

    def _show(self, skipped: int, total: int) -> None:
        if self._bar is None:
            self._bar = _bar(total=total, desc="Skipping samples", unit="sample", leave=False)
        self._bar.update(skipped - self._bar.n)
        if skipped >= total:
            self._bar.close()
            self._bar = None


def shows_bars(args: TrainingArguments) -> bool:
    """Return whether this process shows progress bars: the first of each machine, unless they are disabled."""
    return not args.disable_tqdm and args.local_process_index == 0
