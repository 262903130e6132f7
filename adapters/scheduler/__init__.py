"""Adapters of the Scheduler port that need no framework: rates from a function of the step, and constant ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import define, field

from hexloop.domain.schedules import Shape
from hexloop.ports.state import Part

SetRates = Callable[[Sequence[float]], None]


@define
class ScheduledRates:
    """Learning rates from a function of the step: rate = base rate * shape(updates).

    Args:
        shape: the factor of the rates, as a function of the updates taken.
        base_rates: the rates that are multiplied, one per parameter group.
        set_rates: sets the rates of the optimizer.

    Attributes:
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


class ConstantRates(ScheduledRates):
    """Implements the Scheduler port with the same rates at every update, one per parameter group.

    Args:
        set_rates: sets the rates of the optimizer.
        rates: one per parameter group.
    """

    def __init__(self, set_rates: SetRates, rates: tuple[float, ...]) -> None:
        super().__init__(lambda _: 1.0, rates, set_rates)
