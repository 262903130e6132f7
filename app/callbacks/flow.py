"""The default flow of a run: logging, evaluation and saving by the arguments; and the default callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks.base import TrainerCallback, TrainerControl
from hexloop.app.callbacks.trainer_state import NO_PLAN, TrainerState
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers


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
    return Triggers(
        _trigger(args.logging_strategy, state.logging_steps),
        _trigger(args.eval_strategy, state.eval_steps),
        _trigger(args.save_strategy, state.save_steps),
        args.logging_first_step,
        args.eval_delay,
    )


def _trigger(strategy: Any, every: float) -> Trigger:
    return Trigger(Interval(str(getattr(strategy, "value", strategy))), int(every))


def all_callbacks(args: TrainingArguments, given: Sequence[object], own_loggers: bool) -> list[object]:
    """Return the default flow, the user's callbacks, and last the progress display.

    That is a progress bar (in a notebook with a table), or printed logs with `disable_tqdm`; nothing if the user passed
    loggers, which replace it.
    """
    callbacks = [DefaultFlowCallback(), *given]
    return callbacks if own_loggers else [*callbacks, _display(args)]


def _display(args: TrainingArguments) -> object:
    if args.disable_tqdm:
        from hexloop.app.callbacks.progress import PrinterCallback

        return PrinterCallback()
    from hexloop.app.callbacks.notebook import NotebookProgressCallback, in_notebook

    if in_notebook():
        return NotebookProgressCallback()
    from hexloop.app.callbacks.progress import ProgressCallback

    return ProgressCallback()
