"""NVIDIA GPUs through CUDA, and AMD GPUs through ROCm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hexloop.adapters.device.torch.base import TorchDevice, decode_state, encode_state
from hexloop.domain.json_documents import json_part
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part


class CudaDevice(TorchDevice):
    """One NVIDIA GPU through CUDA, or one AMD GPU through ROCm, which PyTorch drives under the same names."""

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
        """Return the figures of PyTorch's allocator."""
        total = torch.cuda.get_device_properties(self._index).total_memory
        return Memory(torch.cuda.memory_allocated(self._index), torch.cuda.max_memory_allocated(self._index), total)

    def release_memory(self) -> None:
        """Empty the allocator's cache."""
        torch.cuda.empty_cache()

    def forget_peak_memory(self) -> None:
        """Reset the allocator's peak."""
        torch.cuda.reset_peak_memory_stats(self._index)

    def _own_generators(self) -> Iterator[Part]:
        """Yield the state of this GPU's generator, and of those of all visible GPUs, in order."""
        yield json_part("device", encode_state(torch.cuda.get_rng_state(self._index)))
        yield json_part("devices", [encode_state(state) for state in torch.cuda.get_rng_state_all()])

    def _decode_own_generators(self, found: dict[str, Any]) -> list[tuple[int, torch.Tensor]]:
        """Return as many GPUs' states as are visible; this GPU gets this GPU's state, whatever its index was."""
        saved = list(enumerate(found.get("devices", ())[: torch.cuda.device_count()]))
        if "device" in found:
            saved.append((self._index, found["device"]))
        states = [(index, decode_state(text)) for index, text in saved]
        for index, state in states:
            torch.Generator(f"cuda:{index}").set_state(state)
        return states

    def _load_own_generators(self, states: list[tuple[int, torch.Tensor]]) -> None:
        for index, state in states:
            torch.cuda.set_rng_state(state, index)
