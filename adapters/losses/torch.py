"""Torch losses, added up on their device a block at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.state import Part

BLOCK = 64
"""How many scalars wait before they are folded into one: few kernels a step, and little memory held."""


class TorchLosses:
    """Answers the Losses port. Adding is a list append; every `BLOCK` losses are folded into the sum in one go.

    With `filter_nan` a loss that is not finite counts as the mean of the others, which leaves the mean as it is.
    """

    def __init__(self, device: torch.device | str = "cpu", filter_nan: bool = True) -> None:
        self._device = device
        self._filter_nan = filter_nan
        self._waiting: list[Tensor] = []
        self._start()

    def add(self, loss: Tensor) -> None:
        """Count one loss in; see `Losses.add`."""
        self._waiting.append(loss)
        if len(self._waiting) == BLOCK:
            self._fold()

    def drain(self) -> float:
        """The sum of what was added; waits for the device."""
        self._fold()
        total, finite = float(self._sum), int(self._finite)
        if self._filter_nan and 0 < finite < self._added:
            total *= self._added / finite
        self._start()
        return total

    def export(self) -> Iterator[Part]:
        """What was added and not drained; the blocks stay as they are, so that saving changes no later rounding."""
        waiting = torch.stack(self._waiting) if self._waiting else torch.zeros(0)
        yield json_part(
            "undrained",
            {
                "sum": float(self._sum),
                "finite": int(self._finite),
                "added": self._added,
                "waiting": waiting.tolist(),
                "dtype": str(waiting.dtype).removeprefix("torch."),
            },
        )

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an exported sum, or from several, of processes that are no more."""
        found = list(parts)
        sums = [only_value([part], "undrained") for part in found] or [only_value([], "undrained")]
        self._start()
        for kept in sums:
            self._sum += kept["sum"]
            self._finite += kept["finite"]
            self._added += kept["added"]
            waiting = torch.tensor(kept["waiting"], dtype=getattr(torch, kept["dtype"]), device=self._device)
            self._waiting += waiting.unbind()

    def _start(self) -> None:
        self._waiting.clear()
        self._sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._finite = torch.zeros((), dtype=torch.int64, device=self._device)
        self._added = 0

    def _fold(self) -> None:
        if not self._waiting:
            return
        block = torch.stack(self._waiting).double()
        finite = torch.isfinite(block)
        self._finite += finite.sum()
        self._added += len(self._waiting)
        self._sum += torch.where(finite, block, 0.0).sum() if self._filter_nan else block.sum()
        self._waiting.clear()
