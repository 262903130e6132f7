"""Schedulers of torch with transformers' names and signatures, for training loops written by hand.

Each wraps one of the domain's schedules: those of the step as a
LambdaLR, those of a metric as an object whose `step` takes the metric. Rates among the options (lr_end, min_lr) are
relative to the optimizer's default rate, so that every parameter group is scaled by the same factor. `last_epoch` is
the step to resume from, -1 for a new run. All raise ConfigurationError for invalid options.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from hexloop.adapters.scheduler.torch.run_schedules import GreedyLR, factor_of
from hexloop.adapters.scheduler.torch.user_scheduler import TorchScheduler
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules import ADAPTIVE, SHAPES, build_shape

__all__ = [
    "AdafactorSchedule",
    "GreedyLR",
    "TorchScheduler",
    "get_adafactor_schedule",
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup",
    "get_reduce_on_plateau_schedule",
    "get_scheduler",
    "get_wsd_schedule",
]

NEEDS_NO_WARMUP = ("constant", *ADAPTIVE)


def get_scheduler(
    name: Any,
    optimizer: Optimizer,
    num_warmup_steps: float | None = None,
    num_training_steps: float | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Return the scheduler called `name`, a SchedulerType or its value, with its own options.

    Args:
        name: the name of the schedule, a `SchedulerType` or its value.
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        num_training_steps: optimizer steps of the whole run.
        scheduler_specific_kwargs: further options of the schedule.

    Raises:
        ConfigurationError: also if the schedule needs a number of steps that is not given.
    """
    name, options = str(getattr(name, "value", name)), scheduler_specific_kwargs or {}
    if name == "reduce_lr_on_plateau":
        return get_reduce_on_plateau_schedule(optimizer, **options)
    if name == "greedy":
        return get_greedy_schedule(optimizer, **options)
    if name in SHAPES and name not in NEEDS_NO_WARMUP and num_warmup_steps is None:
        raise ConfigurationError(f"The schedule {name!r} starts with a warmup; set num_warmup_steps (0 for none).")
    return lambda_of_shape(name, optimizer, num_warmup_steps or 0, num_training_steps, -1, **options)


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """Return a schedule that keeps the optimizer's rates.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        last_epoch: the step to resume from; -1 for a new run.
    """
    return lambda_of_shape("constant", optimizer, 0, None, last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: float, last_epoch: int = -1) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps` and then stays constant.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        last_epoch: the step to resume from; -1 for a new run.
    """
    return lambda_of_shape("constant_with_warmup", optimizer, num_warmup_steps, None, last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: float, num_training_steps: float, last_epoch: int = -1
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps` and then decreases linearly to 0.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        num_training_steps: optimizer steps of the whole run.
        last_epoch: the step to resume from; -1 for a new run.
    """
    return lambda_of_shape("linear", optimizer, num_warmup_steps, num_training_steps, last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps`, then follows `num_cycles` periods of a cosine.

    Half a period ends at 0.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        num_training_steps: optimizer steps of the whole run.
        num_cycles: periods of the cosine; half a period ends at the lowest rate.
        last_epoch: the step to resume from; -1 for a new run.
    """
    return lambda_of_shape("cosine", optimizer, num_warmup_steps, num_training_steps, last_epoch, num_cycles=num_cycles)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: float, num_training_steps: float, num_cycles: int = 1, last_epoch: int = -1
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps`, then decays along `num_cycles` half cosines.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        num_training_steps: optimizer steps of the whole run.
        num_cycles: decays from the full rate to 0.
        last_epoch: the step to resume from; -1 for a new run.
    """
    return lambda_of_shape(
        "cosine_with_restarts", optimizer, num_warmup_steps, num_training_steps, last_epoch, num_cycles=num_cycles
    )


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps`, then decays polynomially to `lr_end`.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        num_training_steps: optimizer steps of the whole run.
        lr_end: the rate at the end.
        power: the exponent of the decay; 1 is linear.
        last_epoch: the step to resume from; -1 for a new run.
    """
    return lambda_of_shape(
        "polynomial", optimizer, num_warmup_steps, num_training_steps, last_epoch, lr_end=lr_end, power=power
    )


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: float, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps`, then decays as 1 / sqrt(step).

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        timescale: the steps s in 1 / sqrt(step / s); by default `num_warmup_steps`, or 10,000 without a warmup.
        last_epoch: the step to resume from; -1 for a new run.
    """
    return lambda_of_shape("inverse_sqrt", optimizer, num_warmup_steps, None, last_epoch, timescale=timescale)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """Return the cosine schedule with a floor: `min_lr`, or `min_lr_rate` times the rate. Pass one of the two.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        num_training_steps: optimizer steps of the whole run.
        num_cycles: periods of the cosine; half a period ends at the lowest rate.
        last_epoch: the step to resume from; -1 for a new run.
        min_lr: the lowest rate, relative to the optimizer's default rate.
        min_lr_rate: the lowest rate as a share of the full rate.
    """
    options = {"num_cycles": num_cycles, "min_lr": min_lr, "min_lr_rate": min_lr_rate}
    return lambda_of_shape("cosine_with_min_lr", optimizer, num_warmup_steps, num_training_steps, last_epoch, **options)


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LambdaLR:
    """Return the cosine schedule with a floor, with a warmup that starts at `warmup_lr_rate` times the rate.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        num_training_steps: optimizer steps of the whole run.
        num_cycles: periods of the cosine; half a period ends at the lowest rate.
        last_epoch: the step to resume from; -1 for a new run.
        min_lr: the lowest rate, relative to the optimizer's default rate.
        min_lr_rate: the lowest rate as a share of the full rate.
        warmup_lr_rate: the rate at the first step as a share of the full rate; if None, that of one warmup step.
    """
    rates = {"min_lr": min_lr, "min_lr_rate": min_lr_rate, "warmup_lr_rate": warmup_lr_rate}
    name, options = "cosine_warmup_with_min_lr", {"num_cycles": num_cycles, **rates}
    return lambda_of_shape(name, optimizer, num_warmup_steps, num_training_steps, last_epoch, **options)


