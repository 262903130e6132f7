"""The length of a run, and when it logs, evaluates, saves and stops: triggers, and the flags that they set."""

from __future__ import annotations

import math
from collections.abc import Collection
from enum import Enum
from typing import ClassVar

from attrs import define, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.state import RunState


@frozen
class Plan:
    """The length of a run.

    Args:
        total_steps: total optimizer steps.
        epochs: passes over the data, the last of which may be cut short; None if only `total_steps` limits the run.
        steps_per_epoch: optimizer steps in an epoch, including the one of a partial last window; None if unknown.
        batches_per_epoch: micro-batches in an epoch; None if unknown.
        accumulation: micro-batches in a full window.
        counts_steps: `total_steps` was given, and is not computed from the epochs.
    """

    total_steps: int
    epochs: int | None
    steps_per_epoch: int | None
    batches_per_epoch: int | None
    accumulation: int
    counts_steps: bool = False

    def is_last(self, epoch: int) -> bool:
        """Return whether `epoch` is the last one.

        Args:
            epoch: the number of the epoch, from 0.
        """
        return self.epochs is not None and epoch + 1 >= self.epochs

    def epoch_at(self, epoch: int, batches: int) -> float:
        """Return the fractional epoch after `batches` micro-batches of `epoch`.

        If the length of an epoch is unknown, the whole run counts as one epoch, as in transformers.

        Args:
            epoch: the number of the epoch, from 0.
            batches: micro-batches of the epoch that were trained on.
        """
        whole = self.batches_per_epoch or self.total_steps * self.accumulation
        return epoch + batches / whole


def make_plan(batches_per_epoch: int | None, accumulation: int, epochs: float, max_steps: int) -> Plan:
    """Compute the length of a run. A positive `max_steps` overrides `epochs`, which may be fractional.

    Args:
        batches_per_epoch: micro-batches of an epoch; None if unknown.
        accumulation: micro-batches in an optimizer step.
        epochs: how often the data are trained on.
        max_steps: optimizer steps of the run; -1 if epochs decide.

    Raises:
        ConfigurationError: if there is no data, or if neither the data nor `max_steps` limits the run.
    """
    if batches_per_epoch is None:
        if max_steps <= 0:
            raise ConfigurationError(
                "num_train_epochs cannot determine the number of steps, because the training data has no length. "
                "Set max_steps."
            )
        return Plan(max_steps, None, None, None, accumulation)
    if batches_per_epoch == 0:
        raise ConfigurationError(
            "The training data yields no batches: it is empty, or shorter than one batch with "
            "dataloader_drop_last=True. Provide at least one batch."
        )
    steps_per_epoch = math.ceil(batches_per_epoch / accumulation)
    total_steps = max_steps if max_steps > 0 else math.ceil(epochs * steps_per_epoch)
    epochs_in_part = math.ceil(total_steps / steps_per_epoch)
    return Plan(total_steps, epochs_in_part, steps_per_epoch, batches_per_epoch, accumulation, max_steps > 0)


@define(slots=False)
class ControlFlags:
    """The flags that control the loop. Triggers set them, callbacks may read and change them at every event.

    Args:
        should_training_stop: end the run after this boundary.
        should_epoch_stop: skip the rest of this epoch.
        should_save: save at this boundary; cleared once it is done and before each new step.
        should_evaluate: evaluate at this boundary; cleared once it is done and before each new step.
        should_log: log at this boundary; cleared once it is done and before each new step.
    """

    NAMES: ClassVar[tuple[str, ...]] = (
        "should_training_stop",
        "should_epoch_stop",
        "should_save",
        "should_evaluate",
        "should_log",
    )

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def due_actions(self) -> list[str]:
        """Return the actions that are due, in the order in which they run."""
        flags = (("log", self.should_log), ("evaluate", self.should_evaluate), ("save", self.should_save))
        return [action for action, is_set in flags if is_set]

    def set_due_actions(self, actions: list[str]) -> None:
        """Make exactly these actions due.

        Args:
            actions: the names of the actions.
        """
        self.should_log = "log" in actions
        self.should_evaluate = "evaluate" in actions
        self.should_save = "save" in actions

    def assign(self, names: Collection[str], value: bool) -> None:
        """Set all of these flags to `value`.

        Args:
            names: the names of the flags.
            value: what they are set to.
        """
        for name in names:
            setattr(self, name, value)


