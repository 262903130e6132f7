"""The devices that PyTorch drives: CPU, CUDA and ROCm, Metal; and what they have in common."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.random_states import refuse_invalid_numpy_state, refuse_invalid_python_state
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part

OUT_OF_MEMORY = (
    "not enough memory",
    "can't allocate memory",
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
)
"""Texts by which PyTorch's allocators report out of memory, for errors that have no class of their own.

The first two are those of the CPU, the others those that accelerate's `should_reduce_batch_size` recognizes.
"""


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
            own = [(name, decode_state(text)) for name, text in self._saved_generators(found)]
            for name, state in own:
                torch.Generator(name).set_state(state)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise ValueError(f"The saved random states are invalid: {error!r}.") from error
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(numpys)
        torch.set_rng_state(processors)
        for name, state in own:
            self._set_generator(name, state)

    def _own_generators(self) -> Iterator[Part]:
        return iter(())

    def _saved_generators(self, found: dict[str, Any]) -> Iterable[tuple[str, str]]:
        """Return the device name and the encoded state of each saved generator of this kind of device."""
        return ()

    def _set_generator(self, device: str, state: Tensor) -> None:
        """No-op: the CPU has no generator of its own."""


class CpuDevice(TorchDevice):
    """The CPU."""

    def __init__(self) -> None:
        super().__init__("cpu", DeviceCapabilities("cpu", frozenset({"fp32", "bf16", "fp16"})))


class CudaDevice(TorchDevice):
    """One NVIDIA GPU through CUDA, or one AMD GPU through ROCm, which PyTorch drives under the same names.

    Raises ConfigurationError if torch does not find the GPU.
    """

    def __init__(self, index: int = 0) -> None:
        _refuse_missing_gpu(index)
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

    def _saved_generators(self, found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield as many GPUs' states as are visible; this GPU gets this GPU's state, whatever its index was."""
        for index, text in enumerate(found.get("devices", ())[: torch.cuda.device_count()]):
            yield f"cuda:{index}", text
        if "device" in found:
            yield self.name, found["device"]

    def _set_generator(self, device: str, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, device)


class MpsDevice(TorchDevice):
    """Apple's GPU through Metal."""

    def __init__(self) -> None:
        super().__init__("mps", DeviceCapabilities("mps", frozenset({"fp32", "fp16", "bf16"})))

    def memory(self) -> Memory:
        """Return Metal's figures; it records no peak."""
        used = torch.mps.current_allocated_memory()
        return Memory(used, used, torch.mps.recommended_max_memory())

    def release_memory(self) -> None:
        """Empty the allocator's cache."""
        torch.mps.empty_cache()

    def _own_generators(self) -> Iterator[Part]:
        yield json_part("device", encode_state(torch.mps.get_rng_state()))

    def _saved_generators(self, found: dict[str, Any]) -> Iterable[tuple[str, str]]:
        return [("mps", found["device"])] if "device" in found else []

    def _set_generator(self, device: str, state: Tensor) -> None:
        torch.mps.set_rng_state(state)


def encode_state(state: Tensor) -> str:
    """Encode a generator's state as text."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def decode_state(text: str) -> Tensor:
    """Decode a generator's state from text."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()


def _refuse_missing_gpu(index: int) -> None:
    """Raise ConfigurationError if torch does not find the GPU with this index."""
    found = torch.cuda.device_count()
    if index < found:
        return
    built_for = torch.version.cuda or torch.version.hip
    if built_for is None:
        why = f"this torch ({torch.__version__}) is built without CUDA and ROCm"
        instead = "install a torch that is built for your GPU (https://pytorch.org/get-started/locally)"
    elif found == 0:
        why = "torch finds no GPU on this machine"
        instead = "check the driver, and that CUDA_VISIBLE_DEVICES does not hide the GPU"
    else:
        why = f"torch finds {found} GPU{'s' * (found > 1)} on this machine, counted from 0"
        instead = f"choose an index below {found}"
    raise ConfigurationError(
        f"CudaDevice({index}) cannot be used: {why}; {instead}, or pass device=CpuDevice() or set use_cpu=True."
    )
