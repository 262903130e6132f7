"""Sums of torch losses, computed on their device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.collectives import Collectives
from hexloop.ports.state import Part

BLOCK = 64
"""The number of losses that are collected before they are added to the sum: few kernels per step, little memory."""


class TorchLosses:
    """Implements the Losses port. Adding is a list append; every `BLOCK` losses are added to the sum together.

    With `filter_nan` a loss that is not finite counts as the mean of the others, so that the mean does not change.
    """

    def __init__(self, device: torch.device | str = "cpu", filter_nan: bool = True) -> None:
        self._device = device
        self._filter_nan = filter_nan
        self._waiting: list[Tensor] = []
        self._reset()

    def add(self, loss: Tensor) -> None:
        """Add one loss; see `Losses.add`."""
        self._waiting.append(loss)
        if len(self._waiting) == BLOCK:
            self._flush()

    def drain(self) -> float:
        """Return the sum, and reset it. Waits for the device."""
        self._flush()
        total, finite = float(self._sum), int(self._finite)
        if self._filter_nan and 0 < finite < self._added:
            total *= self._added / finite
        self._reset()
        return total

    def export(self) -> Iterator[Part]:
        """Export the sum and the losses not yet added to it, so that saving does not change later rounding."""
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
        """Load one exported sum, or those of several former ranks."""
        found = list(parts)
        sums = [only_value([part], "undrained") for part in found] or [only_value([], "undrained")]
        self._reset()
        for kept in sums:
            self._sum += kept["sum"]
            self._finite += kept["finite"]
            self._added += kept["added"]
            waiting = torch.tensor(kept["waiting"], dtype=getattr(torch, kept["dtype"]), device=self._device)
            self._waiting += waiting.unbind()

    def _reset(self) -> None:
        self._waiting.clear()
        self._sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._finite = torch.zeros((), dtype=torch.int64, device=self._device)
        self._added = 0

    def _flush(self) -> None:
        if not self._waiting:
            return
        block = torch.stack(self._waiting).double()
        finite = torch.isfinite(block)
        self._finite += finite.sum()
        self._added += len(self._waiting)
        self._sum += torch.where(finite, block, 0.0).sum() if self._filter_nan else block.sum()
        self._waiting.clear()


class RunningLoss:
    """Implements the Losses port as transformers does: one float32 sum on the device, to which each loss is added.

    A loss that is not finite counts, with `filter_nan`, as a running average of the sum, which makes the device wait.
    step: returns the number of optimizer steps done. collectives: of several processes, whose sums are averaged.
    total: the sum over the whole run as transformers reports it at the end: the averages that were drained before the
    last drain, and this process's own sum since then.
    """

    total: float = 0.0

    def __init__(
        self,
        device: torch.device | str,
        filter_nan: bool,
        step: Callable[[], int],
        collectives: Collectives | None = None,
    ) -> None:
        self._filter_nan, self._step, self._collectives = filter_nan, step, collectives
        self._sum = torch.tensor(0.0, device=device)
        self._drained_at = step()
        self._drained = 0.0

    def add(self, loss: Tensor) -> None:
        """Add one loss; see `Losses.add`."""
        if self._filter_nan and not torch.isfinite(loss):
            self._sum += self._sum / (1 + self._step() - self._drained_at)
        else:
            self._sum += loss

    def drain(self) -> float:
        """Return the mean of the processes' sums, and reset it. Waits for the device."""
        total = self._sum
        if self._collectives is not None:
            sums = self._collectives.gather(repr(float(total)))  # as text, because JSON has no NaN
            total = torch.tensor([float(str(each)) for each in sums])
        value = total.mean().item()
        self.total = self._drained + float(self._sum)
        self._drained += value
        self._sum -= self._sum
        self._drained_at = self._step()
        return value

    def export(self) -> Iterator[Part]:
        """Export this process's sum, the step at which it was last drained, and the sum of what was drained."""
        sums = {"sum": repr(float(self._sum)), "drained": repr(self._drained)}  # as text, because JSON has no NaN
        yield json_part("undrained", {**sums, "drained_at": self._drained_at})

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported sum. Raises ValueError if it is of a run without `reproduce`."""
        saved = only_value(parts, "undrained")
        if "drained_at" not in saved:
            raise ValueError("the run was not one with reproduce='transformers', which sums losses in another way")
        self._sum.fill_(float(saved["sum"]))
        self._drained_at, self._drained = saved["drained_at"], float(saved["drained"])