def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> ReduceLROnPlateau:
    """Return torch's ReduceLROnPlateau, whose `step` takes the metric.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        **kwargs: the options of torch's ReduceLROnPlateau.
    """
    return ReduceLROnPlateau(optimizer, **kwargs)


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> GreedyLR:
    """Return a GreedyLR, whose `step` takes the metric.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        **kwargs: the options of `hexloop.domain.schedules.Greedy`.
    """
    return GreedyLR(optimizer, **kwargs)


def get_adafactor_schedule(optimizer: Optimizer, initial_lr: float = 0.0) -> AdafactorSchedule:
    """Return a scheduler that reports the rates that an Adafactor with `relative_step` computes itself.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        initial_lr: the rate that is reported before the first step.
    """
    return AdafactorSchedule(optimizer, initial_lr)


def get_wsd_schedule(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_decay_steps: float,
    num_training_steps: float | None = None,
    num_stable_steps: float | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return a schedule with three stages: warmup, constant, and decay to `min_lr_ratio` times the rate.

    If `num_stable_steps` is None, the constant stage fills the rest of `num_training_steps`. Before release 4.48 of
    transformers the order was (num_warmup_steps, num_stable_steps, num_decay_steps, min_lr_ratio, num_cycles,
    last_epoch). A call with keywords means the same here; a call by position in the old order is rejected wherever it
    can be recognized.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        num_warmup_steps: optimizer steps of rising learning rate.
        num_decay_steps: optimizer steps of falling learning rate.
        num_training_steps: optimizer steps of the whole run.
        num_stable_steps: optimizer steps of constant learning rate; if None, the rest of `num_training_steps`.
        warmup_type: the shape of the warmup: "linear", "cosine" or "1-sqrt".
        decay_type: the shape of the decay, with the same choices.
        min_lr_ratio: the lowest rate as a share of the full rate.
        num_cycles: periods of the cosine of the decay.
        last_epoch: the step to resume from; -1 for a new run.
    """
    needed = num_warmup_steps + num_decay_steps
    too_long = num_stable_steps is None and num_training_steps is not None and num_training_steps < needed
    if too_long or not isinstance(warmup_type, str) or 0 < (num_stable_steps or 0) < 1:
        raise ConfigurationError(
            f"num_warmup_steps={num_warmup_steps}, num_decay_steps={num_decay_steps}, "
            f"num_training_steps={num_training_steps} and num_stable_steps={num_stable_steps} are not possible "
            "together. Older releases of transformers took these arguments in another order; pass them by name."
        )
    if num_training_steps is not None and num_stable_steps is not None:
        warnings.warn(
            f"num_training_steps={num_training_steps} is ignored, because num_stable_steps={num_stable_steps} is set; "
            "pass only one of them.",
            stacklevel=2,
        )
    lengths = {"num_decay_steps": num_decay_steps, "num_stable_steps": num_stable_steps}
    stages = {"warmup_type": warmup_type, "decay_type": decay_type, "min_lr_ratio": min_lr_ratio}
    name, options = "warmup_stable_decay", {**lengths, **stages, "num_cycles": num_cycles}
    return lambda_of_shape(name, optimizer, num_warmup_steps, num_training_steps, last_epoch, **options)


def lambda_of_shape(
    name: str, optimizer: Optimizer, warmup_steps: float, total_steps: float | None, last_epoch: int, **options: Any
) -> LambdaLR:
    """Return the schedule called `name` from the step `last_epoch`; -1 for a new run.

    Args:
        name: the name of the schedule.
        optimizer: the optimizer whose learning rates are scheduled.
        warmup_steps: optimizer steps of rising learning rate.
        total_steps: optimizer steps of the whole run.
        last_epoch: the step to resume from; -1 for a new run.
        **options: further options of the schedule.

    Raises:
        ConfigurationError: for an unknown name or invalid options.
    """
    rate = optimizer.defaults.get("lr")
    base_rate = float("nan") if rate is None else float(rate)
    shape = build_shape(name, base_rate=base_rate, warmup_steps=warmup_steps, total_steps=total_steps, options=options)
    return LambdaLR(optimizer, factor_of(shape), last_epoch)


class AdafactorSchedule(LRScheduler):
    """Reports the rate that transformers' Adafactor uses for the first parameter of each group.

    With `relative_step` that optimizer computes its own rates and ignores the groups' "lr"; this scheduler reads them
    after each step.

    Args:
        optimizer: the optimizer whose learning rates are scheduled.
        initial_lr: the rate reported before the first step.
    """

    def __init__(self, optimizer: Optimizer, initial_lr: float = 0.0) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"] = initial_lr
        super().__init__(optimizer)
        for group in optimizer.param_groups:
            del group["initial_lr"]

    def get_lr(self) -> list[Any]:
        """Return the current rates, one per parameter group."""
        return [self._rate(group, base) for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True)]

    def _rate(self, group: dict[str, Any], base: Any) -> Any:
        state = self.optimizer.state.get(group["params"][0], {}) if group["params"] else {}
        if "step" not in state:
            return base
        optimizer: Any = self.optimizer
        return float(optimizer._get_lr(group, state))
