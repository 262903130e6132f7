"""The schedule of the learning rate, and the best metric, that the arguments name; they depend on no framework."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.schedules import ADAPTIVE, Shape, build_adaptive, build_shape


def best_metric(args: TrainingArguments) -> BestMetric:
    """Return the metric that decides which evaluation is the best; required if the run loads or saves the best."""
    required = args.load_best_model_at_end or str(getattr(args.save_strategy, "value", args.save_strategy)) == "best"
    return BestMetric(args.metric_for_best_model or "", bool(args.greater_is_better), required=required)


def check_schedule(args: TrainingArguments, total_steps: int) -> None:
    """Raise ConfigurationError if the schedule that the arguments name cannot be made."""
    if schedule_name(args) in ADAPTIVE:
        build_adaptive(schedule_name(args), schedule_options(args))
    else:
        make_shape(args, total_steps)


def make_shape(args: TrainingArguments, total_steps: int, optimizer: Any = None) -> Shape:
    """Return the schedule of the step that the arguments name. Raises ConfigurationError if its options are invalid.

    Rates among the options are relative to the optimizer's default rate, or to that of the arguments if it has none.
    """
    rate = getattr(optimizer, "defaults", {}).get("lr")
    base_rate, warmup_steps = args.learning_rate if rate is None else float(rate), args.get_warmup_steps(total_steps)
    return build_shape(
        schedule_name(args),
        base_rate=base_rate,
        warmup_steps=warmup_steps,
        total_steps=total_steps,
        options=schedule_options(args),
    )


def schedule_name(args: TrainingArguments) -> str:
    """Return the name of the schedule."""
    return str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))


def schedule_options(args: TrainingArguments) -> dict[str, Any]:
    """Return `lr_scheduler_kwargs`."""
    return dict(args.lr_scheduler_kwargs) if isinstance(args.lr_scheduler_kwargs, dict) else {}
