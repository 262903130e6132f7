"""The losses of the batches of an evaluation, and their mean."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from torch import Tensor

from hexloop.adapters.evaluator.torch.predictions import Joined
from hexloop.adapters.evaluator.torch.room import Array


class BatchLosses:
    """The mean loss of each batch, and its rows, which are what it weighs."""

    def __init__(self) -> None:
        self._losses = Joined()
        self._rows = array("q")
        self._found: Array | None = None

    def __bool__(self) -> bool:
        return len(self._rows) > 0

    def add(self, loss: Tensor, rows: int) -> None:
        """Keep a batch's mean loss, where it is; a batch whose rows nobody can count weighs as one."""
        self._losses.add(loss, 0)
        self._rows.append(max(rows, 1))

    def to_host(self) -> None:
        """Move what is still on the device."""
        self._losses.to_host()

    def by_row(self) -> Array:
        """Every row's loss, that is its batch's, of shape (samples,)."""
        return np.repeat(self._by_batch(), self._rows)

    def in_batches(self) -> list[Array]:
        """The same, an array a batch."""
        return [np.repeat(loss, rows) for loss, rows in zip(self._by_batch(), self._rows, strict=True)]

    def mean(self, finite_alone: bool) -> float:
        """The mean over all rows; with `finite_alone` over those whose loss is finite, where there are any."""
        losses = self.by_row()
        finite = np.isfinite(losses)
        if finite_alone and finite.any():
            losses = losses[finite]
        return float(losses.mean())

    def _by_batch(self) -> Array:
        if self._found is None:
            found: Any = self._losses.result()
            self._found = found
        return self._found
