"""Rates that stay what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import frozen

from hexloop.ports.state import Part


@frozen
class ConstantRates:
    """Answers the Scheduler port with the same rates for every update, one for each parameter group."""

    _set_rates: Callable[[Sequence[float]], None]
    _rates: tuple[float, ...]

    def start(self, updates: int) -> None:
        """Put the rates in force."""
        self._set_rates(self._rates)

    def advance(self, updates: int) -> None:
        """They are in force."""

    def observe(self, metrics: Mapping[str, float]) -> None:
        """No metric changes them."""

    def rates(self) -> tuple[float, ...]:
        """The rates."""
        return self._rates

    def export(self) -> Iterator[Part]:
        """Nothing is kept."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """Nothing is kept."""
