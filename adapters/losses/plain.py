"""Losses that are on the host already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import SupportsFloat

from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.state import Part


class PlainLosses:
    """Answers the Losses port for whatever turns into a float without waiting."""

    def __init__(self) -> None:
        self._sum = 0.0

    def add(self, loss: SupportsFloat) -> None:
        """Count one loss in."""
        self._sum += float(loss)

    def drain(self) -> float:
        """The sum, which starts again from zero."""
        total, self._sum = self._sum, 0.0
        return total

    def export(self) -> Iterator[Part]:
        """The sum."""
        yield json_part("undrained", self._sum)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an exported sum."""
        self._sum = only_value(parts, "undrained")
