"""Adapters of the Scheduler port; here the one for constant learning rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import frozen

from hexloop.ports.state import Part


@frozen
class ConstantRates:
    """Implements the Scheduler port with the same rates at every update, one per parameter group."""

    _set_rates: Callable[[Sequence[float]], None]
    _rates: tuple[float, ...]

    def start(self, updates: int) -> None:
        """Set the rates."""
        self._set_rates(self._rates)

    def advance(self, updates: int) -> None:
        """No-op: the rates do not change."""

    def observe(self, metrics: Mapping[str, float]) -> None:
        """No-op: the rates do not change."""

    def rates(self) -> tuple[float, ...]:
        """Return the rates."""
        return self._rates

    def export(self) -> Iterator[Part]:
        """Export nothing."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """No-op."""
