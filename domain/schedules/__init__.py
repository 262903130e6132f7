"""Learning rate schedules, by name: pure functions of the optimizer step, or of a metric and a small state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Protocol

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules import checks
from hexloop.domain.schedules.adaptive import Adaptive, Greedy, ReduceLROnPlateau

Shape = Callable[[int], float]
"""Maps an optimizer step, from 0, to the factor that multiplies every base rate."""


@frozen
class Constant(checks.Options):
    """f(step) = 1.

    Source: transformers, `get_constant_schedule`. As there, the warm-up of the run is ignored.
    """

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        return 1.0


@frozen
class ConstantWithWarmup(checks.Options):
    """With W = num_warmup_steps: f(step) = step / W below W, then 1.

    Source: transformers, `get_constant_schedule_with_warmup`; the linear warm-up of Goyal et al. 2017
    (arXiv:1706.02677), from 0.

    Args:
        num_warmup_steps: optimizer steps of rising rate, at least 0.

    Raises:
        ConfigurationError: unless num_warmup_steps is a number of at least 0.
    """

    num_warmup_steps: checks.Steps

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        return 1.0


@frozen
class InverseSqrt(checks.Options):
    """With W = num_warmup_steps and s = timescale (if None: W, or 10,000 if W is 0):
    f(step) = step / W below W, then 1 / sqrt((step - W + s) / s).

    Source: transformers, `get_inverse_sqrt_schedule`, after big_vision's `rsqrt`; with s = W it is the schedule of
    Vaswani et al. 2017 (arXiv:1706.03762) up to a constant.

    Args:
        num_warmup_steps: optimizer steps of rising rate, at least 0.
        timescale: s in the formula, above 0; if None, W, or 10,000 if W is 0.

    Raises:
        ConfigurationError: unless num_warmup_steps is a number of at least 0 and timescale a number above 0, in steps,
            or None.
    """

    num_warmup_steps: checks.Steps
    timescale: Annotated[int | None, checks.or_none(checks.POSITIVE)] = None

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        timescale = self.timescale or self.num_warmup_steps or 10_000
        return 1.0 / math.sqrt((step + (timescale - self.num_warmup_steps)) / timescale)


@frozen
class Linear(checks.Options):
    """With W = num_warmup_steps, T = num_training_steps: f(step) = step / W below W, then
    max(0, (T - step) / max(1, T - W)).

    Source: transformers, `get_linear_schedule_with_warmup`; the schedule of BERT (Devlin et al. 2018,
    arXiv:1810.04805).

    Args:
        num_warmup_steps: optimizer steps of rising rate, at least 0.
        num_training_steps: optimizer steps of the whole run, at least 0.

    Raises:
        ConfigurationError: unless both are numbers of at least 0.
    """

    num_warmup_steps: checks.Steps
    num_training_steps: checks.Steps

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        if step < self.num_training_steps:
            return (self.num_training_steps - step) / max(1, self.num_training_steps - self.num_warmup_steps)
        return 0.0


@frozen
class Polynomial(checks.Options):
    """With W = num_warmup_steps, T = num_training_steps, r = base_rate: f(step) = step / W below W, then, up to T,

        ((r - lr_end) * (1 - (step - W) / (T - W)) ** power + lr_end) / r

    and lr_end / r after T, or from W on if T = W.

    Source: transformers, `get_polynomial_decay_schedule_with_warmup`. As there, r is the optimizer's default rate, and
    every parameter group is scaled by the same factor.

    Args:
        num_warmup_steps: optimizer steps of rising rate, at least 0.
        num_training_steps: optimizer steps of the whole run, at least 0.
        base_rate: the optimizer's default rate.
        lr_end: the rate at the end, at least 0 and below `base_rate`.
        power: the exponent, at least 0.

    Raises:
        ConfigurationError: unless 0 <= lr_end < base_rate, and power and the step counts are numbers of at least 0.
    """

    num_warmup_steps: checks.Steps
    num_training_steps: checks.Steps
    base_rate: Annotated[float, checks.POSITIVE]
    lr_end: float = 1e-7
    power: Annotated[float, checks.NOT_NEGATIVE] = 1.0

    def __attrs_post_init__(self) -> None:
        below_base = checks.number(
            f"non-negative number below the base rate {self.base_rate!r}", lambda rate: 0 <= rate < self.base_rate
        )
        checks.check(self, lr_end=below_base)

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        decay_steps = self.num_training_steps - self.num_warmup_steps
        if step > self.num_training_steps or decay_steps == 0:
            return self.lr_end / self.base_rate
        remaining: float = (1 - (step - self.num_warmup_steps) / decay_steps) ** self.power
        return ((self.base_rate - self.lr_end) * remaining + self.lr_end) / self.base_rate


_RISES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda progress: progress,
    "cosine": lambda progress: 0.5 * (1.0 - math.cos(math.pi * progress)),
    "1-sqrt": lambda progress: 1.0 - math.sqrt(1.0 - progress),
}
_FALLS: Mapping[str, Callable[[float, float], float]] = {
    "linear": lambda progress, _: 1.0 - progress,
    "cosine": lambda progress, cycles: 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)),
    "1-sqrt": lambda progress, _: 1.0 - math.sqrt(progress),
}


@frozen
class WarmupStableDecay(checks.Options):
    """With W = num_warmup_steps, S = num_stable_steps, D = num_decay_steps, m = min_lr_ratio:

        f(step) = max(0, (1 - m) * up(step / W) + m)               below W
        f(step) = 1                                                below W + S
        f(step) = max(0, (1 - m) * down((step - W - S) / max(1, D)) + m)   below W + S + D
        f(step) = m                                                then

    up(p) is p (linear), (1 - cos(pi * p)) / 2 (cosine) or 1 - sqrt(1 - p) (1-sqrt); down(p) is 1 - p,
    (1 + cos(2 * pi * num_cycles * p)) / 2 or 1 - sqrt(p). If num_stable_steps is None, S = num_training_steps - W - D;
    if that is negative, the decay starts at the end of the warm-up, with its first -S steps skipped.
    If both are given, num_stable_steps counts.

    Source: transformers, `get_wsd_schedule`; Hu et al. 2024 (arXiv:2404.06395), the 1-sqrt decay of Hägele et al. 2024
    (arXiv:2405.18392).

    Args:
        num_warmup_steps: optimizer steps of rising rate, at least 0.
        num_decay_steps: optimizer steps of falling rate, at least 0.
        num_training_steps: optimizer steps of the whole run; needed without `num_stable_steps`.
        num_stable_steps: optimizer steps of constant rate; if None, the rest of the run.
        warmup_type: the form of the warm-up: "linear", "cosine" or "1-sqrt".
        decay_type: the form of the decay: "linear", "cosine" or "1-sqrt".
        min_lr_ratio: the lowest rate as a share of the full one, from 0 to 1.
        num_cycles: waves of the cosine, at least 0.

    Raises:
        ConfigurationError: unless the step counts are numbers of at least 0, num_stable_steps or num_training_steps is
            given, the types are known, min_lr_ratio is from 0 to 1 and num_cycles is at least 0.
    """

    num_warmup_steps: checks.Steps
    num_decay_steps: checks.Steps
    num_training_steps: Annotated[float | None, checks.or_none(checks.NOT_NEGATIVE)] = None
    num_stable_steps: Annotated[float | None, checks.or_none(checks.NOT_NEGATIVE)] = None
    warmup_type: Annotated[str, checks.one_of(*_RISES)] = "linear"
    decay_type: Annotated[str, checks.one_of(*_FALLS)] = "cosine"
    min_lr_ratio: Annotated[float, checks.SHARE] = 0.0
    num_cycles: Annotated[float, checks.NOT_NEGATIVE] = 0.5

    def __attrs_post_init__(self) -> None:
        conflict = None
        if self.num_training_steps is None and self.num_stable_steps is None:
            conflict = (
                "The length of the stable stage cannot be computed, because the length of the run is unknown. "
                "Set num_stable_steps or max_steps."
            )
        checks.check(self, conflict)

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return self._above_floor(_RISES[self.warmup_type](step / self.num_warmup_steps))
        decay_start = self.num_warmup_steps + self._stable_steps()
        if step < decay_start:
            return 1.0
        if step < decay_start + self.num_decay_steps:
            progress = (step - decay_start) / max(1, self.num_decay_steps)
            return self._above_floor(_FALLS[self.decay_type](progress, self.num_cycles))
        return self.min_lr_ratio

    def _stable_steps(self) -> float:
        if self.num_stable_steps is not None:
            return self.num_stable_steps
        return (self.num_training_steps or 0) - self.num_warmup_steps - self.num_decay_steps

    def _above_floor(self, factor: float) -> float:
        return max(0.0, factor * (1.0 - self.min_lr_ratio) + self.min_lr_ratio)


@frozen
class Cosine(checks.Options):
    """With W = num_warmup_steps, T = num_training_steps: f(step) = step / W below W, then, where
    p = (step - W) / max(1, T - W),

        max(0, (1 + cos(2 * pi * num_cycles * p)) / 2)

    num_cycles counts whole waves: the default half wave ends at 0. After T the wave continues.

    Source: transformers, `get_cosine_schedule_with_warmup`; the cosine decay of Loshchilov and Hutter 2016
    (arXiv:1608.03983).

    Args:
        num_warmup_steps: optimizer steps of rising rate, at least 0.
        num_training_steps: optimizer steps of the whole run, at least 0.
        num_cycles: waves of the cosine, at least 0.

    Raises:
        ConfigurationError: unless the step counts and num_cycles are numbers of at least 0.
    """

    num_warmup_steps: checks.Steps
    num_training_steps: checks.Steps
    num_cycles: Annotated[float, checks.NOT_NEGATIVE] = 0.5

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / max(1, self.num_training_steps - self.num_warmup_steps)
        return _wave(progress, self.num_cycles, 0.0)


@frozen
class CosineWithRestarts(checks.Options):
    """With W = num_warmup_steps, T = num_training_steps: f(step) = step / W below W, then, where
    p = (step - W) / max(1, T - W) < 1,

        max(0, (1 + cos(pi * ((num_cycles * p) mod 1))) / 2)

    and 0 from T on. num_cycles counts the decays, each from the full rate.

    Source: transformers, `get_cosine_with_hard_restarts_schedule_with_warmup`; the warm restarts of Loshchilov and
    Hutter 2016 (arXiv:1608.03983) with periods of equal length.

    Args:
        num_warmup_steps: optimizer steps of rising rate, at least 0.
        num_training_steps: optimizer steps of the whole run, at least 0.
        num_cycles: the number of decays.

    Raises:
        ConfigurationError: unless the step counts and num_cycles are numbers of at least 0.
    """

    num_warmup_steps: checks.Steps
    num_training_steps: checks.Steps
    num_cycles: Annotated[int, checks.NOT_NEGATIVE] = 1

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / max(1, self.num_training_steps - self.num_warmup_steps)
        if progress >= 1.0:
            return 0.0
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((self.num_cycles * progress) % 1.0))))


@frozen
class CosineWithMinLr(checks.Options):
    """With W = num_warmup_steps, T = num_training_steps, m = min_lr_rate or min_lr / base_rate:
    f(step) = step / W below W, then, where p = (step - W) / max(1, T - W),

        max(0, (1 - m) * (1 + cos(2 * pi * num_cycles * p)) / 2 + m)

    Source: transformers, `get_cosine_with_min_lr_schedule_with_warmup`. As there, base_rate is the optimizer's default
    rate, so a parameter group with a different rate has a proportional minimum.

    Args:
        num_warmup_steps: optimizer steps of rising rate, at least 0.
        num_training_steps: optimizer steps of the whole run, at least 0.
        base_rate: the optimizer's default rate.
        num_cycles: waves of the cosine, at least 0.
        min_lr: the lowest rate, from 0 to `base_rate`.
        min_lr_rate: the lowest rate as a share of the full one, from 0 to 1.

    Raises:
        ConfigurationError: unless exactly one of min_lr (from 0 to base_rate) and min_lr_rate (from 0 to 1) is given,
            and for step counts and num_cycles like `Cosine`.
    """

    num_warmup_steps: checks.Steps
    num_training_steps: checks.Steps
    base_rate: Annotated[float, checks.POSITIVE]
    num_cycles: Annotated[float, checks.NOT_NEGATIVE] = 0.5
    min_lr: float | None = None
    min_lr_rate: Annotated[float | None, checks.or_none(checks.SHARE)] = None

    def __attrs_post_init__(self) -> None:
        floors = self.min_lr, self.min_lr_rate
        conflict = None
        if None not in floors:
            conflict = "min_lr and min_lr_rate cannot both be set: each sets the minimum rate. Remove one of them."
        elif floors == (None, None):
            conflict = "The schedule needs a minimum rate. Set min_lr or min_lr_rate."
        up_to_base = checks.number(
            f"number from 0 to the base rate {self.base_rate!r}", lambda rate: 0 <= rate <= self.base_rate
        )
        checks.check(self, conflict, min_lr=checks.or_none(up_to_base))

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / max(1, self.num_training_steps - self.num_warmup_steps)
        return _wave(progress, self.num_cycles, self._floor())

    def _floor(self) -> float:
        if self.min_lr is not None:
            return self.min_lr / self.base_rate
        return self.min_lr_rate or 0.0


@frozen
class CosineWarmupWithMinLr(CosineWithMinLr):
    """With W = num_warmup_steps, T = num_training_steps, m = min_lr_rate or min_lr / base_rate, w = warmup_lr_rate:
    below W, f(step) = (step + 1) / max(1, W) where w is None, else

        w + (1 - w) * step / max(1, W - 1)

    so that the first step of the warm-up has a rate above 0 and the last one the full rate; then, where
    p = (step - W + 1) / max(1, T - W),

        max(0, (1 - m) * (1 + cos(2 * pi * num_cycles * p)) / 2 + m)

    Source: transformers, `get_cosine_with_min_lr_schedule_with_warmup_lr_rate`.

    Args:
        warmup_lr_rate: w in the formula, from 0 to 1, or None.

    Raises:
        ConfigurationError: like `CosineWithMinLr`, and unless warmup_lr_rate is a number from 0 to 1, or None.
    """

    warmup_lr_rate: Annotated[float | None, checks.or_none(checks.SHARE)] = None

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            start = self.warmup_lr_rate
            if start is None:
                return (step + 1) / max(1, self.num_warmup_steps)
            return start + (1.0 - start) * step / max(1, self.num_warmup_steps - 1)
        progress = (step - self.num_warmup_steps + 1) / max(1, self.num_training_steps - self.num_warmup_steps)
        return _wave(progress, self.num_cycles, self._floor())


def _wave(progress: float, num_cycles: float, floor: float) -> float:
    factor = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress))
    return max(0.0, factor * (1 - floor) + floor)


# Schedules by name

SHAPES: Mapping[str, Callable[..., Shape]] = MappingProxyType(
    {
        "linear": Linear,
        "cosine": Cosine,
        "cosine_with_restarts": CosineWithRestarts,
        "polynomial": Polynomial,
        "constant": Constant,
        "constant_with_warmup": ConstantWithWarmup,
        "inverse_sqrt": InverseSqrt,
        "cosine_with_min_lr": CosineWithMinLr,
        "cosine_warmup_with_min_lr": CosineWarmupWithMinLr,
        "warmup_stable_decay": WarmupStableDecay,
    }
)
"""The schedules that are functions of the step, by their names in transformers."""

ADAPTIVE: Mapping[str, Callable[..., Adaptive[Any]]] = MappingProxyType(
    {"reduce_lr_on_plateau": ReduceLROnPlateau, "greedy": Greedy}
)
"""The schedules that follow a metric, by their names in transformers."""


def build_shape(
    name: str, *, base_rate: float, warmup_steps: float, total_steps: float | None, options: Mapping[str, Any]
) -> Shape:
    """Return the schedule `name`, one of `SHAPES`, as a function of the step.

    Args:
        name: the name of the schedule.
        base_rate: the default learning rate of the optimizer, which options such as lr_end and min_lr are relative to.
        warmup_steps: of the run; "constant" ignores it.
        total_steps: of the run, None if unknown.
        options: the attributes of the schedule by name (lr_scheduler_kwargs in transformers).

    Raises:
        ConfigurationError: with every problem: an unknown name or option, an option that is missing or invalid, or a
            schedule that needs the unknown length of the run.
    """
    if name in ADAPTIVE:
        raise ConfigurationError(
            f"The schedule {name!r} follows a metric and is not a function of the step. Use build_adaptive."
        )
    run = {"base_rate": base_rate, "num_warmup_steps": warmup_steps, "num_training_steps": total_steps}
    return checks.build(name, SHAPES, [*SHAPES, *ADAPTIVE], run, options)


def build_adaptive(name: str, options: Mapping[str, Any]) -> Adaptive[Any]:
    """Return the schedule `name`, one of `ADAPTIVE`.

    Args:
        name: the name of the schedule.
        options: further options of the schedule.

    Raises:
        ConfigurationError: with every problem: an unknown name or option, or an option with an invalid value.
    """
    if name in SHAPES:
        raise ConfigurationError(
            f"The schedule {name!r} is a function of the step and does not follow a metric. Use build_shape."
        )
    return checks.build(name, ADAPTIVE, [*SHAPES, *ADAPTIVE], {}, options)


# The schedule that arguments name


class ScheduleArguments(Protocol):
    """The arguments that name a schedule, as `TrainingArguments` has them."""

    @property
    def lr_scheduler_type(self) -> Any:
        """The name of the schedule, or a member of an enumeration whose value it is."""

    @property
    def lr_scheduler_kwargs(self) -> Any:
        """The options of the schedule, if it is a dictionary."""

    @property
    def learning_rate(self) -> float:
        """The rate of an optimizer that has no default."""

    def get_warmup_steps(self, num_training_steps: int) -> float:
        """Return the length of the warm-up.

        Args:
            num_training_steps: optimizer steps of the whole run, at least 0.
        """


def schedule_named(args: ScheduleArguments) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of the schedule.

    Args:
        args: the arguments of the run.
    """
    options = dict(args.lr_scheduler_kwargs) if isinstance(args.lr_scheduler_kwargs, dict) else {}
    return str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)), options


def shape_named(args: ScheduleArguments, total_steps: int, default_rate: float | None = None) -> Shape:
    """Return the function of the step that the arguments name.

    Args:
        args: the arguments of the run.
        total_steps: optimizer steps of the whole run; None if unknown.
        default_rate: that of the optimizer, which rates among the options are relative to; None for that of the
            arguments.

    Raises:
        ConfigurationError: if its options are invalid.
    """
    name, options = schedule_named(args)
    rate = args.learning_rate if default_rate is None else default_rate
    warmup_steps = args.get_warmup_steps(total_steps)
    return build_shape(name, base_rate=rate, warmup_steps=warmup_steps, total_steps=total_steps, options=options)


def check_schedule(args: ScheduleArguments, total_steps: int) -> None:
    """Raise ConfigurationError if the schedule that the arguments name cannot be made.

    Args:
        args: the arguments of the run.
        total_steps: optimizer steps of the whole run; None if unknown.
    """
    name, options = schedule_named(args)
    if name in ADAPTIVE:
        build_adaptive(name, options)
    else:
        shape_named(args, total_steps)
