"""The switches of the loop as callbacks see them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from hexloop.app.callbacks.exportable import ExportableState
from hexloop.app.callbacks.trainer_state import TrainerState
from hexloop.domain.triggers import ControlFlags


@dataclass
class TrainerControl(ControlFlags, ExportableState):
    """The very switches that the loop reads, under the reference library's name, and a dataclass as there."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        """The switches as they stand."""
        return {"args": asdict(self), "attributes": {}}

    def take_over(self, other: object) -> None:
        """Set every switch as `other`, any object with the same five, has it. Raises TypeError where one is missing."""
        for switch in fields(self):
            if not hasattr(other, switch.name):
                raise TypeError(f"Expected an object with the switches of a TrainerControl, got {other!r}.")
            setattr(self, switch.name, getattr(other, switch.name))


class TrainerCallback:
    """Base of what is told of a run's events; override those that matter, the others cost nothing.

    args: the TrainingArguments. state: a live view of the run. control: switches that steer the loop; a callback sets
    them in place, or returns a control object whose switches are then taken over.

    Every event comes with the keywords model, processing_class, optimizer, lr_scheduler, train_dataloader and
    eval_dataloader, with metrics too (on_evaluate, on_predict), or with logs (on_log); take those that you need and
    the rest as `**kwargs`.
    """

    def on_init_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The Trainer is constructed."""

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """A run begins, or goes on from a checkpoint."""

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The run is over."""

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """A pass over the data begins, or goes on."""

    def on_epoch_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """A pass over the data is complete, or was cut short."""

    def on_step_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The micro-batches of an optimizer step are at hand."""

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The gradients are complete and clipped, the weights not yet changed."""

    def on_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The weights are changed, the gradients not yet cleared."""

    def on_substep_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """A micro-batch that is not the last of its step was trained on."""

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """An optimizer step is done; what is due after it is switched on in `control` and not yet done."""

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """An evaluation is complete; `metrics` holds what it measured."""

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> TrainerControl | None:
        """A prediction is complete."""

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl | None:
        """A checkpoint was taken."""

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl | None:
        """Numbers were logged; `logs` holds them."""

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """A held-out batch was predicted."""

    def on_push_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        """The model is about to be published."""


EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))
"""The names of all events."""
