"""The Scheduler port over hexloop's own schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, define, field

from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import json_part, only_value
from hexloop.domain.schedules import Shape
from hexloop.domain.schedules.adaptive import Adaptive
from hexloop.ports.state import Part

SetRates = Callable[[Sequence[float]], None]

MEMORY = "adaptive"
"""The name of the exported state of a schedule that follows a metric."""


@define
class ScheduledRates:
    """Learning rates from a function of the step: rate = base rate * shape(updates).

    updates: how many updates have been taken.
    """

    shape: Shape
    base_rates: tuple[float, ...]
    set_rates: SetRates
    updates: int = field(default=0, init=False)
    _rates: tuple[float, ...] = field(init=False)

    @_rates.default
    def _before_the_start(self) -> tuple[float, ...]:
        return self.base_rates

    def start(self, updates: int) -> None:
        """Set the rates of the update numbered `updates`."""
        self.advance(updates)

    def advance(self, updates: int) -> None:
        """Set the rates of the update that follows `updates` updates."""
        self.updates = updates
        factor = self.shape(updates)
        rates: tuple[float, ...] = ()
        for base in self.base_rates:  # usually one, for which a comprehension would take twice as long
            rates += (base * factor,)
        self._rates = rates
        self.set_rates(rates)

    def observe(self, metrics: Mapping[str, float]) -> None:
        """No-op: the rates only depend on the step."""

    def rates(self) -> tuple[float, ...]:
        """Return the current rates."""
        return self._rates

    def export(self) -> Iterator[Part]:
        """Export nothing: the number of updates determines the rates."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """No-op: the number of updates determines the rates."""


@define
class AdaptiveRates:
    """Learning rates from a function of (state, metric): they change when an evaluation is observed.

    updates: how many updates have been taken.
    """

    adaptive: Adaptive[Any]
    metric: BestMetric
    base_rates: tuple[float, ...]
    set_rates: SetRates
    updates: int = field(default=0, init=False)
    _rates: tuple[float, ...] = field(init=False)
    _state: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._rates = self.base_rates
        self._state = self.adaptive.start(self.base_rates)

    def start(self, updates: int) -> None:
        """Set the current rates."""
        self.updates = updates
        self.set_rates(self._rates)

    def advance(self, updates: int) -> None:
        """Count the updates; they do not change the rates."""
        self.updates = updates

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Adapt the rates to the metric. Raises ConfigurationError if the evaluation does not have it."""
        self._state, self._rates = self.adaptive(self._state, self.metric.value(metrics), self._rates)
        self.set_rates(self._rates)

    def rates(self) -> tuple[float, ...]:
        """Return the current rates."""
        return self._rates

    def export(self) -> Iterator[Part]:
        """Export the rates and the state of the schedule."""
        yield json_part(MEMORY, {"rates": self._rates, "state": asdict(self._state)})

    def load(self, parts: Iterable[Part]) -> None:
        """Load exported rates and state."""
        kept = only_value(parts, MEMORY)
        self._rates = tuple(kept["rates"])
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in kept["state"].items()}
        self._state = type(self._state)(**values)
