"""Progress bars: tqdm's, in the form that it chooses for a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexloop.app.callbacks.control import TrainerControl
from hexloop.app.callbacks.display import ProgressDisplay
from hexloop.app.callbacks.given_up import GivenUpOnFailure
from hexloop.app.callbacks.printer import readable
from hexloop.app.callbacks.trainer_state import TrainerState


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
