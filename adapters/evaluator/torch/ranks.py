"""The processes that each predict a part of every batch, as the evaluation sees them."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Ranks(Protocol):
    """What brings the parts together. Every process calls the same methods in the same order."""

    def join(self, values: Any, rows: int) -> tuple[Any, list[int]]:
        """Every process's rows of nested tensors, one after the other, and how many rows each gave; `rows` are ours."""
        ...

    def each(self, value: Tensor) -> list[Tensor]:
        """Every process's tensor of one shape."""
        ...


class OneRank:
    """A process that predicts whole batches."""

    def join(self, values: Any, rows: int) -> tuple[Any, list[int]]:
        """Its own."""
        return values, [rows]

    def each(self, value: Tensor) -> list[Tensor]:
        """Its own."""
        return [value]
