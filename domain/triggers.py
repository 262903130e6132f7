"""When to log, evaluate, save and stop: pure functions of where the run stands."""

from __future__ import annotations

import math
from enum import Enum

from attrs import frozen

from hexloop.domain.control import Control
from hexloop.domain.plan import Plan
from hexloop.domain.state import RunState


class Interval(Enum):
    """What a trigger counts. BEST (saving only) fires when an evaluation finds a new best metric."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


def whole_steps(every: float, total_steps: int) -> int:
    """A number of steps; below 1 it is a share of the run, rounded up."""
    return math.ceil(every * total_steps) if every < 1 else int(every)


@frozen
class Trigger:
    """One action's rhythm. `every` is in optimizer steps and counts for STEPS only."""

    interval: Interval = Interval.NO
    every: int = 0

    def at_step(self, step: int) -> bool:
        """Whether the action is due after optimizer step `step`."""
        return self.interval is Interval.STEPS and self.every > 0 and step % self.every == 0

    def at_epoch_end(self) -> bool:
        """Whether the action is due at the end of an epoch."""
        return self.interval is Interval.EPOCH


@frozen
class Triggers:
    """Every action's rhythm.

    log_first_step: log after the first step as well.
    evaluation_delay: evaluate only from this many steps (STEPS) or epochs (EPOCH) on.
    """

    log: Trigger = Trigger()
    evaluate: Trigger = Trigger()
    save: Trigger = Trigger()
    log_first_step: bool = False
    evaluation_delay: float = 0.0

    def after_step(self, state: RunState, plan: Plan, control: Control) -> None:
        """Set the switches that are due after an optimizer step.

        The last step evaluates and saves even off its rhythm, where the rhythm is in steps.
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

    def after_epoch(self, state: RunState, plan: Plan, control: Control) -> None:
        """Set the switches that are due at the end of an epoch."""
        if self.log.at_epoch_end():
            control.should_log = True
        if self.evaluate.at_epoch_end() and plan.epoch_at(state.epoch, state.batches) >= self.evaluation_delay:
            control.should_evaluate = True
        if self.save.at_epoch_end():
            control.should_save = True

    def quiet_until(self, step: int, plan: Plan) -> int:
        """The first step after `step` at which anything may be due: until then `after_step` changes nothing."""
        ahead = [plan.total_steps]
        for trigger in (self.log, self.evaluate, self.save):
            if trigger.interval is Interval.STEPS and trigger.every > 0:
                ahead.append((step // trigger.every + 1) * trigger.every)
        if self.log_first_step and step < 1:
            ahead.append(1)
        return min(ahead)
