"""Callbacks that steer a run: the default flow by the arguments, and early stopping; and the default callbacks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks.base import TrainerCallback, TrainerControl
from hexloop.app.callbacks.progress import PrinterCallback, ProgressCallback
from hexloop.app.callbacks.trackers import tracker_callbacks
from hexloop.app.callbacks.trainer_state import NO_PLAN, ExportableState, TrainerState
from hexloop.app.notices import notices_in_force
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric, patience_after
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.domain.wording import Problem


class DefaultFlowCallback(TrainerCallback):
    """Sets the switches that are due by the arguments, at the end of each step and each epoch.

    While an unchanged one is among the callbacks, the run's own triggers do this, and neither method is called. A
    subclass that overrides a method decides instead, and may call `super()` for the default.
    """

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Set what is due after this step, by the intervals of the arguments and of `state`."""
        plan = evolve(NO_PLAN, total_steps=state.max_steps)
        _triggers(args, state).after_step(RunState(step=state.global_step), plan, control)
        return control

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Set what is due at the end of this epoch."""
        triggers = _triggers(args, state)
        control.should_log |= triggers.log.at_epoch_end()
        control.should_evaluate |= triggers.evaluate.at_epoch_end() and state.epoch >= args.eval_delay
        control.should_save |= triggers.save.at_epoch_end()
        return control


FLOW_EVENTS = ("on_step_end", "on_epoch_end")
"""The events at which the default flow decides."""


def is_default_flow(callback: object) -> bool:
    """Return whether `callback` is the unchanged default flow, which the run's own triggers implement."""
    if not isinstance(callback, DefaultFlowCallback):
        return False
    return all(
        getattr(getattr(callback, event), "__func__", None) is getattr(DefaultFlowCallback, event)
        for event in FLOW_EVENTS
    )


def _triggers(args: Any, state: TrainerState) -> Triggers:
    def trigger(strategy: Any, every: float) -> Trigger:
        return Trigger(Interval(str(getattr(strategy, "value", strategy))), int(every))

    log = trigger(args.logging_strategy, state.logging_steps)
    evaluate = trigger(args.eval_strategy, state.eval_steps)
    save = trigger(args.save_strategy, state.save_steps)
    return Triggers(log, evaluate, save, args.logging_first_step, args.eval_delay)


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stops the run after `early_stopping_patience` evaluations in a row without an improvement.

    An improvement is a `metric_for_best_model` that beats the best before it by more than `early_stopping_threshold`.

    Args:
        early_stopping_patience: evaluations in a row without an improvement.
        early_stopping_threshold: by how much a better metric has to beat the best one.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0

    def check_metric_value(self, args: Any, state: TrainerState, control: TrainerControl, metric_value: float) -> None:
        """Update the patience counter with the metric of an evaluation.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            metric_value: the metric of an evaluation.
        """
        self.early_stopping_patience_counter = patience_after(
            metric_value,
            state.best_metric,
            self.early_stopping_patience_counter,
            greater_is_better=bool(args.greater_is_better),
            threshold=self.early_stopping_threshold or 0.0,
        )

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop a resumed run that early stopping had ended, unless the patience is larger now.

        Raises:
            ConfigurationError: which is also an AssertionError, if there is no metric to compare.
        """
        if state.global_step > 0 and self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True
        problems = []
        if args.metric_for_best_model is None:
            problems.append(
                "EarlyStoppingCallback needs a metric to compare; set metric_for_best_model to the name of a metric, "
                'such as "loss".'
            )
        if args.eval_strategy == "no":
            problems.append(
                'EarlyStoppingCallback needs evaluations, but eval_strategy="no"; choose "steps" or "epoch".'
            )
        if problems:
            raise ConfigurationError([Problem(each, kind=AssertionError) for each in problems])
        if not args.load_best_model_at_end:
            notices_in_force().warn(
                "early stopping without the best model",
                "EarlyStoppingCallback stops the run some evaluations after the best one, so without "
                "load_best_model_at_end=True the run ends with the last weights, not the best.",
                stacklevel=2,
            )

    def on_evaluate(  # type: ignore[override]  # the base takes the keywords of all events
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Mapping[str, float], **kwargs: Any
    ) -> None:
        """Stop the run if the patience is used up; only warn if the metric was not measured.

        Args:
            args: the TrainingArguments.
            state: a live view of the run.
            control: switches that steer the loop.
            metrics: the metrics of the evaluation.
            **kwargs: the other keywords of the event.
        """
        if args.metric_for_best_model is None:  # an evaluation outside a run: a run would have been refused
            return
        name = BestMetric(args.metric_for_best_model).full_name
        if metrics.get(name) is None:
            notices_in_force().warn(
                "early stopping without its metric",
                f"EarlyStoppingCallback compares {name!r}, but an evaluation measured only "
                f"{', '.join(sorted(metrics)) or 'nothing'}; that evaluation was not counted.",
                stacklevel=2,
            )
            return
        self.check_metric_value(args, state, control, metrics[name])
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def state(self) -> dict[str, Any]:
        """What it was made with, and how many evaluations in a row were no improvement."""
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {"early_stopping_patience_counter": self.early_stopping_patience_counter},
        }


class JITCheckpointCallback(TrainerCallback):
    """Shows that `enable_jit_checkpoint` is set, as in transformers. The run saves and stops on SIGTERM by itself.

    Attributes:
        trainer: the Trainer that has it among its callbacks.
    """

    trainer: Any = None

    def set_trainer(self, trainer: Any) -> None:
        """Set the Trainer.

        Args:
            trainer: the Trainer whose run is to stop.
        """
        self.trainer = trainer

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Refuse a Trainer whose arguments do not set `enable_jit_checkpoint`, where it would have no effect.

        Raises:
            ConfigurationError: if they do not.
        """
        if not args.enable_jit_checkpoint:
            raise ConfigurationError(
                "JITCheckpointCallback is among the callbacks, but enable_jit_checkpoint=False, so no checkpoint would "
                "be saved on SIGTERM; set enable_jit_checkpoint=True instead of passing the callback."
            )


