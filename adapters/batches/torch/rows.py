"""How many samples a batch of tensors holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor


def row_count(batch: Any) -> int:
    """The length of the first dimension of the first tensor found in `batch`; 0 where there is none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 0
    values: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        values = batch.values()
    elif isinstance(batch, list | tuple):
        values = batch
    for value in values:
        if rows := row_count(value):
            return rows
    return 0
