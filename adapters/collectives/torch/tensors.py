"""Tensors of all processes, on the device that they lie on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

PADDING = -100
"""What fills dimensions after the first where tensors differ in them; cross entropy ignores it as a label."""

MOST_DIMENSIONS = 8


class TensorRanks:
    """Answers `hexloop.adapters.evaluator.torch.ranks.Ranks` over torch.distributed's default group."""

    def __init__(self, device: torch.device | str) -> None:
        self._size = dist.get_world_size()
        self._device = torch.device(device)

    def join(self, values: Any, rows: int) -> tuple[Any, list[int]]:
        """Every process's rows, in the order of ranks. Numbers, and tensors without dimensions, count as one row."""
        leaves = list(_leaves(values))
        own = [leaf.reshape(-1) if leaf.ndim == 0 else leaf for leaf in leaves]
        own = [leaf[: min(rows, len(leaf))].contiguous() for leaf in own]
        shapes = self._shapes(own, rows)
        joined = [self._join(leaf, [described[number] for described, _ in shapes]) for number, leaf in enumerate(own)]
        return _rebuilt(values, iter(joined)), [count for _, count in shapes]

    def each(self, value: Tensor) -> list[Tensor]:
        """Every process's tensor of one shape."""
        found = [torch.empty_like(value) for _ in range(self._size)]
        dist.all_gather(found, value.contiguous())
        return found

    def total(self, value: Tensor) -> Tensor:
        """The sum of every process's tensor of one shape."""
        found = value.clone()
        dist.all_reduce(found)
        return found

    def _shapes(self, leaves: list[Tensor], rows: int) -> list[tuple[list[list[int]], int]]:
        """For each process the shapes of its tensors, and its rows."""
        described = [rows]
        for leaf in leaves:
            described += [leaf.ndim, *leaf.shape, *[0] * (MOST_DIMENSIONS - leaf.ndim)]
        found = []
        for answer in self.each(torch.tensor(described, device=self._device)):
            count, *numbers = answer.tolist()
            step = MOST_DIMENSIONS + 1
            shapes = [numbers[at + 1 : at + 1 + numbers[at]] for at in range(0, len(numbers), step)]
            found.append((shapes, count))
        return found

    def _join(self, own: Tensor, shapes: list[list[int]]) -> Tensor:
        widest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        missing = [wide - size for wide, size in zip(widest, own.shape, strict=True)]
        both_ends = [end for size in reversed(missing) for end in (0, size)]
        moved = own.to(self._device)
        padded = pad(moved, both_ends, value=PADDING) if any(missing) else moved
        as_sent = padded.to(torch.uint8) if padded.dtype is torch.bool else padded
        parts = [part[: shape[0]] for part, shape in zip(self.each(as_sent), shapes, strict=True)]
        return torch.cat(parts).to(own.dtype)


def _leaves(values: Any) -> Iterator[Tensor]:
    """The tensors that something is nested of, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _leaves(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _leaves(value)


def _rebuilt(values: Any, leaves: Iterator[Tensor]) -> Any:
    """The same nest with other tensors."""
    if isinstance(values, Tensor):
        return next(leaves)
    if isinstance(values, Mapping):
        named = {name: _rebuilt(value, leaves) for name, value in values.items()}
        return named if type(values) is dict else type(values)(named)  # type: ignore[call-arg]
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(_rebuilt(value, leaves) for value in values))
    if isinstance(values, list | tuple):
        return type(values)(_rebuilt(value, leaves) for value in values)
    return values
