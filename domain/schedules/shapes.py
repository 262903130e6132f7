"""Schedules with a closed form besides the cosines: constant, inverse square root, polynomial, warmup-stable-decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from attrs import frozen

from hexloop.domain.schedules.checks import NOT_NEGATIVE, POSITIVE, SHARE, STEPS, check, number, one_of, or_none


@frozen
class Constant:
    """f(step) = 1.

    Source: transformers, `get_constant_schedule`. As there, the warm-up of the run is ignored.
    """

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        return 1.0


@frozen
class ConstantWithWarmup:
    """With W = num_warmup_steps: f(step) = step / W below W, then 1.

    Source: transformers, `get_constant_schedule_with_warmup`; the linear warm-up of Goyal et al. 2017
    (arXiv:1706.02677), from 0. Raises ConfigurationError unless num_warmup_steps is a number of at least 0.
    """

    num_warmup_steps: float

    def __attrs_post_init__(self) -> None:
        check(self, num_warmup_steps=STEPS)

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        return 1.0


@frozen
class InverseSqrt:
    """With W = num_warmup_steps and s = timescale (if None: W, or 10,000 if W is 0):
    f(step) = step / W below W, then 1 / sqrt((step - W + s) / s).

    Source: transformers, `get_inverse_sqrt_schedule`, after big_vision's `rsqrt`; with s = W it is the schedule
    of Vaswani et al. 2017 (arXiv:1706.03762) up to a constant. Raises ConfigurationError unless num_warmup_steps is a
    number of at least 0 and timescale a number above 0, in steps, or None.
    """

    num_warmup_steps: float
    timescale: int | None = None

    def __attrs_post_init__(self) -> None:
        check(self, num_warmup_steps=STEPS, timescale=or_none(POSITIVE))

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        timescale = self.timescale or self.num_warmup_steps or 10_000
        return 1.0 / math.sqrt((step + (timescale - self.num_warmup_steps)) / timescale)


@frozen
class Linear:
    """With W = num_warmup_steps, T = num_training_steps: f(step) = step / W below W, then
    max(0, (T - step) / max(1, T - W)).

    Source: transformers, `get_linear_schedule_with_warmup`; the schedule of BERT (Devlin et al. 2018,
    arXiv:1810.04805). Raises ConfigurationError unless both are numbers of at least 0.
    """

    num_warmup_steps: float
    num_training_steps: float

    def __attrs_post_init__(self) -> None:
        check(self, num_warmup_steps=STEPS, num_training_steps=STEPS)

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        if step < self.num_training_steps:
            return (self.num_training_steps - step) / max(1, self.num_training_steps - self.num_warmup_steps)
        return 0.0


@frozen
class Polynomial:
    """With W = num_warmup_steps, T = num_training_steps, r = base_rate: f(step) = step / W below W, then, up to T,

        ((r - lr_end) * (1 - (step - W) / (T - W)) ** power + lr_end) / r

    and lr_end / r after T, or from W on if T = W.

    Source: transformers, `get_polynomial_decay_schedule_with_warmup`. As there, r is the optimizer's default rate,
    and every parameter group is scaled by the same factor. Raises ConfigurationError unless 0 <= lr_end < base_rate,
    and power and the step counts are numbers of at least 0.
    """

    num_warmup_steps: float
    num_training_steps: float
    base_rate: float
    lr_end: float = 1e-7
    power: float = 1.0

    def __attrs_post_init__(self) -> None:
        below_base = number(
            f"non-negative number below the base rate {self.base_rate!r}", lambda rate: 0 <= rate < self.base_rate
        )
        check(
            self,
            num_warmup_steps=STEPS,
            num_training_steps=STEPS,
            base_rate=POSITIVE,
            lr_end=below_base,
            power=NOT_NEGATIVE,
        )

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        decay_steps = self.num_training_steps - self.num_warmup_steps
        if step > self.num_training_steps or decay_steps == 0:
            return self.lr_end / self.base_rate
        remaining: float = (1 - (step - self.num_warmup_steps) / decay_steps) ** self.power
        return ((self.base_rate - self.lr_end) * remaining + self.lr_end) / self.base_rate


_RISES: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "linear": lambda progress: progress,
        "cosine": lambda progress: 0.5 * (1.0 - math.cos(math.pi * progress)),
        "1-sqrt": lambda progress: 1.0 - math.sqrt(1.0 - progress),
    }
)
_FALLS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "linear": lambda progress, _: 1.0 - progress,
        "cosine": lambda progress, cycles: 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)),
        "1-sqrt": lambda progress, _: 1.0 - math.sqrt(progress),
    }
)


@frozen
class WarmupStableDecay:
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
    (arXiv:2405.18392). Raises ConfigurationError unless the step counts are numbers of at least 0,
    num_stable_steps or num_training_steps is given, the types are known, min_lr_ratio is from 0 to 1 and num_cycles is
    at least 0.
    """

    num_warmup_steps: float
    num_decay_steps: float
    num_training_steps: float | None = None
    num_stable_steps: float | None = None
    warmup_type: str = "linear"
    decay_type: str = "cosine"
    min_lr_ratio: float = 0.0
    num_cycles: float = 0.5

    def __attrs_post_init__(self) -> None:
        conflict = None
        if self.num_training_steps is None and self.num_stable_steps is None:
            conflict = (
                "The length of the stable stage cannot be computed, because the length of the run is unknown. "
                "Set num_stable_steps or max_steps."
            )
        check(
            self,
            conflict,
            num_warmup_steps=STEPS,
            num_decay_steps=STEPS,
            num_training_steps=or_none(STEPS),
            num_stable_steps=or_none(STEPS),
            warmup_type=one_of(*_RISES),
            decay_type=one_of(*_FALLS),
            min_lr_ratio=SHARE,
            num_cycles=NOT_NEGATIVE,
        )

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
