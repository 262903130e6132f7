"""Decay along a straight line, or along a power of what is left of the run."""

from __future__ import annotations

from attrs import frozen

from hexloop.domain.schedules.checks import NOT_NEGATIVE, POSITIVE, STEPS, check, number


@frozen
class Linear:
    """With W = num_warmup_steps, T = num_training_steps: f(step) = step / W below W, then
    max(0, (T - step) / max(1, T - W)).

    Source: transformers, `get_linear_schedule_with_warmup`; the schedule of BERT (Devlin et al. 2018,
    arXiv:1810.04805). Raises ConfigurationError unless both are numbers from 0 up.
    """

    num_warmup_steps: float
    num_training_steps: float

    def __attrs_post_init__(self) -> None:
        check(self, num_warmup_steps=STEPS, num_training_steps=STEPS)

    def __call__(self, step: int) -> float:
        """The factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        if step < self.num_training_steps:
            return (self.num_training_steps - step) / max(1, self.num_training_steps - self.num_warmup_steps)
        return 0.0


@frozen
class Polynomial:
    """With W = num_warmup_steps, T = num_training_steps, r = base_rate: f(step) = step / W below W, then, up to T,

        ((r - lr_end) * (1 - (step - W) / (T - W)) ** power + lr_end) / r

    and lr_end / r after T, or at once where T - W leaves no room.

    Source: transformers, `get_polynomial_decay_schedule_with_warmup`. There as here r is the optimizer's default rate,
    and every parameter group is scaled by the same factor. Raises ConfigurationError unless 0 <= lr_end < base_rate,
    power is a number from 0 up and the step counts are numbers from 0 up.
    """

    num_warmup_steps: float
    num_training_steps: float
    base_rate: float
    lr_end: float = 1e-7
    power: float = 1.0

    def __attrs_post_init__(self) -> None:
        below_base = number(
            f"number from 0 up and below the base rate {self.base_rate!r}", lambda rate: 0 <= rate < self.base_rate
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
        """The factor of the base rate at update `step`, from 0."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        decay_steps = self.num_training_steps - self.num_warmup_steps
        if step > self.num_training_steps or decay_steps == 0:
            return self.lr_end / self.base_rate
        remaining: float = (1 - (step - self.num_warmup_steps) / decay_steps) ** self.power
        return ((self.base_rate - self.lr_end) * remaining + self.lr_end) / self.base_rate
