"""Moving batches to a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import torch
from torch import Tensor

Transfer = Callable[[Any], Any]


def _stay(batch: Any) -> Any:
    """What is on the processor already."""
    return batch


def transfer_to(device: torch.device | str, non_blocking: bool = False) -> Transfer:
    """A function that moves every tensor of a batch to `device`, whatever it is nested in.

    With `non_blocking` it does not wait for copies from pinned memory. Nothing is moved, or looked through, where the
    device is the processor.
    """
    target = torch.device(device)
    if target.type == "cpu":
        return _stay

    def move(batch: Any) -> Any:
        if isinstance(batch, Tensor):
            return batch.to(target, non_blocking=non_blocking)
        if isinstance(batch, Mapping):
            return _rebuild(batch, {name: move(value) for name, value in batch.items()})
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(move, batch))
        if isinstance(batch, list | tuple):
            return type(batch)(map(move, batch))
        return batch

    return move


def shallow_copy(batch: Any) -> Any:
    """A mapping or list of the same tensors, which whoever gets it may empty or change; any other batch as it is."""
    if isinstance(batch, dict | list) or (isinstance(batch, Mapping) and hasattr(batch, "__copy__")):
        return copy(batch)
    if isinstance(batch, Mapping):
        with suppress(TypeError):  # of a kind that takes more, or nothing, to be made
            return _rebuild(batch, dict(batch))
    return batch


def _rebuild(batch: Mapping[str, Any], moved: dict[str, Any]) -> Any:
    """The moved values in a mapping of the kind that the batch was, where that kind can be made from a dictionary."""
    return moved if type(batch) is dict else type(batch)(moved)  # type: ignore[call-arg]


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


def slice_rows(batch: Any, wanted: range, rows: int) -> Any:
    """Some rows of a batch of so many: of each tensor, and of each list that has one value for each row."""
    if isinstance(batch, Tensor):
        return batch[wanted.start : wanted.stop] if batch.ndim else batch
    if isinstance(batch, Mapping):
        named = {name: slice_rows(value, wanted, rows) for name, value in batch.items()}
        return named if type(batch) is dict else type(batch)(named)  # type: ignore[call-arg]
    if isinstance(batch, list | tuple):
        if not any(isinstance(each, Tensor | Mapping | list | tuple) for each in batch) and len(batch) == rows:
            return batch[wanted.start : wanted.stop]
        parts: Sequence[Any] = [slice_rows(value, wanted, rows) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