class Interval(Enum):
    """What a trigger counts. BEST applies to saving only: save when an evaluation finds a new best metric."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


def whole_steps(every: float, total_steps: int) -> int:
    """Convert `every` to a number of steps. A value below 1 is a fraction of the run and is rounded up.

    Args:
        every: steps, or below 1 a fraction of the run.
        total_steps: optimizer steps of the run.
    """
    return math.ceil(every * total_steps) if every < 1 else int(every)


@frozen
class Trigger:
    """The interval of one action. `every` counts optimizer steps and only applies to `Interval.STEPS`.

    Args:
        interval: by steps, by epochs, or never.
        every: optimizer steps between two actions; only for `Interval.STEPS`.
    """

    interval: Interval = Interval.NO
    every: int = 0

    def at_step(self, step: int) -> bool:
        """Return whether the action is due after optimizer step `step`.

        Args:
            step: an optimizer step.
        """
        return self.interval is Interval.STEPS and self.every > 0 and step % self.every == 0

    def at_epoch_end(self) -> bool:
        """Return whether the action is due at the end of an epoch."""
        return self.interval is Interval.EPOCH


@frozen
class Triggers:
    """The intervals of logging, evaluation and saving.

    Args:
        log: when to log.
        evaluate: when to evaluate.
        save: when to save.
        log_first_step: also log after the first step.
        evaluation_delay: do not evaluate before this many steps (for STEPS) or epochs (for EPOCH).
    """

    log: Trigger = Trigger()
    evaluate: Trigger = Trigger()
    save: Trigger = Trigger()
    log_first_step: bool = False
    evaluation_delay: float = 0.0

    def after_step(self, state: RunState, plan: Plan, control: ControlFlags) -> None:
        """Set the flags of the actions that are due after an optimizer step.

        After the last step, evaluation and saving by steps are always due, whatever their interval.

        Args:
            state: the state of the run.
            plan: the length of the run.
            control: the flags that are set.
        """
        step = state.step
        last = step >= plan.total_steps
        delayed = step < self.evaluation_delay
        if self.log.at_step(step) or (step == 1 and self.log_first_step):
            control.should_log = True
        if (self.evaluate.at_step(step) or (last and self.evaluate.interval is Interval.STEPS)) and not delayed:
            control.should_evaluate = True
        if self.save.at_step(step) or (last and self.save.interval is Interval.STEPS):
            control.should_save = True
        if last:
            control.should_training_stop = True

    def after_epoch(self, state: RunState, plan: Plan, control: ControlFlags) -> None:
        """Set the flags of the actions that are due at the end of an epoch.

        Args:
            state: the state of the run.
            plan: the length of the run.
            control: the flags that are set.
        """
        if self.log.at_epoch_end():
            control.should_log = True
        if self.evaluate.at_epoch_end() and plan.epoch_at(state.epoch, state.batches) >= self.evaluation_delay:
            control.should_evaluate = True
        if self.save.at_epoch_end():
            control.should_save = True

    def quiet_until(self, step: int, plan: Plan) -> int:
        """Return the first step after `step` at which `after_step` may set a flag; before it, it does nothing.

        Args:
            step: an optimizer step.
            plan: the length of the run.
        """
        ahead = [plan.total_steps]
        for trigger in (self.log, self.evaluate, self.save):
            if trigger.interval is Interval.STEPS and trigger.every > 0:
                ahead.append((step // trigger.every + 1) * trigger.every)
        if self.log_first_step and step < 1:
            ahead.append(1)
        return min(ahead)
