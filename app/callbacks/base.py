"""The base class of callbacks, and the control that they steer the loop with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias, TypeVar

from hexloop.app.callbacks.trainer_state import ExportableState, TrainerState
from hexloop.domain.triggers import ControlFlags


@dataclass
class TrainerControl(ControlFlags, ExportableState):
    """The switches that the loop reads, by the name and as a dataclass of transformers."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        """Return the current switches."""
        return {"args": asdict(self), "attributes": {}}

    def _new_training(self) -> None:
        """Clear the switch that a new run clears."""
        self.should_training_stop = False

    def _new_epoch(self) -> None:
        """Clear the switch that a new epoch clears."""
        self.should_epoch_stop = False

    def _new_step(self) -> None:
        """Clear the switches that a new step clears."""
        self.should_save = self.should_evaluate = self.should_log = False

    def take_over(self, other: object) -> None:
        """Copy the five switches of another object.

        Args:
            other: an object with the five switches.

        Raises:
            TypeError: if one is missing.
        """
        for switch in fields(self):
            if not hasattr(other, switch.name):
                raise TypeError(f"Expected an object with the switches of a TrainerControl, got {other!r}.")
            setattr(self, switch.name, getattr(other, switch.name))


Returned: TypeAlias = TrainerControl | None
"""What the methods of a callback return: a control object whose switches are copied, or None."""

Method = TypeVar("Method", bound=Callable[..., Any])

Logs: TypeAlias = Mapping[str, Any]
"""Logged values or metrics by name."""


class TrainerCallback:
    """Base class of callbacks; override the events that you need, the others cost nothing.

    Every event receives the training arguments, a live view of the run, and the switches that steer the loop; a
    callback sets these in place, or returns a control object whose switches are copied. Every event also passes the
    keywords model, processing_class, optimizer, lr_scheduler, train_dataloader and
    eval_dataloader, and metrics (on_evaluate, on_predict) or logs (on_log); take those that you need and the rest as
    `**kwargs`.

    Examples:
        >>> from hexloop import TrainerCallback
        >>> class StopEarly(TrainerCallback):
        ...     def on_step_end(self, args, state, control, **kwargs):
        ...         control.should_training_stop = state.global_step == 5
        >>> trainer.add_callback(StopEarly)
        >>> trainer.train().global_step
        5
    """

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when the Trainer is constructed.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when a run starts or resumes from a checkpoint.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called at the end of the run.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when an epoch starts or resumes.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when an epoch is complete, or was ended early.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when the micro-batches of an optimizer step have been read.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when the gradients are complete and clipped, before the weights change.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when the weights have changed, before the gradients are cleared.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_substep_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called after each micro-batch of a step except the last.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called after an optimizer step; due actions are set in `control` and not yet done.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called after an evaluation with its `metrics`.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> Returned:
        """Called after a prediction with its `metrics`.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            metrics: the metrics of the prediction.
            **kwargs: the keywords of every event.
        """

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when a checkpoint was taken.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called when values were logged, with the `logs`.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called after each batch of an evaluation or prediction.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """

    def on_push_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Returned:
        """Called before the model is published.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            **kwargs: the keywords of every event.
        """


def passive(method: Method) -> Method:
    """Mark a method of a callback that the run need not call, because it does the same itself.

    The mark is the method itself, because functools.wraps copies marks to the override that it describes.
    """
    method.__is_passive__ = method  # type: ignore[attr-defined]
    return method


def is_passive(listener: object) -> bool:
    """Return whether a method is marked as `passive`, and not overridden."""
    function = getattr(listener, "__func__", listener)
    return getattr(function, "__is_passive__", None) is function


EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))
"""The names of all events."""
