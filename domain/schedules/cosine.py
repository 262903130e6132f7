"""Cosine schedules: to 0, with restarts, or to a minimum rate."""

from __future__ import annotations

import math

from attrs import frozen

from hexloop.domain.schedules.checks import NOT_NEGATIVE, POSITIVE, SHARE, STEPS, OptionKind, check, number, or_none


@frozen
class Cosine:
    """With W = num_warmup_steps, T = num_training_steps: f(step) = step / W below W, then, where
    p = (step - W) / max(1, T - W),

        max(0, (1 + cos(2 * pi * num_cycles * p)) / 2)

    num_cycles counts whole waves: the default half wave ends at 0. After T the wave continues.

    Source: transformers, `get_cosine_schedule_with_warmup`; the cosine decay of Loshchilov and Hutter 2016
    (arXiv:1608.03983). Raises ConfigurationError unless the step counts and num_cycles are numbers
    of at least 0.
    """

    num_warmup_steps: float
    num_training_steps: float
    num_cycles: float = 0.5

    def __attrs_post_init__(self) -> None:
        check(self, num_warmup_steps=STEPS, num_training_steps=STEPS, num_cycles=NOT_NEGATIVE)

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / max(1, self.num_training_steps - self.num_warmup_steps)
        return _wave(progress, self.num_cycles, 0.0)


@frozen
class CosineWithRestarts:
    """With W = num_warmup_steps, T = num_training_steps: f(step) = step / W below W, then, where
    p = (step - W) / max(1, T - W) < 1,

        max(0, (1 + cos(pi * ((num_cycles * p) mod 1))) / 2)

    and 0 from T on. num_cycles counts the decays, each from the full rate.

    Source: transformers, `get_cosine_with_hard_restarts_schedule_with_warmup`; the warm restarts of Loshchilov and
    Hutter 2016 (arXiv:1608.03983) with periods of equal length. Raises ConfigurationError unless the step counts and
    num_cycles are numbers of at least 0.
    """

    num_warmup_steps: float
    num_training_steps: float
    num_cycles: int = 1

    def __attrs_post_init__(self) -> None:
        check(self, num_warmup_steps=STEPS, num_training_steps=STEPS, num_cycles=NOT_NEGATIVE)

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / max(1, self.num_training_steps - self.num_warmup_steps)
        if progress >= 1.0:
            return 0.0
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((self.num_cycles * progress) % 1.0))))


@frozen
class CosineWithMinLr:
    """With W = num_warmup_steps, T = num_training_steps, m = min_lr_rate or min_lr / base_rate:
    f(step) = step / W below W, then, where p = (step - W) / max(1, T - W),

        max(0, (1 - m) * (1 + cos(2 * pi * num_cycles * p)) / 2 + m)

    Source: transformers, `get_cosine_with_min_lr_schedule_with_warmup`. As there, base_rate is the optimizer's
    default rate, so a parameter group with a different rate has a proportional minimum. Raises
    ConfigurationError unless exactly one of min_lr (from 0 to base_rate) and min_lr_rate (from 0 to 1) is given, and
    for step counts and num_cycles like `Cosine`.
    """

    num_warmup_steps: float
    num_training_steps: float
    base_rate: float
    num_cycles: float = 0.5
    min_lr: float | None = None
    min_lr_rate: float | None = None

    def __attrs_post_init__(self) -> None:
        _check_floored(self)

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / max(1, self.num_training_steps - self.num_warmup_steps)
        return _wave(progress, self.num_cycles, _floor(self.base_rate, self.min_lr, self.min_lr_rate))


@frozen
class CosineWarmupWithMinLr:
    """With W = num_warmup_steps, T = num_training_steps, m = min_lr_rate or min_lr / base_rate, w = warmup_lr_rate:
    below W, f(step) = (step + 1) / max(1, W) where w is None, else

        w + (1 - w) * step / max(1, W - 1)

    so that the first step of the warm-up has a rate above 0 and the last one the full rate; then, where
    p = (step - W + 1) / max(1, T - W),

        max(0, (1 - m) * (1 + cos(2 * pi * num_cycles * p)) / 2 + m)

    Source: transformers, `get_cosine_with_min_lr_schedule_with_warmup_lr_rate`. Raises ConfigurationError like
    `CosineWithMinLr`, and unless warmup_lr_rate is a number from 0 to 1, or None.
    """

    num_warmup_steps: float
    num_training_steps: float
    base_rate: float
    num_cycles: float = 0.5
    min_lr: float | None = None
    min_lr_rate: float | None = None
    warmup_lr_rate: float | None = None

    def __attrs_post_init__(self) -> None:
        _check_floored(self, warmup_lr_rate=or_none(SHARE))

    def __call__(self, step: int) -> float:
        """Return the factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            start = self.warmup_lr_rate
            if start is None:
                return (step + 1) / max(1, self.num_warmup_steps)
            return start + (1.0 - start) * step / max(1, self.num_warmup_steps - 1)
        progress = (step - self.num_warmup_steps + 1) / max(1, self.num_training_steps - self.num_warmup_steps)
        return _wave(progress, self.num_cycles, _floor(self.base_rate, self.min_lr, self.min_lr_rate))


def _wave(progress: float, num_cycles: float, floor: float) -> float:
    factor = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress))
    return max(0.0, factor * (1 - floor) + floor)


def _floor(base_rate: float, min_lr: float | None, min_lr_rate: float | None) -> float:
    if min_lr is not None:
        return min_lr / base_rate
    return min_lr_rate or 0.0


def _check_floored(schedule: CosineWithMinLr | CosineWarmupWithMinLr, **more: OptionKind) -> None:
    floors = schedule.min_lr, schedule.min_lr_rate
    conflict = None
    if None not in floors:
        conflict = "min_lr and min_lr_rate cannot both be set: each sets the minimum rate. Remove one of them."
    elif floors == (None, None):
        conflict = "The schedule needs a minimum rate. Set min_lr or min_lr_rate."
    base_rate = schedule.base_rate
    up_to_base = number(f"number from 0 to the base rate {base_rate!r}", lambda rate: 0 <= rate <= base_rate)
    check(
        schedule,
        conflict,
        num_warmup_steps=STEPS,
        num_training_steps=STEPS,
        base_rate=POSITIVE,
        num_cycles=NOT_NEGATIVE,
        min_lr=or_none(up_to_base),
        min_lr_rate=or_none(SHARE),
        **more,
    )
