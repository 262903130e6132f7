"""Room for many tensors in host memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate

import torch
from torch import Tensor

PAGE = 4096
"""The smallest unit of memory that an operating system hands out, in bytes."""

ALIGNMENT = 64
"""Bytes: where each tensor begins; a line of the processor's cache."""


def room_for(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous tensors of the same shapes and kinds, side by side, in pages that are handed out already.

    Where the system has large pages they are used: a copy then spends no time on looking up where pages are.
    """
    sizes = [-(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    memory = _memory(sum(sizes))
    memory[::PAGE] = 0
    starts = accumulate(sizes, initial=0)
    return [
        memory[start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, tensors, strict=False)
    ]


def _memory(size: int) -> Tensor:
    """So many bytes."""
    if size == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system that was built without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
