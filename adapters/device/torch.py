"""A torch device: the processor, a CUDA (or ROCm) card, or Apple's GPU."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from hexloop.domain.parts import json_part, json_value
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part


class TorchDevice:
    """What every torch device shares: its name, and the random streams of python, numpy and torch."""

    def __init__(self, name: str, capabilities: DeviceCapabilities) -> None:
        self.name = name
        self.capabilities = capabilities

    def memory(self) -> Memory:
        """Not measured by torch on this device."""
        return Memory(0, 0, 0)

    def release_memory(self) -> None:
        """Torch keeps nothing for later on this device."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether torch raised `error` for want of memory."""
        return isinstance(error, torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and "not enough memory" in str(error)
        )

    def seed(self, seed: int) -> None:
        """Seed python, numpy and torch on every device."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def export(self) -> Iterator[Part]:
        """The states of the generators of python, numpy, torch's processor, and this device's own."""
        version, words, gauss = random.getstate()
        yield json_part("python", [version, list(words), gauss])
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        yield json_part("numpy", [kind, keys.tolist(), int(position), int(has_gauss), float(cached)])
        yield json_part("torch", _text(torch.get_rng_state()))
        yield from self._own_streams()

    def load(self, parts: Iterable[Part]) -> None:
        """Put every generator where the export says it was. Raises ValueError where one is missing."""
        found = {part.name: json_value(part) for part in parts}
        missing = {"python", "numpy", "torch"} - found.keys()
        if missing:
            raise ValueError(f"The saved random streams lack {', '.join(sorted(missing))}.")
        version, words, gauss = found["python"]
        random.setstate((version, tuple(words), gauss))
        kind, keys, position, has_gauss, cached = found["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
        torch.set_rng_state(_bytes(found["torch"]))
        self._load_own_streams(found)

    def _own_streams(self) -> Iterator[Part]:
        return iter(())

    def _load_own_streams(self, found: dict[str, Any]) -> None:
        """The processor has no stream of its own."""


class CpuDevice(TorchDevice):
    """The processor."""

    def __init__(self) -> None:
        super().__init__("cpu", DeviceCapabilities("cpu", frozenset({"fp32", "bf16", "fp16"})))


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

    def _own_streams(self) -> Iterator[Part]:
        yield json_part("device", _text(torch.cuda.get_rng_state(self._index)))

    def _load_own_streams(self, found: dict[str, Any]) -> None:
        if "device" in found:
            torch.cuda.set_rng_state(_bytes(found["device"]), self._index)


class MpsDevice(TorchDevice):
    """Apple's GPU through Metal."""

    def __init__(self) -> None:
        super().__init__("mps", DeviceCapabilities("mps", frozenset({"fp32", "fp16", "bf16"})))

    def memory(self) -> Memory:
        """As Metal counts; it keeps no peak."""
        used = torch.mps.current_allocated_memory()
        return Memory(used, used, torch.mps.recommended_max_memory())

    def release_memory(self) -> None:
        """Empty the allocator's cache."""
        torch.mps.empty_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether Metal refused memory."""
        return super().is_out_of_memory(error) or "MPS backend out of memory" in str(error)

    def _own_streams(self) -> Iterator[Part]:
        yield json_part("device", _text(torch.mps.get_rng_state()))

    def _load_own_streams(self, found: dict[str, Any]) -> None:
        if "device" in found:
            torch.mps.set_rng_state(_bytes(found["device"]))


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()
