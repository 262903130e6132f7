"""An NVIDIA card through CUDA, or an AMD card through ROCm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hexloop.adapters.device.torch.base import TorchDevice, state_of, text_of
from hexloop.domain.json_documents import json_part
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part


class CudaDevice(TorchDevice):
    """One NVIDIA card through CUDA, or one AMD card through ROCm, which torch drives under the same names."""

    def __init__(self, index: int = 0) -> None:
        precisions = {"fp32", "fp16"}
        if torch.cuda.is_bf16_supported():
            precisions.add("bf16")
        if torch.version.cuda is not None and torch.cuda.get_device_capability(index) >= (8, 0):
            precisions.add("tf32")
        kind = "rocm" if torch.version.hip else "cuda"
        super().__init__(f"cuda:{index}", DeviceCapabilities(kind, frozenset(precisions), pins_memory=True))
        self._index = index

    def memory(self) -> Memory:
        """As torch's allocator counts."""
        total = torch.cuda.get_device_properties(self._index).total_memory
        return Memory(torch.cuda.memory_allocated(self._index), torch.cuda.max_memory_allocated(self._index), total)

    def release_memory(self) -> None:
        """Empty the allocator's cache."""
        torch.cuda.empty_cache()

    def forget_peak_memory(self) -> None:
        """Let torch's allocator begin its peak anew."""
        torch.cuda.reset_peak_memory_stats(self._index)

    def _own_streams(self) -> Iterator[Part]:
        """This card's stream, and those of every card that the process sees, in order."""
        yield json_part("device", text_of(torch.cuda.get_rng_state(self._index)))
        yield json_part("devices", [text_of(state) for state in torch.cuda.get_rng_state_all()])

    def _load_own_streams(self, found: dict[str, Any]) -> None:
        """As many cards' streams as there are here; this card goes on with this card's, whatever its number was."""
        for index, state in enumerate(found.get("devices", ())[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state_of(state), index)
        if "device" in found:
            torch.cuda.set_rng_state(state_of(found["device"]), self._index)
