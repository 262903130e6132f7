"""Which evaluation was the best so far."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.state import RunState


@frozen
class BestMetric:
    """The metric by which evaluations are compared; an empty name compares none.

    prefix: how the metrics of an evaluation are named ("eval_"); `name` may be given with or without it.
    """

    name: str = ""
    greater_is_better: bool = False
    prefix: str = "eval_"

    @property
    def full_name(self) -> str:
        """The name under which evaluations report the metric."""
        return self.name if self.name.startswith(self.prefix) else self.prefix + self.name

    def value(self, metrics: Mapping[str, float]) -> float:
        """The metric's value. Raises ConfigurationError, naming those that there are, where it was not measured."""
        if self.full_name not in metrics:
            raise ConfigurationError(
                [
                    f"You chose metric_for_best_model={self.name!r}, but the evaluation measured no "
                    f"{self.full_name!r}; choose one of: {', '.join(sorted(metrics)) or '(none)'}."
                ]
            )
        return metrics[self.full_name]

    def observe(self, state: RunState, metrics: Mapping[str, float]) -> bool:
        """Compare an evaluation with the best so far, note it in `state` where it is better, and say whether it is."""
        if not self.name:
            return False
        value = self.value(metrics)
        best = state.best_metric
        if best is None:
            best = float("-inf") if self.greater_is_better else float("inf")
            state.best_metric = best
        if not (value > best if self.greater_is_better else value < best):
            return False
        state.best_metric = value
        state.best_step = state.step
        return True
