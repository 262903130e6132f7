"""A torch learning-rate scheduler that the user supplies, driven as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import define
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hexloop.domain.best import BestMetric
from hexloop.domain.parts import json_part, only_value
from hexloop.ports.state import Part


@define
class TorchScheduler:
    """Answers the Scheduler port: one `step()` after each update taken, or one for each evaluation's metric."""

    scheduler: Any
    optimizer: Optimizer
    metric: BestMetric

    def start(self, updates: int) -> None:
        """The scheduler put its first rates in force when it was made."""

    def advance(self, updates: int) -> None:
        """One step of a scheduler that counts steps."""
        if not self._follows_metric:
            self.scheduler.step()

    def observe(self, metrics: Mapping[str, float]) -> None:
        """One step of a scheduler that follows a metric."""
        if self._follows_metric:
            self.scheduler.step(self.metric.value(metrics))

    def rates(self) -> tuple[float, ...]:
        """The rates in the optimizer's groups."""
        return tuple(float(group["lr"]) for group in self.optimizer.param_groups)

    def export(self) -> Iterator[Part]:
        """The scheduler's state dict, and the rates in force. Raises TypeError where it holds what JSON cannot."""
        yield json_part("scheduler", {"state": self.scheduler.state_dict(), "rates": self.rates()})

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an exported state dict, which torch loads without the rates that it leads to."""
        kept = only_value(parts, "scheduler")
        self.scheduler.load_state_dict(kept["state"])
        for group, rate in zip(self.optimizer.param_groups, kept["rates"], strict=True):
            group["lr"] = rate

    @property
    def _follows_metric(self) -> bool:
        return isinstance(self.scheduler, ReduceLROnPlateau)
