"""Memory for copies of tensors: many side by side in one allocation."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from operator import mul

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hexloop.ports.storage import PAGE

ALIGNMENT = 64
"""Alignment of small tensors in bytes: one cache line. Tensors of a page or more are aligned to a page."""

Bytes = npt.NDArray[np.uint8]


class Layout:
    """Where contiguous copies of tensors lie in one piece of memory of `size` bytes.

    Tensors of a page or more are aligned to a page, as direct disk writes require.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        sizes = [_aligned_size(tensor.nbytes) for tensor in tensors]
        largest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
        starts = accumulate((sizes[index] for index in largest_first), initial=0)
        self.size = sum(sizes)
        self._starts = dict(zip(largest_first, starts, strict=False))
        self._kinds = [(tensor.shape, tensor.dtype) for tensor in tensors]

    def views(self, memory: Tensor) -> list[Tensor]:
        """Return the copies in `memory`: bytes, on any device."""
        typed: dict[torch.dtype, Tensor] = {}
        strides: dict[torch.Size, tuple[int, ...]] = {}
        found = []
        for index, (shape, dtype) in enumerate(self._kinds):
            if dtype not in typed:
                typed[dtype] = memory.view(dtype)
            if shape not in strides:
                strides[shape] = tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()
            found.append(torch.as_strided(typed[dtype], shape, strides[shape], self._starts[index] // dtype.itemsize))
        return found


def allocate_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Allocate contiguous tensors with the given shapes and dtypes, side by side in touched pages.

    Huge pages are used if the system has them: copies then spend no time on page-table lookups.
    """
    layout = Layout(tensors)
    memory = _allocate(layout.size)
    memory[::PAGE] = 0
    return layout.views(memory)


def as_array(tensor: Tensor) -> Bytes:
    """View a contiguous tensor as a numpy array of bytes."""
    array: Bytes = tensor.view(-1).view(torch.uint8).numpy()
    return array


def as_bytes(tensor: Tensor) -> memoryview:
    """View a contiguous tensor as bytes."""
    return as_array(tensor).data if tensor.numel() else memoryview(b"")


def _aligned_size(size: int) -> int:
    """Return the bytes that a tensor of `size` bytes occupies, with alignment."""
    unit = PAGE if size >= PAGE else ALIGNMENT
    return -(-size // unit) * unit


def _allocate(size: int) -> Tensor:
    """Allocate `size` bytes."""
    if size == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the system was built without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
