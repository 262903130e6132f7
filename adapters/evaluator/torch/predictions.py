"""Collecting the tensors of many batches into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

PADDING = -100
"""What fills the second dimension where batches differ in it; cross entropy ignores it as a label."""


class Collected:
    """Tensors, or tuples, lists and mappings of them, of shape (rows, ...), batch after batch."""

    def __init__(self) -> None:
        self._batches: list[Any] = []
        self._on_device = 0

    def add(self, batch: Any) -> None:
        """Keep one batch where it is."""
        self._batches.append(batch)

    def to_host(self) -> None:
        """Move what is still on the device to arrays on the host, and free the device of it."""
        for index in range(self._on_device, len(self._batches)):
            self._batches[index] = to_arrays(self._batches[index])
        self._on_device = len(self._batches)

    def arrays(self, concatenate: bool = True) -> Any:
        """Everything as arrays of shape (samples, ...), a list of batches without `concatenate`; None where empty."""
        self.to_host()
        if not self._batches:
            return None
        return _concatenate(self._batches) if concatenate else self._batches


def to_arrays(batch: Any) -> Any:
    """The batch with arrays in place of tensors; scalars become arrays of one row, half precision single."""
    if isinstance(batch, Tensor):
        tensor = batch.detach().cpu()
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor = tensor.float()
        return np.atleast_1d(tensor.numpy())
    if isinstance(batch, Mapping):
        return {name: to_arrays(value) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(map(to_arrays, batch))
    return batch


def _concatenate(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, dict):
        return {name: _concatenate([batch[name] for batch in batches]) for name in first}
    if isinstance(first, tuple):
        return tuple(_concatenate([batch[index] for batch in batches]) for index in range(len(first)))
    if not isinstance(first, np.ndarray):
        return batches
    if first.ndim < 2 or len({batch.shape[1] for batch in batches}) == 1:
        return np.concatenate(batches)
    rows, longest = sum(len(batch) for batch in batches), max(batch.shape[1] for batch in batches)
    joined = np.full((rows, longest, *first.shape[2:]), PADDING, dtype=first.dtype)
    start = 0
    for batch in batches:
        joined[start : start + len(batch), : batch.shape[1]] = batch
        start += len(batch)
    return joined
