"""A torch learning-rate scheduler that the user supplies, driven as it is."""

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
    """Answers the Scheduler port: one `step()` after each update taken, or one for each evaluation's metric.

    A scheduler follows a metric if its `step` cannot be called without an argument, as that of torch's
    ReduceLROnPlateau.
    """

    scheduler: Any
    optimizer: Optimizer
    metric: BestMetric
    _follows_metric: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._follows_metric = _needs_an_argument(self.scheduler.step)

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


def _needs_an_argument(method: Any) -> bool:
    return any(
        parameter.default is Parameter.empty and parameter.kind in POSITIONAL
        for parameter in signature(method).parameters.values()
    )
