"""Copies of tensors in host memory that is allocated once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from hexloop.adapters.snapshots.torch.memory import Bytes, allocate_like, as_array, as_bytes
from hexloop.adapters.snapshots.torch.staging import PinnedCopies
from hexloop.ports.state import Part
from hexloop.ports.storage import PAGE

PIECE = 1 << 25
"""Bytes that a thread copies at a time."""

THREADS = 8
"""Maximum number of copying threads; fewer already saturate memory bandwidth."""

Key: TypeAlias = tuple[str, str]
"""The owner and the name of a part."""

Piece: TypeAlias = tuple[Bytes, Bytes]
"""Where to copy bytes to, and the bytes."""


class TorchSnapshots:
    """Snapshots adapter for parts whose source is a tensor; the bytes of other parts are copied.

    CPU tensors are copied at once, those on an accelerator with streams while the run continues; see `PinnedCopies`.
    `wait_before_update` must be called before the optimizer's update.
    """

    def __init__(self) -> None:
        self._copies: dict[Key, Copy] = {}
        self._reserving = threading.Lock()
        self._pinned = PinnedCopies()
        self.wait_before_update = self._pinned.wait_before_update

    def reserve(self, owners: Mapping[str, Sequence[Part]]) -> Callable[[], None]:
        """Return a function that allocates the buffers; see `Snapshots.reserve`."""
        wanted = {
            (owner, part.name): part.source.detach()
            for owner, parts in owners.items()
            for part in parts
            if isinstance(part.source, Tensor)
        }
        # The first call of an operation takes a lock of the C library. A process that is forked meanwhile, such as a
        # loader's worker, would wait for it for ever, so the thread that allocates must not be the first to call one.
        for dtype in {tensor.dtype for tensor in wanted.values()}:
            Copy(allocate_like([torch.empty(1, dtype=dtype)])[0])
        pinned = {key: tensor for key, tensor in wanted.items() if _has_streams(tensor.device.type)}
        if pinned:
            torch.zeros(1, pin_memory=True)
        return partial(self._allocate, pinned, {key: each for key, each in wanted.items() if key not in pinned})

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        """Copy the parts; see `Snapshots.take`."""
        parts = list(parts)
        sources = {part.name: part.source for part in parts if isinstance(part.source, Tensor)}
        beside = {name: tensor for name, tensor in sources.items() if _has_streams(tensor.device.type)}
        self._allocate({}, {(owner, name): each for name, each in sources.items() if name not in beside})
        readers = self._pinned.take(owner, beside) if beside else {}
        pieces: list[Piece] = []
        small = _SmallTensors()
        taken = [
            _with_bytes(part, readers[part.name]) if part.name in readers else self._take(owner, part, pieces, small)
            for part in parts
        ]
        small.copy()
        _copy_in_threads(pieces)
        return taken

    def _take(self, owner: str, part: Part, pieces: list[Piece], small: _SmallTensors) -> Part:
        """Return a copy of a part. What is to be copied together with other parts is added to `pieces` or `small`."""
        source = part.source
        if not isinstance(source, Tensor):
            data = bytes(part.read())
            return _with_bytes(part, lambda: memoryview(data))
        copy = self._copies[owner, part.name]
        if source.device.type != "cpu":  # without streams; not each copies to memory of its host by `copy_`
            source = source.detach().cpu()
        if copy.part is None:
            content = copy.data  # not the copy, which refers to the part
            copy.part = _with_bytes(part, lambda: content)
        if copy.size < PAGE:
            small.add(copy.buffer, source)
        elif not source.is_contiguous() or source.is_conj() or source.is_neg():
            copy.buffer.copy_(source.detach())
        else:
            to, of = as_array(copy.buffer), as_array(source.detach())
            pieces += [(to[start : start + PIECE], of[start : start + PIECE]) for start in range(0, len(of), PIECE)]
        return copy.part

    def _allocate(self, pinned: Mapping[Key, Tensor], in_host_memory: Mapping[Key, Tensor]) -> None:
        """Allocate buffers for those tensors that have none."""
        if pinned:
            self._pinned.reserve(pinned)
        with self._reserving:
            missing = {}
            for key, tensor in in_host_memory.items():
                copy = self._copies.get(key)
                if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                    missing[key] = tensor
            if missing:
                buffers = allocate_like(list(missing.values()))
                self._copies.update(zip(missing, map(Copy, buffers), strict=True))


@cache
def _has_streams(kind: str) -> bool:
    """Return whether a kind of device copies to pinned memory beside its computation."""
    return kind != "cpu" and hasattr(getattr(torch, kind, None), "Stream")  # no module: a meta tensor, for one


class Copy:
    """The memory for a copy of a tensor.

    data: its bytes. part: what describes the copy; None before the first one. The same tensor has the same part again.
    """

    __slots__ = ("buffer", "data", "dtype", "part", "shape", "size")

    def __init__(self, buffer: Tensor) -> None:
        self.buffer, self.shape, self.dtype, self.size = buffer, buffer.shape, buffer.dtype, buffer.nbytes
        self.data = as_bytes(buffer)
        self.part: Part | None = None


class _SmallTensors:
    """Tensors that are copied in one call, because the call takes longer than the copy of each."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._sources: list[Tensor] = []

    def add(self, buffer: Tensor, source: Tensor) -> None:
        self._buffers.append(buffer)
        self._sources.append(source)

    def copy(self) -> None:
        if self._buffers:
            with torch.no_grad():
                torch._foreach_copy_(self._buffers, self._sources)


def _with_bytes(part: Part, read: Callable[[], memoryview]) -> Part:
    """Return the part with other bytes, and no source."""
    return Part(part.name, part.dtype, part.shape, part.offset, part.length, read)


def _copy_in_threads(pieces: list[Piece]) -> None:
    """Copy the pieces with as many threads as there are cores, while the run waits.

    PyTorch's own copy splits each tensor over its threads and waits for the slowest thread each time, which takes ten
    times as long if other processes use the cores. Here each thread takes the next piece when it is free.
    """
    size = sum(len(source) for _, source in pieces)
    pieces.reverse()

    def work() -> None:
        while True:
            try:
                target, source = pieces.pop()
            except IndexError:
                return
            np.copyto(target, source)

    others = [threading.Thread(target=work, daemon=True) for _ in range(min(_cores(), size // PIECE, THREADS) - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
