"""Copies of an accelerator's tensors in pinned memory, for which the run does not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hexloop.adapters.snapshots.torch.memory import Layout, as_bytes

OPTIMIZER = "optimizer"
"""The owner whose tensors only the optimizer's update changes."""

BLOCK = 1 << 28
"""Bytes of a block, unless a single tensor is larger. A power of two, to which torch rounds up pinned memory."""

LEFT_FREE = 1 / 16
"""The share of a device's memory that copies leave free."""

Key: TypeAlias = tuple[str, str]
"""The owner and the name of a tensor."""


class Block:
    """Pinned memory for the copies of some tensors of one device."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.layout = Layout(tensors)
        self.memory = torch.zeros(self.layout.size, dtype=torch.uint8, pin_memory=True)
        self.copies = self.layout.views(self.memory)
        self.contents = [as_bytes(copy) for copy in self.copies]


class PinnedCopies:
    """The copies of tensors on accelerators with streams.

    The tensors of an owner are first copied to other memory of their device, as part of its work in order, which takes
    as long as to read and write them there. A separate stream then copies that memory to pinned memory, which overlaps
    with the following steps, and it is freed when that is done.

    Without room on the device the tensors are copied to pinned memory directly. `wait_before_update` must then be
    called before the optimizer's update, and makes the device, not this process, wait for the copies. Tensors that
    change outside the update (batch norm statistics) are copied on the current stream.
    """

    def __init__(self) -> None:
        self._places: dict[Key, tuple[Block, int]] = {}
        self._streams: dict[torch.device, Any] = {}
        self._unfinished: dict[torch.device, Any] = {}
        self._staged: dict[tuple[torch.device, str], int] = {}
        self._reserving = threading.Lock()

    def reserve(self, wanted: Mapping[Key, Tensor]) -> None:
        """Allocate pinned memory for those tensors that have none. Another thread may call it."""
        with self._reserving:
            missing = {key: tensor for key, tensor in wanted.items() if not self._has_place(key, tensor)}
            for keys in _in_blocks(missing):
                block = Block([missing[key] for key in keys])
                self._places.update({key: (block, number) for number, key in enumerate(keys)})

    def take(self, owner: str, tensors: Mapping[str, Tensor]) -> dict[str, Callable[[], memoryview]]:
        """Enqueue copies of tensors; return by name what waits for the copy and returns its bytes."""
        self.reserve({(owner, name): tensor for name, tensor in tensors.items()})
        found: dict[str, Callable[[], memoryview]] = {}
        for device in dict.fromkeys(tensor.device for tensor in tensors.values()):
            of_device = {name: tensor for name, tensor in tensors.items() if tensor.device == device}
            copied = self._copy(device, owner, of_device)
            for name in of_device:
                block, number = self._places[owner, name]
                found[name] = _reader(copied, block.contents[number])
        return found

    def wait_before_update(self) -> None:
        """Make every device wait for the direct copies of its tensors before it does any work enqueued from now on."""
        for device, copied in self._unfinished.items():
            torch.get_device_module(device).current_stream(device).wait_event(copied)
        self._unfinished.clear()

    def _has_place(self, key: Key, tensor: Tensor) -> bool:
        if key not in self._places:
            return False
        block, number = self._places[key]
        copy = block.copies[number]
        return copy.shape == tensor.shape and copy.dtype == tensor.dtype

    def _copy(self, device: torch.device, owner: str, tensors: Mapping[str, Tensor]) -> Any:
        """Enqueue the copies of tensors of one device; return the event after the last."""
        module = torch.get_device_module(device)
        if device not in self._streams:
            self._streams[device] = module.Stream(device)
        stream, current = self._streams[device], module.current_stream(device)
        blocks: dict[Block, list[tuple[int, Tensor]]] = {}
        for name, tensor in tensors.items():
            block, number = self._places[owner, name]
            blocks.setdefault(block, []).append((number, tensor.detach()))
        staged = self._memory_on(device, owner, list(blocks))
        if staged is None:
            self._copy_directly(device, owner, tensors)
        else:
            for memory, (block, sources) in zip(staged, blocks.items(), strict=True):
                _copy_together(block.layout.views(memory), sources)
        stream.wait_stream(current)
        with module.stream(stream):
            for memory, block in zip(staged or [], blocks, strict=False):
                block.memory.copy_(memory, non_blocking=True)
                memory.record_stream(stream)
            copied = module.Event()
            copied.record(stream)
        if staged is None:
            self._unfinished[device] = copied
        return copied

    def _copy_directly(self, device: torch.device, owner: str, tensors: Mapping[str, Tensor]) -> None:
        """Enqueue a copy of each tensor to its pinned memory, on the separate stream if only the update changes it."""
        module, stream = torch.get_device_module(device), self._streams[device]
        stream.wait_stream(module.current_stream(device))
        beside = {name for name, tensor in tensors.items() if owner == OPTIMIZER or tensor.requires_grad}
        for name, tensor in tensors.items():
            block, number = self._places[owner, name]
            if name not in beside:
                block.copies[number].copy_(tensor.detach(), non_blocking=True)
        with module.stream(stream):
            for name in tensors:
                if name in beside:
                    block, number = self._places[owner, name]
                    block.copies[number].copy_(tensors[name].detach(), non_blocking=True)
                    tensors[name].record_stream(stream)

    def _memory_on(self, device: torch.device, owner: str, blocks: Sequence[Block]) -> list[Tensor] | None:
        """Allocate memory of the device for the copies; None without room, or if the device cannot say.

        What the last copies of the owner took is in torch's cache, or free.
        """
        figures = getattr(torch.get_device_module(device), "mem_get_info", None)
        if figures is None:
            return None
        free, total = figures(device)
        size = sum(block.layout.size for block in blocks)
        if free + self._staged.get((device, owner), 0) < size + LEFT_FREE * total:
            return None
        try:
            staged = [torch.empty(block.layout.size, dtype=torch.uint8, device=device) for block in blocks]
        except RuntimeError:  # out of memory all the same
            return None
        self._staged[device, owner] = size
        return staged


def _reader(copied: Any, content: memoryview) -> Callable[[], memoryview]:
    """Return a function that waits for a copy, and returns its bytes."""

    def read() -> memoryview:
        copied.synchronize()
        return content

    return read


def _copy_together(copies: Sequence[Tensor], sources: Sequence[tuple[int, Tensor]]) -> None:
    """Copy each source to the copy with its number: those that lie in memory as their copies do in one call a dtype."""
    plain: list[tuple[Tensor, Tensor]] = []
    for number, source in sources:
        if not source.is_contiguous() or source.is_conj() or source.is_neg():
            copies[number].copy_(source)
        elif source.numel():
            plain.append((copies[number], source))
    plain.sort(key=lambda pair: str(pair[0].dtype))
    with torch.no_grad():
        for _, pairs in groupby(plain, key=lambda pair: pair[0].dtype):
            to, of = zip(*pairs, strict=True)
            torch._foreach_copy_(to, of)


def _in_blocks(tensors: Mapping[Key, Tensor]) -> Iterator[list[Key]]:
    """Split tensors into blocks, each with tensors of one owner and one device, in the given order."""

    def place(key: Key) -> tuple[str, str]:
        return key[0], str(tensors[key].device)

    for _, keys in groupby(sorted(tensors, key=place), key=place):
        block: list[Key] = []
        size = 0
        for key in keys:
            if block and size + tensors[key].nbytes > BLOCK:
                yield block
                block, size = [], 0
            block.append(key)
            size += tensors[key].nbytes
        yield block
