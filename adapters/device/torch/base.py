"""What all PyTorch devices have in common, and the CPU."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.random_states import refuse_invalid_numpy_state, refuse_invalid_python_state
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part

OUT_OF_MEMORY = ("not enough memory", "can't allocate memory")
"""Texts by which PyTorch's CPU allocator reports out of memory, by platform; the error has no class of its own."""


class TorchDevice:
    """Base of all PyTorch devices: the name, and the random generators of Python, numpy and torch."""

    def __init__(self, name: str, capabilities: DeviceCapabilities) -> None:
        self.name = name
        self.capabilities = capabilities

    def memory(self) -> Memory:
        """Return zeros: PyTorch does not measure memory on this device."""
        return Memory(0, 0, 0)

    def release_memory(self) -> None:
        """No-op: PyTorch caches nothing on this device."""

    def forget_peak_memory(self) -> None:
        """No-op: PyTorch records no peak on this device."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether PyTorch raised `error` because memory ran out."""
        return isinstance(error, torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
        )

    def seed(self, seed: int) -> None:
        """Seed Python, numpy and torch on every device."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def export(self) -> Iterator[Part]:
        """Yield the states of the generators of Python, numpy, torch on the CPU, and this device's own."""
        version, words, gauss = random.getstate()
        yield json_part("python", [version, list(words), gauss])
        state: Any = np.random.get_state(legacy=True)
        yield json_part("numpy", [state[0], state[1].tolist(), *map(int, state[2:4]), float(state[4])])
        yield json_part("torch", encode_state(torch.get_rng_state()))
        yield from self._own_generators()

    def load(self, parts: Iterable[Part]) -> None:
        """Restore every generator from an export.

        Raises ValueError, changing nothing, if a state is missing or invalid.
        """
        found = {part.name: json_value(part) for part in parts}
        missing = {"python", "numpy", "torch"} - found.keys()
        if missing:
            raise ValueError(f"The saved random states lack {', '.join(sorted(missing))}.")
        try:
            version, words, gauss = found["python"]
            kind, keys, position, has_gauss, cached = found["numpy"]
            refuse_invalid_python_state(version, words, gauss)
            refuse_invalid_numpy_state(kind, keys, position, has_gauss, cached)
            random.Random().setstate((version, tuple(words), gauss))
            numpys = (kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached)
            np.random.RandomState().set_state(numpys)
            processors = decode_state(found["torch"])
            torch.Generator().set_state(processors)
            own = self._decode_own_generators(found)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise ValueError(f"The saved random states are invalid: {error!r}.") from error
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(numpys)
        torch.set_rng_state(processors)
        self._load_own_generators(own)

    def _own_generators(self) -> Iterator[Part]:
        return iter(())

    def _decode_own_generators(self, found: dict[str, Any]) -> list[tuple[int, torch.Tensor]]:
        """Return the index and the state of each generator of this kind of device; changes nothing.

        Raises ValueError, TypeError or RuntimeError for what is not a state of such a generator.
        """
        return []

    def _load_own_generators(self, states: list[tuple[int, torch.Tensor]]) -> None:
        """No-op: the CPU has no generator of its own."""


class CpuDevice(TorchDevice):
    """The CPU."""

    def __init__(self) -> None:
        super().__init__("cpu", DeviceCapabilities("cpu", frozenset({"fp32", "bf16", "fp16"})))


def encode_state(state: torch.Tensor) -> str:
    """Encode a generator's state as text."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def decode_state(text: str) -> torch.Tensor:
    """Decode a generator's state from text."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()
