"""A torch learning-rate scheduler of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter, signature
from typing import Any

from attrs import define, field
from torch.optim import Optimizer

from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.state import Part

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@define
class TorchScheduler:
    """Implements the Scheduler port: calls `step()` after each update, or `step(metric)` after each evaluation.

    A scheduler follows a metric if its `step` requires an argument, like that of torch's ReduceLROnPlateau.
    """

    scheduler: Any
    optimizer: Optimizer
    metric: BestMetric
    _follows_metric: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._follows_metric = _requires_argument(self.scheduler.step)

    def start(self, updates: int) -> None:
        """No-op: torch schedulers set their first rates when they are created."""

    def advance(self, updates: int) -> None:
        """Step a scheduler that counts updates."""
        if not self._follows_metric:
            self.scheduler.step()

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Step a scheduler that follows a metric."""
        if self._follows_metric:
            self.scheduler.step(self.metric.value(metrics))

    def rates(self) -> tuple[float, ...]:
        """Return the rates of the optimizer's groups."""
        return tuple(float(group["lr"]) for group in self.optimizer.param_groups)

    def export(self) -> Iterator[Part]:
        """Export the scheduler's state dict and the current rates. Raises TypeError if the state is not JSON."""
        yield json_part("scheduler", {"state": self.scheduler.state_dict(), "rates": self.rates()})

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported state dict and the rates, which torch does not restore."""
        kept = only_value(parts, "scheduler")
        self.scheduler.load_state_dict(kept["state"])
        for group, rate in zip(self.optimizer.param_groups, kept["rates"], strict=True):
            group["lr"] = rate


def _requires_argument(method: Any) -> bool:
    return any(
        parameter.default is Parameter.empty and parameter.kind in POSITIONAL
        for parameter in signature(method).parameters.values()
    )
