"""Splitting a batch that is collated already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from hexloop.adapters.batches.torch.rows import row_count
from hexloop.adapters.batches.torch.shares import Share, shares_of
from hexloop.domain.order.slices import rank_slice


def split(batch: Any, world_size: int) -> tuple[Share, ...]:
    """A batch that is collated already, its rows dealt out as evenly as can be, in order."""
    rows = row_count(batch)
    slices = [rank_slice(range(rows), rank, world_size) for rank in range(world_size)]
    batches = [rows_of(batch, mine or range(1), rows) for mine in slices]
    return shares_of(batches, [bool(mine) for mine in slices], rows)


def rows_of(batch: Any, wanted: range, rows: int) -> Any:
    """Some rows of a batch of so many: of each tensor, and of each list that has one value for each row."""
    if isinstance(batch, Tensor):
        return batch[wanted.start : wanted.stop] if batch.ndim else batch
    if isinstance(batch, Mapping):
        named = {name: rows_of(value, wanted, rows) for name, value in batch.items()}
        return named if type(batch) is dict else type(batch)(named)  # type: ignore[call-arg]
    if isinstance(batch, list | tuple):
        if not any(isinstance(each, Tensor | Mapping | list | tuple) for each in batch) and len(batch) == rows:
            return batch[wanted.start : wanted.stop]
        parts: Sequence[Any] = [rows_of(value, wanted, rows) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
