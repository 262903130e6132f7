"""The schedule of three stages, by the reference library's name and signature, and the order that this once had."""

from __future__ import annotations

import warnings

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hexloop.adapters.scheduler.torch.shaped import lambda_of_shape
from hexloop.domain.errors import ConfigurationError


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
