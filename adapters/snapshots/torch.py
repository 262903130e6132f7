"""Copies of tensors in host memory that is allocated once."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate
from operator import mul
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hexloop.ports.state import Part
from hexloop.ports.storage import PAGE

OPTIMIZER = "optimizer"
"""The owner whose tensors only the optimizer's update changes."""

PIECE = 1 << 25
"""Bytes that a thread copies at a time."""

THREADS = 8
"""Maximum number of copying threads; fewer already saturate memory bandwidth."""

ALIGNMENT = 64
"""Alignment of small tensors in bytes: one cache line. Tensors of a page or more are aligned to a page."""

Bytes = npt.NDArray[np.uint8]

Key: TypeAlias = tuple[str, str]
"""The owner and the name of a part."""

Piece: TypeAlias = tuple[Bytes, Bytes]
"""Where to copy bytes to, and the bytes."""


class TorchSnapshots:
    """Snapshots adapter for parts whose source is a tensor; the bytes of other parts are copied.

    CPU tensors are copied at once. Those on an accelerator with streams are copied to pinned memory on a separate
    stream, which overlaps with the next step: `wait_before_update` must be called before the optimizer's update and
    makes the device, not this process, wait for the copies. Tensors that change outside the update (batch norm
    statistics) are copied on the current stream.
    """

    def __init__(self) -> None:
        self._copies: dict[Key, Copy] = {}
        self._reserving = threading.Lock()
        self._streams: dict[torch.device, Any] = {}
        self._copied: dict[torch.device, Any] = {}

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
        if any(_has_streams(tensor.device.type) for tensor in wanted.values()):
            torch.zeros(1, pin_memory=True)
        return partial(self._allocate_buffers, wanted)

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        """Copy the parts; see `Snapshots.take`."""
        parts = list(parts)
        self._allocate_buffers({(owner, part.name): part.source for part in parts if isinstance(part.source, Tensor)})
        pieces: list[Piece] = []
        small = _SmallTensors()
        taken = [self._take(owner, part, pieces, small) for part in parts]
        small.copy()
        _copy_in_threads(pieces)
        return taken

    def wait_before_update(self) -> None:
        """Make every device wait for the copies of its tensors before it does any work enqueued from now on."""
        for device, copied in self._copied.items():
            torch.get_device_module(device).current_stream(device).wait_event(copied)
        self._copied.clear()

    def _take(self, owner: str, part: Part, pieces: list[Piece], small: _SmallTensors) -> Part:
        """Return a copy of a part. What is to be copied together with other parts is added to `pieces` or `small`."""
        source = part.source
        if not isinstance(source, Tensor):
            data = bytes(part.read())
            return _with_bytes(part, lambda: memoryview(data))
        copy = self._copies[owner, part.name]
        content = copy.data  # not the copy, which refers to the part
        if _has_streams(source.device.type):
            copied = self._copy_beside(copy.buffer, source.detach(), owner == OPTIMIZER or source.requires_grad)

            def read() -> memoryview:
                copied.synchronize()
                return content

            return _with_bytes(part, read)
        if source.device.type != "cpu":  # without streams; not each copies to memory of its host by `copy_`
            source = source.detach().cpu()
        if copy.part is None:
            copy.part = _with_bytes(part, lambda: content)
        if copy.size < PAGE:
            small.add(copy.buffer, source)
        elif not source.is_contiguous() or source.is_conj() or source.is_neg():
            copy.buffer.copy_(source.detach())
        else:
            to, of = _array(copy.buffer), _array(source.detach())
            pieces += [(to[start : start + PIECE], of[start : start + PIECE]) for start in range(0, len(of), PIECE)]
        return copy.part

    def _copy_beside(self, buffer: Tensor, tensor: Tensor, beside: bool) -> Any:
        """Enqueue the copy, on the separate stream if it may run `beside` the next step."""
        device = tensor.device
        module = torch.get_device_module(device)
        current = module.current_stream(device)
        stream = current
        if beside:
            if device not in self._streams:
                self._streams[device] = module.Stream(device)
            stream = self._streams[device]
            stream.wait_stream(current)
        with module.stream(stream):
            buffer.copy_(tensor, non_blocking=True)
            copied = module.Event()
            copied.record(stream)
        if beside:
            tensor.record_stream(stream)
            self._copied[device] = copied
        return copied

    def _allocate_buffers(self, wanted: Mapping[Key, Tensor]) -> None:
        """Allocate buffers for those tensors that have none."""
        with self._reserving:
            in_host_memory = {}
            for key, tensor in wanted.items():
                copy = self._copies.get(key)
                if copy is not None and copy.shape == tensor.shape and copy.dtype == tensor.dtype:
                    continue
                if _has_streams(tensor.device.type):
                    buffer = torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                    self._copies[key] = Copy(buffer)
                else:
                    in_host_memory[key] = tensor
            if in_host_memory:
                buffers = allocate_like(list(in_host_memory.values()))
                self._copies.update(zip(in_host_memory, map(Copy, buffers), strict=True))


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
        self.data = _bytes(buffer)
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


def allocate_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Allocate contiguous tensors with the given shapes and dtypes, side by side in touched pages.

    Huge pages are used if the system has them: copies then spend no time on page-table lookups. Tensors of a page or
    more are aligned to a page, as direct disk writes require.
    """
    sizes = [_aligned_size(tensor.nbytes) for tensor in tensors]
    memory = _allocate(sum(sizes))
    memory[::PAGE] = 0
    largest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    starts = dict(zip(largest_first, accumulate((sizes[index] for index in largest_first), initial=0), strict=False))
    typed: dict[torch.dtype, Tensor] = {}
    strides: dict[torch.Size, tuple[int, ...]] = {}
    allocated = []
    for index, tensor in enumerate(tensors):
        shape, dtype = tensor.shape, tensor.dtype
        if dtype not in typed:
            typed[dtype] = memory.view(dtype)
        if shape not in strides:
            strides[shape] = tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()
        allocated.append(torch.as_strided(typed[dtype], shape, strides[shape], starts[index] // dtype.itemsize))
    return allocated


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


def _array(tensor: Tensor) -> Bytes:
    """View a contiguous tensor as a numpy array of bytes."""
    array: Bytes = tensor.view(-1).view(torch.uint8).numpy()
    return array


def _bytes(tensor: Tensor) -> memoryview:
    """View a contiguous tensor as bytes."""
    return _array(tensor).data if tensor.numel() else memoryview(b"")
