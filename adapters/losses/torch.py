"""Sums of torch losses, computed on their device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice
from typing import Any, SupportsFloat

import torch
from attrs import frozen
from torch import Tensor

from hexloop.domain.json_documents import json_part, only_value
from hexloop.domain.ranges import Count
from hexloop.domain.schemas import read_part, shown, structured
from hexloop.ports.collectives import Collectives
from hexloop.ports.state import Part

BLOCK = 64
"""The number of losses that are collected before they are added to the sum: few kernels per step, little memory."""


DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}
"""The types of losses, by name."""


@frozen
class LossSums:
    """The losses of one process since the last log; they may be NaN or infinite.

    sum, finite: the sum of those that were added up, and how many of them are finite. added: their number.
    waiting: those that are not added up yet. dtype: their type, without "torch.".
    """

    sum: float
    finite: Count
    added: Count
    waiting: list[float]
    dtype: str

    def tensors(self, device: torch.device | str) -> tuple[torch.Tensor, ...]:
        """Return the waiting losses. Raises ValueError if they do not have the type, or the counts do not fit."""
        if self.dtype not in DTYPES:
            raise ValueError(f"undrained.dtype: {shown(self.dtype)} is not one of {', '.join(DTYPES)}")
        if self.finite > self.added:
            raise ValueError(f"undrained.finite: {self.finite} is more than the {self.added} losses that were added")
        dtype = DTYPES[self.dtype]
        most = torch.finfo(dtype).max
        if wrong := [each for each in self.waiting if math.isfinite(each) and abs(each) > most]:
            raise ValueError(f"undrained.waiting: {wrong[0]!r} is too large for {self.dtype}")
        return torch.tensor(self.waiting, dtype=dtype, device=device).unbind()


@frozen
class RunningSums:
    """The losses of a RunningLoss, as texts where they may be NaN."""

    sum: str
    drained: str
    drained_at: Count


class TorchLosses:
    """Implements the Losses port. Adding is a list append; every `BLOCK` losses are added to the sum together.

    With `filter_nan` a loss that is not finite counts as the mean of the others, so that the mean does not change. If
    there are no others, the sum is NaN.
    """

    def __init__(self, device: torch.device | str = "cpu", filter_nan: bool = True) -> None:
        self._components: dict[str, TorchLosses] = {}
        self._device = device
        self._filter_nan = filter_nan
        self._waiting: list[Tensor] = []
        self._sum: Tensor | None = None  # on the device only once there is a loss
        self._finite: Tensor | None = None
        self._added = 0

    def add(self, loss: Tensor) -> None:
        """Add one loss; see `Losses.add`."""
        self._waiting.append(loss)
        if len(self._waiting) == BLOCK:
            self._flush()

    def add_component(self, name: str, share: Tensor) -> None:
        """Add one share of a component, which is treated like one of the loss."""
        if name not in self._components:
            self._components[name] = TorchLosses(self._device, self._filter_nan)
        self._components[name].add(share)

    def drain_components(self) -> dict[str, float]:
        """Return the sum of each component by name, and reset them. Waits for the device."""
        found, self._components = self._components, {}
        return {name: each.drain() for name, each in found.items()}

    def drain(self) -> float:
        """Return the sum, and reset it. Waits for the device."""
        self._flush()
        total, finite = self._read()
        if self._filter_nan and finite < self._added:
            total = total * self._added / finite if finite else math.nan
        self._reset()
        return total

    def export(self) -> Iterator[Part]:
        """Export the sum and the losses not yet added to it, so that saving does not change later rounding."""
        yield json_part("undrained", self._described())
        if self._components:
            yield json_part("components", {name: each._described() for name, each in self._components.items()})

    def _described(self) -> dict[str, Any]:
        waiting = torch.stack(self._waiting) if self._waiting else torch.zeros(0)
        total, finite = self._read()
        return {
            "sum": total,
            "finite": finite,
            "added": self._added,
            "waiting": waiting.tolist(),
            "dtype": str(waiting.dtype).removeprefix("torch."),
        }

    def load(self, parts: Iterable[Part]) -> None:
        """Load one exported sum, or those of several former ranks. Raises ValueError, changing nothing, for others."""
        every = list(parts)
        components = _components_in(part for part in every if part.name == "components")
        found = [[part] for part in every if part.name != "components"] or [[]]
        sums = [read_part(each, "undrained", LossSums) for each in found]
        made = {name: TorchLosses(self._device, self._filter_nan) for name in components}
        for name, losses in made.items():
            losses._take(components[name])
        self._take(sums)
        self._components = made

    def _take(self, sums: Sequence[LossSums]) -> None:
        """Continue from several sums. Raises ValueError, changing nothing, if one is not valid."""
        waiting = [each.tensors(self._device) for each in sums]
        self._reset()
        for losses in waiting:
            self._waiting += losses
        self._added = sum(kept.added for kept in sums)
        if self._added:
            total, finite = sum(float(kept.sum) for kept in sums), sum(kept.finite for kept in sums)
            self._sum = torch.tensor(total, dtype=torch.float64, device=self._device)
            self._finite = torch.tensor(finite, dtype=torch.int64, device=self._device)

    def _reset(self) -> None:
        self._waiting.clear()
        self._sum = self._finite = None
        self._added = 0

    def _read(self) -> tuple[float, int]:
        """Return the sum and the number of finite losses in it. Waits for the device once."""
        if self._sum is None or self._finite is None:
            return 0.0, 0
        total, finite = torch.stack([self._sum, self._finite.double()]).tolist()
        return total, int(finite)

    def _flush(self) -> None:
        if not self._waiting:
            return
        block = torch.stack(self._waiting).double()
        finite = torch.isfinite(block)
        count, total = finite.sum(), torch.where(finite, block, 0.0).sum() if self._filter_nan else block.sum()
        self._finite = count if self._finite is None else self._finite + count
        self._sum = total if self._sum is None else self._sum + total
        self._added += len(self._waiting)
        self._waiting.clear()


MOST_COMPONENTS = 256
"""How many components a saved sum has at most."""


def _components_in(parts: Iterable[Part]) -> dict[str, list[LossSums]]:
    """Return the saved sums of components, each with those of several former ranks. Raises ValueError."""
    found: dict[str, list[LossSums]] = {}
    for part in parts:
        named = only_value([part], "components")
        if not isinstance(named, dict) or len(named) > MOST_COMPONENTS:
            raise ValueError(f"components: {shown(named)} is not a dictionary of at most {MOST_COMPONENTS} entries")
        for name, value in named.items():
            found.setdefault(name, []).append(structured(value, LossSums, f"components.{shown(name)}"))
    return found


class TorchWindowValues:
    """Implements the WindowValues port. Adding is a list append; every `BLOCK` windows the values become one tensor."""

    def __init__(self) -> None:
        self._shares = _Scalars()
        self._norms = _Scalars()
        self._counts: list[tuple[int, int]] = []

    def add(self, shares: Sequence[Tensor], gradient_norm: SupportsFloat | None) -> None:
        """Add a window; see `WindowValues.add`."""
        self._shares.waiting += shares
        if gradient_norm is not None:
            self._norms.waiting.append(gradient_norm)
        self._counts.append((len(shares), 0 if gradient_norm is None else 1))
        if len(self._counts) % BLOCK == 0:
            self._shares.stack()
            self._norms.stack()

    def drain(self) -> list[tuple[float, float | None]]:
        """Return the values, and forget them. Waits for the device."""
        counts, self._counts = self._counts, []
        shares, norms = map(iter, drained(self._shares, self._norms))
        return [(sum(islice(shares, count)), next(islice(norms, measured), None)) for count, measured in counts]


class _Scalars:
    """Numbers, some of which are on a device. waiting: those that are not in a tensor with others yet."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self._blocks: list[Tensor] = []

    def stack(self) -> None:
        """Put those that wait into one tensor, on the device of the first."""
        waiting = self.waiting
        if not waiting:
            return
        if len({(each.dtype, each.device, each.ndim) if isinstance(each, Tensor) else None for each in waiting}) > 1:
            scalars = [each if isinstance(each, Tensor) else torch.tensor(float(each)) for each in waiting]
            dtype, device = reduce(torch.promote_types, (each.dtype for each in scalars)), scalars[0].device
            waiting = [each.to(device, dtype).reshape(()) for each in scalars]
        on_device = isinstance(waiting[0], Tensor)
        numbers = torch.stack(waiting) if on_device else torch.tensor(list(map(float, waiting)), dtype=torch.float64)
        self._blocks.append(numbers.reshape(-1))
        self.waiting.clear()

    def take_blocks(self) -> list[Tensor]:
        """Return all numbers in order, and forget them."""
        self.stack()
        blocks, self._blocks = self._blocks, []
        return blocks


def drained(*several: _Scalars) -> list[list[float]]:
    """Return the numbers of each, and forget them. Waits for the device once."""
    blocks = [scalars.take_blocks() for scalars in several]
    counts = [sum(map(len, each)) for each in blocks]
    every = [block for each in blocks for block in each]
    numbers = iter(torch.cat([block.to(every[0].device) for block in every]).tolist() if every else [])
    return [list(islice(numbers, count)) for count in counts]


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

    def drain_components(self) -> dict[str, float]:
        """Return nothing: transformers logs the loss alone."""
        return {}

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
        value = only_value(parts, "undrained")
        if isinstance(value, dict) and "drained_at" not in value:
            raise ValueError("the run was not one with reproduce='transformers', which sums losses in another way")
        saved = structured(value, RunningSums, "undrained")
        total, drained = float(saved.sum), float(saved.drained)
        self._sum.fill_(total)
        self._drained_at, self._drained = saved.drained_at, drained
