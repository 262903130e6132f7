"""A rate that stays: at once, or after a linear warm-up."""

from __future__ import annotations

from attrs import frozen

from hexloop.domain.schedules.checks import STEPS, check


@frozen
class Constant:
    """f(step) = 1.

    Source: transformers, `get_constant_schedule`. Like there, a warm-up given to the run does not count here.
    """

    def __call__(self, step: int) -> float:
        """The factor of the base rate at update `step`, from 0."""
        return 1.0


@frozen
class ConstantWithWarmup:
    """With W = num_warmup_steps: f(step) = step / W below W, then 1.

    Source: transformers, `get_constant_schedule_with_warmup`; the linear warm-up is that of Goyal et al. 2017
    (arXiv:1706.02677), from 0. Raises ConfigurationError unless num_warmup_steps is a number from 0 up.
    """

    num_warmup_steps: float

    def __attrs_post_init__(self) -> None:
        check(self, num_warmup_steps=STEPS)

    def __call__(self, step: int) -> float:
        """The factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        return 1.0
