"""The greedy schedule as a torch-like scheduler."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, SupportsFloat

from attrs import asdict
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules import ADAPTIVE, SHAPES, GreedyState, build_adaptive, build_shape


class GreedyLR:
    """Raises the rates of an optimizer's groups while a metric gets better, and lowers them while it does not.

    options: those of `hexloop.domain.schedules.Greedy`. Raises ConfigurationError for options that it could not work
    with, and TypeError for what is no optimizer.
    """

    def __init__(self, optimizer: Optimizer, **options: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is no torch optimizer")
        self.optimizer = optimizer
        self.last_epoch = 0
        self._schedule = build_adaptive("greedy", options)
        self._last_lr = self._rates()
        self._state = self._schedule.start(self._last_lr)

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:
        """Take in one measurement; `epoch` is its number, the next one where it is None."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._state, rates = self._schedule(self._state, float(metrics), self._rates())
        self._put(rates)

    def get_last_lr(self) -> list[float]:
        """The rates after the last step, one for each parameter group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from: numbers, lists and dictionaries."""
        return {"last_epoch": self.last_epoch, "_last_lr": self._last_lr, "state": asdict(self._state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from another's state, with its rates in force."""
        self.last_epoch = state_dict["last_epoch"]
        kept: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in state_dict["state"].items()
        }
        self._state = GreedyState(**kept)
        self._put(state_dict["_last_lr"])

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _put(self, rates: Any) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = list(rates)


class AdafactorSchedule(LRScheduler):
    """Shows the rate that the reference library's Adafactor takes for the first parameter of each group.

    With `relative_step` that optimizer computes its rates by itself and looks at no group's "lr"; this scheduler asks
    it for them after each step. initial_lr: what to show before the first.
    """

    def __init__(self, optimizer: Optimizer, initial_lr: float = 0.0) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"] = initial_lr
        super().__init__(optimizer)
        for group in optimizer.param_groups:
            del group["initial_lr"]

    def get_lr(self) -> list[Any]:
        """The present rates, one for each parameter group."""
        return [self._rate(group, base) for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True)]

    def _rate(self, group: dict[str, Any], base: Any) -> Any:
        state = self.optimizer.state.get(group["params"][0], {}) if group["params"] else {}
        if "step" not in state:
            return base
        optimizer: Any = self.optimizer
        return float(optimizer._get_lr(group, state))


def lambda_of_shape(
    name: str,
    optimizer: Optimizer,
    warmup_steps: float,
    total_steps: float | None,
    last_epoch: int,
    **options: Any,
) -> LambdaLR:
    """The schedule called `name`, going on from the step `last_epoch`; -1 begins.

    Raises ConfigurationError where there is no such schedule, or its options are none that it could work with.
    """
    rate = optimizer.defaults.get("lr")
    shape = build_shape(
        name,
        base_rate=float("nan") if rate is None else float(rate),
        warmup_steps=warmup_steps,
        total_steps=total_steps,
        options=options,
    )
    # Torch keeps the attributes of what it calls in the scheduler's state; those of a partial are none.
    return LambdaLR(optimizer, partial(shape), last_epoch)


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
    """Three stages: up, level, down to the share `min_lr_ratio` of the rate.

    Where `num_stable_steps` is None the level stage fills what is left of `num_training_steps`. Releases of the
    reference library before 4.48 had (num_warmup_steps, num_stable_steps, num_decay_steps, min_lr_ratio, num_cycles,
    last_epoch): by name such a call means the same here, and by position it is refused wherever it can be told from
    one of today.
    """
    if (
        not isinstance(warmup_type, str)
        or 0 < (num_stable_steps or 0) < 1
        or _has_no_room(num_warmup_steps, num_decay_steps, num_training_steps, num_stable_steps)
    ):
        raise ConfigurationError(
            [
                f"You chose stages of {num_warmup_steps} and {num_decay_steps} steps in a run of {num_training_steps}, "
                "which makes no sense in the order (num_warmup_steps, num_decay_steps, num_training_steps, "
                "num_stable_steps), and would in the order that older releases had; give the arguments by name."
            ]
        )
    if num_training_steps is not None and num_stable_steps is not None:
        warnings.warn(
            f"num_stable_steps={num_stable_steps} counts, and num_training_steps={num_training_steps} does not; "
            "give one of them.",
            stacklevel=2,
        )
    return lambda_of_shape(
        "warmup_stable_decay",
        optimizer,
        num_warmup_steps,
        num_training_steps,
        last_epoch,
        num_decay_steps=num_decay_steps,
        num_stable_steps=num_stable_steps,
        warmup_type=warmup_type,
        decay_type=decay_type,
        min_lr_ratio=min_lr_ratio,
        num_cycles=num_cycles,
    )


def _has_no_room(
    num_warmup_steps: float, num_decay_steps: float, num_training_steps: float | None, num_stable_steps: float | None
) -> bool:
    if num_stable_steps is not None or num_training_steps is None:
        return False
    return num_training_steps < num_warmup_steps + num_decay_steps
