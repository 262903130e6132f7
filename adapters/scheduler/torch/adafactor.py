"""The rates of an Adafactor that makes its own, for whoever reads them off a scheduler."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


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
