"""The optimizer and the learning-rate schedule that the arguments name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexloop.adapters.scheduler.torch import TorchScheduler
from hexloop.adapters.trainable.torch import optimizers
from hexloop.app.arguments import TrainingArguments
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.schedules import ADAPTIVE, Adaptive, Shape, build_adaptive, build_shape
from hexloop.domain.schedules.scheduler import MEMORY, AdaptiveRates, ScheduledRates
from hexloop.ports.scheduler import Scheduler

# Optimizer


def choose_optimizer(args: TrainingArguments, model: Any) -> tuple[type[Any], dict[str, Any]]:
    """Return the optimizer class that the arguments name, and its keyword arguments."""
    return optimizers.choose_optimizer(
        str(getattr(args.optim, "value", args.optim)),
        args.learning_rate,
        (args.adam_beta1, args.adam_beta2),
        args.adam_epsilon,
        args.optim_args,
        args.device.type,
        model,
    )


def build_optimizer(
    model: Any, optimizer_class: type[Any], options: dict[str, Any], decayed: list[str], weight_decay: float
) -> Any:
    """Return an optimizer of the trainable parameters, with weight decay on those that are listed in `decayed`."""
    return optimizers.build_optimizer(model, optimizer_class, options, decayed, weight_decay)


def decayed_names(model: Any) -> list[str]:
    """Return the names of the parameters with weight decay: no biases, no normalisation layers."""
    return optimizers.decayed_names(model)


# Schedule


class LearningRates:
    """The default `trainer.lr_scheduler`: hexloop's schedule with the methods of a torch scheduler.

    The loop advances it; a script that drives the optimizer itself calls `step()` after each update.
    """

    def __init__(self, scheduler: ScheduledRates | AdaptiveRates, optimizer: Any) -> None:
        self.scheduler = scheduler
        self.optimizer = optimizer
        self.base_lrs = list(scheduler.base_rates)
        scheduler.start(0)

    @property
    def last_epoch(self) -> int:
        """The number of updates so far, as torch names it."""
        return self.scheduler.updates

    def get_last_lr(self) -> list[float]:
        """Return the current rate of each parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, metrics: float | None = None) -> None:
        """Set the rates after one more update."""
        self.scheduler.advance(self.scheduler.updates + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the schedule, by torch's names, and the metrics memory of an adaptive schedule."""
        memory = {part.name: json_value(part) for part in self.scheduler.export()}
        return {
            "last_epoch": self.last_epoch,
            "base_lrs": list(self.base_lrs),
            "_last_lr": self.get_last_lr(),
            **memory,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned, and set its rates."""
        self.base_lrs = list(state_dict["base_lrs"])
        self.scheduler.base_rates = tuple(self.base_lrs)
        self.scheduler.load([json_part(name, state_dict[name]) for name in state_dict.keys() & {MEMORY}])
        self.scheduler.start(state_dict["last_epoch"])


def best_metric(args: TrainingArguments) -> BestMetric:
    """Return the metric that decides which evaluation is the best."""
    return BestMetric(args.metric_for_best_model or "", bool(args.greater_is_better))


def make_schedule(args: TrainingArguments, total_steps: int, optimizer: Any = None) -> Adaptive[Any] | Shape:
    """Return the schedule that the arguments name. Raises ConfigurationError if its options are invalid.

    Rates among the options are relative to the optimizer's default rate, or to that of the arguments if it has none.
    """
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    options: dict[str, Any] = dict(args.lr_scheduler_kwargs) if isinstance(args.lr_scheduler_kwargs, dict) else {}
    if name in ADAPTIVE:
        return build_adaptive(name, options)
    return build_shape(
        name,
        base_rate=_default_rate(optimizer, args.learning_rate),
        warmup_steps=args.get_warmup_steps(total_steps),
        total_steps=total_steps,
        options=options,
    )


def make_learning_rates(args: TrainingArguments, optimizer: Any, total_steps: int) -> LearningRates:
    """Return the schedule that the arguments name, applied to the optimizer's own rates.

    Raises ConfigurationError if the schedule's options are invalid, or the optimizer has no learning rate.
    """
    if any(group["lr"] is None for group in optimizer.param_groups):
        raise ConfigurationError(
            [
                f"The optimizer ({type(optimizer).__name__}) has no learning rate that the schedule could scale; set "
                "one, or pass optimizers=(optimizer, get_adafactor_schedule(optimizer))."
            ]
        )
    base_rates = tuple(float(group.setdefault("initial_lr", group["lr"])) for group in optimizer.param_groups)

    def set_rates(rates: Any) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    schedule: Any = make_schedule(args, total_steps, optimizer)
    scheduler: ScheduledRates | AdaptiveRates
    if args.lr_scheduler_type in ADAPTIVE:
        scheduler = AdaptiveRates(schedule, best_metric(args), base_rates, set_rates)
    else:
        scheduler = ScheduledRates(schedule, base_rates, set_rates)
    return LearningRates(scheduler, optimizer)


def scheduler_adapter(lr_scheduler: Any, optimizer: Any, args: TrainingArguments) -> Scheduler:
    """Return the Scheduler adapter for `trainer.lr_scheduler`."""
    if isinstance(lr_scheduler, LearningRates):
        return lr_scheduler.scheduler
    metric = BestMetric(args.metric_for_best_model or "loss", bool(args.greater_is_better))
    return TorchScheduler(lr_scheduler, optimizer, metric)


def _default_rate(optimizer: Any, otherwise: float) -> float:
    rate = getattr(optimizer, "defaults", {}).get("lr")
    return otherwise if rate is None else float(rate)
