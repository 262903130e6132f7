"""hexloop's own schedules, driven step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, define, field

from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import json_part, only_value
from hexloop.domain.schedules import Adaptive, Shape
from hexloop.ports.state import Part

SetRates = Callable[[Sequence[float]], None]

MEMORY = "adaptive"
"""The name of what a schedule remembers that follows a metric."""


@define
class ScheduledRates:
    """Answers the Scheduler port by a function of the step: rate = base rate * shape(updates taken).

    updates: how many are taken.
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
        """Put the rates of the update numbered `updates` in force."""
        self.advance(updates)

    def advance(self, updates: int) -> None:
        """Put the rates of the update after `updates` updates in force."""
        self.updates = updates
        factor = self.shape(updates)
        rates: tuple[float, ...] = ()
        for base in self.base_rates:  # mostly one, for which a comprehension costs twice as much
            rates += (base * factor,)
        self._rates = rates
        self.set_rates(rates)

    def observe(self, metrics: Mapping[str, float]) -> None:
        """A function of the step does not care."""

    def rates(self) -> tuple[float, ...]:
        """The rates last put in force."""
        return self._rates

    def export(self) -> Iterator[Part]:
        """The count of updates says it all."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """The count of updates says it all."""


@define
class AdaptiveRates:
    """Answers the Scheduler port by a function of (state, metric): the rates change when an evaluation is observed.

    updates: how many are taken.
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
        """Put the present rates in force."""
        self.updates = updates
        self.set_rates(self._rates)

    def advance(self, updates: int) -> None:
        """Steps alone change no rate."""
        self.updates = updates

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Adapt to the metric. Raises ConfigurationError where the evaluation did not measure it."""
        self._state, self._rates = self.adaptive(self._state, self.metric.value(metrics), self._rates)
        self.set_rates(self._rates)

    def rates(self) -> tuple[float, ...]:
        """The rates last put in force."""
        return self._rates

    def export(self) -> Iterator[Part]:
        """The rates, and what the schedule remembers of earlier metrics."""
        yield json_part(MEMORY, {"rates": self._rates, "state": asdict(self._state)})

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from exported rates and memory."""
        kept = only_value(parts, MEMORY)
        self._rates = tuple(kept["rates"])
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in kept["state"].items()}
        self._state = type(self._state)(**values)
