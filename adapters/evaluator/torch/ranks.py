"""The processes that each predict a part of every batch, as the evaluation sees them."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Ranks(Protocol):
    """What brings the parts together. Every process calls the same methods in the same order."""

    def parts(self, values: Any, rows: int) -> list[tuple[Any, int]]:
        """Every process's nested tensors, and how many rows they are of; `rows` are those of ours."""
        ...

    def each(self, value: Tensor) -> list[Tensor]:
        """Every process's tensor of one shape."""
        ...


class OneRank:
    """A process that predicts whole batches."""

    def parts(self, values: Any, rows: int) -> list[tuple[Any, int]]:
        """Its own."""
        return [(values, rows)]

    def each(self, value: Tensor) -> list[Tensor]:
        """Its own."""
        return [value]
