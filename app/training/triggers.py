"""The rhythms that the arguments ask for."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.plan import Plan
from hexloop.domain.triggers import Interval, Trigger, Triggers, whole_steps

UNSET_STEPS = 500
"""The reference library's `state.eval_steps` where the arguments leave it open, which is where it decides nothing."""


def triggers_for(args: TrainingArguments, plan: Plan, has_default_flow: bool) -> Triggers:
    """When to log, evaluate and save; never, where the default flow was taken out of the callbacks."""
    evaluation_steps = UNSET_STEPS if args.eval_steps is None else args.eval_steps
    log = _trigger(args.logging_strategy, args.logging_steps, plan)
    evaluate = _trigger(args.eval_strategy, evaluation_steps, plan)
    save = _trigger(args.save_strategy, args.save_steps, plan)
    if has_default_flow:
        return Triggers(log, evaluate, save, args.logging_first_step, args.eval_delay)
    log, evaluate, save = (Trigger(Interval.NO, each.every) for each in (log, evaluate, save))
    return Triggers(log, evaluate, save)


def _trigger(strategy: Any, every: float, plan: Plan) -> Trigger:
    return Trigger(Interval(str(getattr(strategy, "value", strategy))), whole_steps(every, plan.total_steps))
