"""Decay with the inverse square root of the step, which needs no end."""

from __future__ import annotations

import math

from attrs import frozen

from hexloop.domain.schedules.checks import POSITIVE, STEPS, check, or_none


@frozen
class InverseSqrt:
    """With W = num_warmup_steps, s = timescale, or where it is None W, or 10,000 if W is 0:
    f(step) = step / W below W, then 1 / sqrt((step - W + s) / s).

    Source: transformers, `get_inverse_sqrt_schedule`, after big_vision's `rsqrt`; with s = W it is, up to a constant,
    the schedule of Vaswani et al. 2017 (arXiv:1706.03762). Raises ConfigurationError unless num_warmup_steps is a
    number from 0 up and timescale a number above 0, in steps, or None.
    """

    num_warmup_steps: float
    timescale: int | None = None

    def __attrs_post_init__(self) -> None:
        check(self, num_warmup_steps=STEPS, timescale=or_none(POSITIVE))

    def __call__(self, step: int) -> float:
        """The factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        timescale = self.timescale or self.num_warmup_steps or 10_000
        return 1.0 / math.sqrt((step + (timescale - self.num_warmup_steps)) / timescale)
