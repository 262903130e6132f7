"""Room for many tensors in host memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate

import torch
from torch import Tensor

from hexloop.ports.storage import PAGE

ALIGNMENT = 64
"""Bytes: where a small tensor begins; a line of the processor's cache. One of a page or more begins with a page."""


def room_for(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous tensors of the same shapes and kinds, side by side, in pages that are handed out already.

    Where the system has large pages they are used: a copy then spends no time on looking up where pages are. Tensors of
    a page or more begin with one, as a disk wants it that takes bytes from where they lie.
    """
    rooms = [_room(tensor.nbytes) for tensor in tensors]
    memory = _memory(sum(rooms))
    memory[::PAGE] = 0
    largest_first = sorted(range(len(rooms)), key=lambda place: -rooms[place])
    starts = dict(zip(largest_first, accumulate((rooms[place] for place in largest_first), initial=0), strict=False))
    return [
        memory[starts[place] : starts[place] + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for place, tensor in enumerate(tensors)
    ]


def _room(size: int) -> int:
    """What a tensor of so many bytes takes up."""
    unit = PAGE if size >= PAGE else ALIGNMENT
    return -(-size // unit) * unit


def _memory(size: int) -> Tensor:
    """So many bytes."""
    if size == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system that was built without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
