"""Copies of tensors in host memory that is allocated once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from attrs import evolve
from torch import Tensor

from hexloop.adapters.snapshots.torch.host_copier import HostCopier
from hexloop.adapters.snapshots.torch.host_memory import room_for
from hexloop.ports.state import Part

OPTIMIZER = "optimizer"
"""The owner whose tensors nothing but the optimizer's update changes."""


class TorchSnapshots:
    """Answers the Snapshots port for parts whose source is a tensor; the bytes of others are kept as they are.

    On the CPU a tensor is copied at once. From a GPU it goes to pinned memory on a stream of its own, beside the
    computing of the next step: `wait_before_update` has to be called before the optimizer's update, and makes the
    device, not this process, wait for the copies. What more than the update changes (batch norm's averages) is copied
    in line.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._reserving = threading.Lock()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copied: dict[torch.device, torch.cuda.Event] = {}

    def reserve(self, owners: Mapping[str, Sequence[Part]]) -> Callable[[], None]:
        """Make room for tensors; see `Snapshots.reserve`."""
        wanted = [
            ((owner, part.name), part.source.detach())
            for owner, parts in owners.items()
            for part in parts
            if isinstance(part.source, Tensor)
        ]

        def make_room() -> None:
            with self._reserving:
                self._make_buffers(wanted)

        return make_room

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        """Copy the parts; see `Snapshots.take`."""
        copier = HostCopier()
        taken = [self._take(owner, part, copier) for part in parts]
        copier.finish()
        return taken

    def wait_before_update(self) -> None:
        """Let every device finish the copies of its tensors before what it is given to do from now on."""
        for device, copied in self._copied.items():
            torch.cuda.current_stream(device).wait_event(copied)
        self._copied.clear()

    def _take(self, owner: str, part: Part, copier: HostCopier) -> Part:
        if not isinstance(part.source, Tensor):
            data = bytes(part.read())
            return evolve(part, read=lambda: memoryview(data), source=None)
        tensor = part.source.detach()
        with self._reserving:
            buffer = self._buffer((owner, part.name), tensor)
        if tensor.device.type != "cuda":
            copier.copy(buffer, tensor)
            return evolve(part, read=lambda: _bytes(buffer), source=None)
        copied = self._copy_from_gpu(buffer, tensor, beside=owner == OPTIMIZER or part.source.requires_grad)

        def read() -> memoryview:
            copied.synchronize()
            return _bytes(buffer)

        return evolve(part, read=read, source=None)

    def _copy_from_gpu(self, buffer: Tensor, tensor: Tensor, beside: bool) -> torch.cuda.Event:
        """Queue the copy, on the stream of its own where it may run `beside` the next step."""
        device = tensor.device
        current = torch.cuda.current_stream(device)
        stream = current
        if beside:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream = self._streams[device]
            stream.wait_stream(current)
        with torch.cuda.stream(stream):
            buffer.copy_(tensor, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        if beside:
            tensor.record_stream(stream)
            self._copied[device] = copied
        return copied

    def _buffer(self, place: tuple[str, str], tensor: Tensor) -> Tensor:
        """Room for a tensor, each page of which the operating system has handed out."""
        self._make_buffers([(place, tensor)])
        return self._buffers[place]

    def _make_buffers(self, wanted: Iterable[tuple[tuple[str, str], Tensor]]) -> None:
        """Make room for those tensors that have none."""
        missing = [(place, tensor) for place, tensor in wanted if not self._fits(self._buffers.get(place), tensor)]
        in_host_memory = {place: tensor for place, tensor in missing if tensor.device.type != "cuda"}
        if in_host_memory:
            self._buffers.update(zip(in_host_memory, room_for(list(in_host_memory.values())), strict=True))
        for place, tensor in missing:
            if place not in in_host_memory:
                self._buffers[place] = torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    @staticmethod
    def _fits(buffer: Tensor | None, tensor: Tensor) -> bool:
        return buffer is not None and buffer.shape == tensor.shape and buffer.dtype == tensor.dtype


def _bytes(tensor: Tensor) -> memoryview:
    """A contiguous tensor's memory."""
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")
