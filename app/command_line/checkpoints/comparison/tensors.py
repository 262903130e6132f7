"""Two tensors, element by element."""

from __future__ import annotations

import math
from math import prod
from typing import TYPE_CHECKING

from hexloop.adapters.contents.checkpoint.safetensors_files import ITEM_BYTES
from hexloop.app.command_line.checkpoints.comparison.differences import Largest, TensorDiffers
from hexloop.ports.state import Part

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 20
"""Elements that are compared at a time."""


def compare_tensors(group: str, name: str, one: Part | None, other: Part | None) -> TensorDiffers | None:
    """How two tensors differ; None where all their bits are equal. One is None where that checkpoint lacks it."""
    kinds = _kind(one), _kind(other)
    if one is None or other is None or kinds[0] != kinds[1]:
        return TensorDiffers(group, name, kinds)
    first, second = one.read().cast("B"), other.read().cast("B")
    if first == second:
        return None
    count, largest = _largest(first, second, one.dtype, one.shape)
    return TensorDiffers(group, name, kinds, (count, prod(one.shape)), largest)


def _kind(part: Part | None) -> str | None:
    return None if part is None else f"{part.dtype} {list(part.shape)}"


def _largest(first: memoryview, second: memoryview, dtype: str, shape: tuple[int, ...]) -> tuple[int, Largest | None]:
    """How many elements differ, and where they do most; None where no value does. No number (NaN) counts as most."""
    import torch

    from hexloop.adapters.trainable.torch.serialization import TYPES

    width, count, largest = ITEM_BYTES[dtype], 0, None
    for start in range(0, prod(shape), BLOCK):
        place = slice(start * width, (start + BLOCK) * width)
        raw = [torch.frombuffer(view[place], dtype=torch.uint8) for view in (first, second)]
        unequal = (raw[0] != raw[1]).view(-1, width).any(dim=1)
        if not unequal.any():
            continue
        count += int(unequal.sum())
        one, other = (each.view(TYPES[dtype]) for each in raw)
        apart = _apart(one, other, unequal)
        most = int(apart.argmax())
        difference = float(apart[most])
        if difference and (largest is None or _is_more(difference, largest.difference)):
            largest = Largest(difference, _index(start + most, shape), (one[most].item(), other[most].item()))
    return count, largest


def _apart(one: Tensor, other: Tensor, unequal: Tensor) -> Tensor:
    """The absolute difference of each element, 0 where both are the same or neither is a number."""
    import torch

    if one.is_complex():
        one, other, least = one.to(torch.complex128), other.to(torch.complex128), 0.0
    else:
        # Whole numbers that are too large for a double to tell apart differ by 1 at least.
        least = 0.0 if one.is_floating_point() else 1.0
        one, other = one.double(), other.double()
    apart = (one - other).abs().clamp(min=least)
    return torch.where(unequal & ~(one.isnan() & other.isnan()), apart, 0.0)


def _is_more(difference: float, largest: float) -> bool:
    """Whether a difference is larger than the largest until now."""
    return not math.isnan(largest) and not difference <= largest


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element that is so many after the first."""
    index = []
    for length in reversed(shape):
        place, here = divmod(place, length)
        index.append(here)
    return tuple(reversed(index))