def all_callbacks(args: TrainingArguments, given: Sequence[object], own_loggers: bool) -> list[object]:
    """Return the default flow, trackers, the callback of `enable_jit_checkpoint`, the user's, and the progress display.

    The display is a progress bar (in a notebook with a table), or printed logs with `disable_tqdm`. If the user passed
    loggers, they replace display and trackers. During a takeover, what the program has assigned to the defaults of
    `transformers.trainer` comes in the place of ours.
    """
    assigned = _assigned("DEFAULT_CALLBACKS")
    flow = [_own_or(each, DefaultFlowCallback) for each in ((None,) if assigned is None else assigned)]
    saved_on_signal = [JITCheckpointCallback()] if args.enable_jit_checkpoint else []
    if own_loggers:
        return [*flow, *saved_on_signal, *given]
    return [*flow, *tracker_callbacks(args), *saved_on_signal, *given, _display(args)]


def _display(args: TrainingArguments) -> object:
    if args.disable_tqdm:
        return _own_or(_assigned("PrinterCallback"), PrinterCallback)
    from hexloop.app.callbacks.notebook import NotebookProgressCallback, in_notebook

    own = NotebookProgressCallback if in_notebook() else ProgressCallback
    return _own_or(_assigned("DEFAULT_PROGRESS_CALLBACK"), own)


def _assigned(name: str) -> Any:
    """Return a default of `transformers.trainer` as the program sees it during a takeover; None otherwise.

    Libraries assign these before they make a Trainer, because transformers has no argument for them.
    """
    module = sys.modules.get("transformers.trainer") if notices_in_force().as_transformers else None
    if module is None:
        return None
    replaced = vars(type(module)).get(name)  # a name that the takeover replaces is a property of the module's class
    found = getattr(replaced, "assigned", None) if replaced is not None else vars(module).get(name)
    return found if isinstance(found, list | tuple | type | TrainerCallback) else None


def _own_or(callback: Any, own: type[Any]) -> object:
    """Return an assigned default callback, or a new `own` if it is None or the one of transformers."""
    kind = callback if isinstance(callback, type) else type(callback)
    if callback is None:
        return own()
    if kind.__module__.partition(".")[0] == "transformers" and kind.__name__ in OF_TRANSFORMERS:
        return (OF_TRANSFORMERS[kind.__name__] or own)()
    return callback() if isinstance(callback, type) else callback


OF_TRANSFORMERS: Mapping[str, type[Any] | None] = {
    "DefaultFlowCallback": DefaultFlowCallback,
    "PrinterCallback": PrinterCallback,
    "ProgressCallback": None,
    "NotebookProgressCallback": None,
}
"""The default callbacks of transformers, and those in their places; None for the display that fits."""
