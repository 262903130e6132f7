"""Adapters of the ports Losses and WindowValues; here those for losses that are on the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsFloat

from hexloop.domain.json_documents import json_part
from hexloop.domain.schemas import read_part
from hexloop.ports.state import Part


class PlainLosses:
    """Implements the Losses port for values that convert to float without a wait."""

    def __init__(self) -> None:
        self._sum = 0.0

    def add(self, loss: SupportsFloat) -> None:
        """Add one loss."""
        self._sum += float(loss)

    def drain(self) -> float:
        """Return the sum, and reset it to zero."""
        total, self._sum = self._sum, 0.0
        return total

    def drain_components(self) -> dict[str, float]:
        """Return nothing: there are no components."""
        return {}

    def export(self) -> Iterator[Part]:
        """Export the sum."""
        yield json_part("undrained", self._sum)

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported sum, which may be NaN, or those of several former ranks.

        Raises:
            ValueError: for others.
        """
        found = [[part] for part in parts] or [[]]
        self._sum = sum(read_part(each, "undrained", float) for each in found)


class PlainWindowValues:
    """Implements the WindowValues port for values that convert to float without a wait."""

    def __init__(self) -> None:
        self._values: list[tuple[float, float | None]] = []

    def add(self, shares: Sequence[SupportsFloat], gradient_norm: SupportsFloat | None) -> None:
        """Add a window; see `WindowValues.add`."""
        norm = None if gradient_norm is None else float(gradient_norm)
        self._values.append((sum(map(float, shares)), norm))

    def drain(self) -> list[tuple[float, float | None]]:
        """Return the values, and forget them."""
        values, self._values = self._values, []
        return values
