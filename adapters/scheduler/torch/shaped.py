"""One of the domain's schedules of the step, as torch's LambdaLR."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hexloop.domain.schedules import build_shape


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
