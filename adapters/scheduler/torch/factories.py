"""Torch schedulers by the reference library's names and signatures, for a training loop written by hand.

Each is one of the domain's schedules: of the step, as a LambdaLR; of a metric, as an object whose `step` takes it.
Rates among the options (lr_end, min_lr) are measured in the optimizer's default rate, so that every parameter group is
scaled by the same factor. `last_epoch` is the step to go on from, -1 for a new run. All raise ConfigurationError for
options that a schedule could not work with.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from hexloop.adapters.scheduler.torch.adafactor import AdafactorSchedule
from hexloop.adapters.scheduler.torch.greedy import GreedyLR
from hexloop.adapters.scheduler.torch.shaped import lambda_of_shape
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules import ADAPTIVE, SHAPES

NEEDS_NO_WARMUP = ("constant", *ADAPTIVE)


def get_scheduler(
    name: Any,
    optimizer: Optimizer,
    num_warmup_steps: float | None = None,
    num_training_steps: float | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> Any:
    """The scheduler called `name`, a SchedulerType or its value, with further options of its own.

    Raises ConfigurationError also where the schedule needs a count of steps that is not given.
    """
    name, options = str(getattr(name, "value", name)), scheduler_specific_kwargs or {}
    if name == "reduce_lr_on_plateau":
        return get_reduce_on_plateau_schedule(optimizer, **options)
    if name == "greedy":
        return get_greedy_schedule(optimizer, **options)
    if name in SHAPES and name not in NEEDS_NO_WARMUP and num_warmup_steps is None:
        raise ConfigurationError(
            [f"You chose the schedule {name!r}, but it begins with a warm-up; set num_warmup_steps, 0 for none."]
        )
    return lambda_of_shape(name, optimizer, num_warmup_steps or 0, num_training_steps, -1, **options)


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """The optimizer's own rates, at every step."""
    return lambda_of_shape("constant", optimizer, 0, None, last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: float, last_epoch: int = -1) -> LambdaLR:
    """Up from 0 over `num_warmup_steps`, then level."""
    return lambda_of_shape("constant_with_warmup", optimizer, num_warmup_steps, None, last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: float, num_training_steps: float, last_epoch: int = -1
) -> LambdaLR:
    """Up from 0 over `num_warmup_steps`, then down to 0 along a line."""
    return lambda_of_shape("linear", optimizer, num_warmup_steps, num_training_steps, last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Up from 0 over `num_warmup_steps`, then along `num_cycles` waves of a cosine; half a wave ends at 0."""
    return lambda_of_shape("cosine", optimizer, num_warmup_steps, num_training_steps, last_epoch, num_cycles=num_cycles)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    num_cycles: int = 1,
    last_epoch: int = -1,
) -> LambdaLR:
    """Up from 0 over `num_warmup_steps`, then `num_cycles` times down along a cosine from the full rate."""
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
    """Up from 0 over `num_warmup_steps`, then down to `lr_end` along a power of what is left of the run."""
    return lambda_of_shape(
        "polynomial", optimizer, num_warmup_steps, num_training_steps, last_epoch, lr_end=lr_end, power=power
    )


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: float, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """Up from 0 over `num_warmup_steps`, then down with the inverse square root of the step."""
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
    """As the cosine, but down to `min_lr`, or to the share `min_lr_rate` of the rate; one of them is given."""
    return lambda_of_shape(
        "cosine_with_min_lr",
        optimizer,
        num_warmup_steps,
        num_training_steps,
        last_epoch,
        num_cycles=num_cycles,
        min_lr=min_lr,
        min_lr_rate=min_lr_rate,
    )


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
    """As the cosine with a floor, but the warm-up begins at the share `warmup_lr_rate` of the rate, and not at 0."""
    return lambda_of_shape(
        "cosine_warmup_with_min_lr",
        optimizer,
        num_warmup_steps,
        num_training_steps,
        last_epoch,
        num_cycles=num_cycles,
        min_lr=min_lr,
        min_lr_rate=min_lr_rate,
        warmup_lr_rate=warmup_lr_rate,
    )


def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> ReduceLROnPlateau:
    """Torch's own ReduceLROnPlateau, whose `step` takes the metric; the options are its own."""
    return ReduceLROnPlateau(optimizer, **kwargs)


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> GreedyLR:
    """Up while a metric gets better, down while it does not; `step` takes the metric, the options are `Greedy`'s."""
    return GreedyLR(optimizer, **kwargs)


def get_adafactor_schedule(optimizer: Optimizer, initial_lr: float = 0.0) -> AdafactorSchedule:
    """What shows the rates that an Adafactor with `relative_step` makes for itself; `initial_lr` before its first."""
    return AdafactorSchedule(optimizer, initial_lr)
