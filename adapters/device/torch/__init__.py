"""The devices that PyTorch drives: the CPU, accelerators with its usual module, CUDA and ROCm, Metal."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import Factory, frozen
from torch import Tensor

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.random_states import numpy_problems, python_problems
from hexloop.domain.schemas import shown, structured
from hexloop.domain.wording import listed
from hexloop.ports.device import DeviceCapabilities, DeviceUse, Memory
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


INVALID = "the saved random states are invalid"


@frozen
class RandomStates:
    """The saved states of the generators of Python, numpy and torch on the CPU; of this device, and of all of its kind.

    Those of Python and numpy are the items that these return; the others are encoded as text.
    """

    python: tuple[Any, list[Any], Any]
    numpy: tuple[Any, list[Any], Any, Any, Any]
    torch: str
    device: str | None = None
    devices: list[str] = Factory(list)


Saved: TypeAlias = "tuple[str, str, str, int]"
"""A saved generator: its field, torch's name of the device, the encoded state, and the number of the device."""


class TorchDevice:
    """Base of all PyTorch devices: the name, and the random generators of Python, numpy and torch."""

    def __init__(self, name: str, capabilities: DeviceCapabilities) -> None:
        self.name = name
        self.capabilities = capabilities

    def flush(self) -> None:
        """No-op: operations are started at once."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Raise ConfigurationError: PyTorch cannot record operations on this device."""
        raise ConfigurationError(
            f"The device {self.name} cannot record operations; leave capture_step out, or set torch_compile=True, with "
            "which gradient clipping and the update are compiled instead."
        )

    def memory(self) -> Memory:
        """Return zeros: PyTorch does not measure memory on this device."""
        return Memory(0, 0, 0)

    def use(self) -> DeviceUse:
        """Return nothing: PyTorch does not measure the use of this device."""
        return DeviceUse()

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

        Raises ValueError, with every problem and changing nothing, if a state is missing or invalid.
        """
        saved = _checked({part.name: json_value(part) for part in parts})
        own = list(self._saved_generators(saved))
        tensors, problems = [], []
        for name, device, text, _ in [("torch", "cpu", saved.torch, 0), *own]:
            try:
                tensors.append(decode_state(text))
                _try_state(device, tensors[-1])
            except (ValueError, TypeError, RuntimeError) as error:
                problems.append(f"{name}: {shown(str(error))}")
        if problems:
            raise ValueError(f"{INVALID}: {listed(problems)}")
        (version, words, gauss), (kind, keys, *rest) = saved.python, saved.numpy
        random.setstate((version, tuple(words), gauss))
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
        torch.set_rng_state(tensors[0])
        for (*_, number), state in zip(own, tensors[1:], strict=True):
            self._set_generator(number, state)

    def _own_generators(self) -> Iterator[Part]:
        return iter(())

    def _saved_generators(self, saved: RandomStates) -> Iterable[Saved]:
        """Return the saved generators of this kind of device, in the order in which they are set."""
        return ()

    def _set_generator(self, number: int, state: Tensor) -> None:
        """No-op: the CPU has no generator of its own."""


class CpuDevice(TorchDevice):
    """The CPU."""

    def __init__(self) -> None:
        precisions = frozenset({"fp32", "bf16", "fp16"})
        super().__init__("cpu", DeviceCapabilities("cpu", precisions, emulates=frozenset({"fp8"})))


READINGS = {"use": "utilization", "memory": "device_memory_used", "power": "power_draw", "temperature": "temperature"}
"""The functions of torch's module that measure what `DeviceUse` has."""

FORMATS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""The names of the formats in which torch computes with mixed precision."""


class AcceleratorDevice(TorchDevice):
    """One device of a kind that torch drives through a module with its usual functions, such as `torch.cuda`.

    What the module lacks is left out: figures of memory are then 0, and the device has no random generator of its own.

    kind: torch's name. capabilities: by default fp32, and what the module says of bf16 and fp16. module: with torch's
    functions for the kind, by default torch's own. name: under which torch has the device, by default kind and index.
    """

    def __init__(
        self,
        kind: str,
        index: int = 0,
        capabilities: DeviceCapabilities | None = None,
        module: Any = None,
        name: str | None = None,
    ) -> None:
        self._index, self._module = index, torch.get_device_module(kind) if module is None else module
        self._measured = dict(READINGS)
        if capabilities is None:
            capabilities = DeviceCapabilities(kind, _precisions(self._module), pins_memory=True)
        super().__init__(name or f"{kind}:{index}", capabilities)

    def seed(self, seed: int) -> None:
        """Seed Python, numpy and torch on every device, also one whose kind torch does not seed itself."""
        super().seed(seed)
        self._call("manual_seed_all", seed)

    def memory(self) -> Memory:
        """Return the figures of PyTorch's allocator."""
        used, peak = self._call("memory_allocated", self._index), self._call("max_memory_allocated", self._index)
        return Memory(used or 0, peak or used or 0, total_memory(self._module, self._index))

    def use(self) -> DeviceUse:
        """Return what the driver's library for monitoring says: NVML, by nvidia-ml-py, or that of AMD.

        A reading that fails, as all do without that library, is not tried again.
        """
        found: dict[str, float] = {}
        for name, function in list(self._measured.items()):
            try:
                value = self._call(function, self._index)
                found[name] = float(value) * (self._watts if name == "power" else 1.0)
            except Exception:  # each library has its own errors; what is not measured is left out
                del self._measured[name]
        return DeviceUse(**found)

    _watts = 1.0
    """Watts in a unit of the module's `power_draw`."""

    def release_memory(self) -> None:
        """Empty the allocator's cache."""
        self._call("empty_cache")

    def forget_peak_memory(self) -> None:
        """Reset the allocator's peak."""
        self._call("reset_peak_memory_stats", self._index)

    def _own_generators(self) -> Iterator[Part]:
        """Yield the state of this device's generator, and of those of all visible devices, in order."""
        own, every = self._call("get_rng_state", self._index), self._call("get_rng_state_all")
        if own is not None:
            yield json_part("device", encode_state(own))
            yield json_part("devices", [encode_state(state) for state in every or ()])

    def _saved_generators(self, saved: RandomStates) -> Iterator[Saved]:
        """Yield as many devices' states as are visible; this one gets its own state, whatever its index was."""
        if self._function("set_rng_state") is None:
            return
        for index, text in enumerate(saved.devices[: self._module.device_count()]):
            yield f"devices[{index}]", self._named(index), text, index
        if saved.device is not None:
            yield "device", self.name, saved.device, self._index

    def _set_generator(self, number: int, state: Tensor) -> None:
        self._call("set_rng_state", state, number)

    def _named(self, index: int) -> str:
        """Return the name of another device of this kind."""
        kind, numbered, _ = self.name.partition(":")
        return f"{kind}:{index}" if numbered else kind

    def _function(self, name: str) -> Any:
        """Return a function of torch's module, or of its part about random numbers; None if it has none."""
        return getattr(self._module, name, None) or getattr(getattr(self._module, "random", None), name, None)

    def _call(self, name: str, *given: Any) -> Any:
        """Return the result of a function of torch's module; None if it has none."""
        function = self._function(name)
        return None if function is None else function(*given)


def _precisions(module: Any) -> frozenset[str]:
    """Return the formats that torch's module for a kind of device supports."""
    if (supported := getattr(module, "get_amp_supported_dtype", None)) is not None:
        return frozenset({"fp32", *(FORMATS[each] for each in supported() if each in FORMATS)})
    has_bf16 = getattr(module, "is_bf16_supported", None)
    return frozenset({"fp32", "fp16", *(["bf16"] if has_bf16 is not None and has_bf16() else [])})


def total_memory(module: Any, index: int) -> int:
    """Return the bytes of memory of a device, by torch's module for its kind; 0 if that does not know."""
    properties = getattr(module, "get_device_properties", None)
    return int(getattr(properties(index), "total_memory", 0)) if properties is not None else 0


LEAST_FOR_FP8 = {"cuda": (8, 9), "rocm": (9, 4)}
"""The compute capability from which GPUs multiply numbers of 8 bits: Ada and Hopper, and AMD's MI300."""


class CudaDevice(AcceleratorDevice):
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
        if torch.cuda.get_device_capability(index) >= LEAST_FOR_FP8[kind]:
            precisions.add("fp8")
        able = DeviceCapabilities(kind, frozenset(precisions), pins_memory=True, captures=True)
        super().__init__("cuda", index, able)
        self._watts = 1.0 if torch.version.hip else 0.001
        self._captured: Any = None

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record a CUDA graph. All graphs of this device take temporary memory from one pool, and run one by one."""
        if self._captured is None:
            self._captured = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate pinned memory and wait for events meanwhile, as loaders and saves do.
        with torch.cuda.graph(graph, pool=self._captured, capture_error_mode="thread_local"):
            run()
        return graph.replay


class MpsDevice(TorchDevice):
    """Apple's GPU through Metal."""

    def __init__(self) -> None:
        super().__init__("mps", DeviceCapabilities("mps", frozenset({"fp32", "fp16", "bf16"}), exchanges=False))

    def memory(self) -> Memory:
        """Return Metal's figures; it records no peak."""
        used = torch.mps.current_allocated_memory()
        return Memory(used, used, torch.mps.recommended_max_memory())

    def release_memory(self) -> None:
        """Empty the allocator's cache."""
        torch.mps.empty_cache()

    def _own_generators(self) -> Iterator[Part]:
        yield json_part("device", encode_state(torch.mps.get_rng_state()))

    def _saved_generators(self, saved: RandomStates) -> Iterable[Saved]:
        return [("device", "mps", saved.device, 0)] if saved.device is not None else []

    def _set_generator(self, number: int, state: Tensor) -> None:
        torch.mps.set_rng_state(state)


def _checked(found: dict[str, Any]) -> RandomStates:
    """Return the saved states; those of Python and numpy are valid. Raises ValueError with every problem."""
    try:
        saved = structured(found, RandomStates)
    except ValueError as error:
        raise ValueError(f"{INVALID}: {error}") from None
    problems = [f"python: {problem}" for problem in python_problems(*saved.python)]
    problems += [f"numpy: {problem}" for problem in numpy_problems(*saved.numpy)]
    if problems:
        raise ValueError(f"{INVALID}: {listed(problems)}")
    return saved


def _try_state(device: str, state: Tensor) -> None:
    """Set the state of a new generator. Raises what torch raises if the state is invalid.

    Does nothing for a kind of device whose generators torch cannot make.
    """
    try:
        generator = torch.Generator(device)
    except RuntimeError:
        return
    generator.set_state(state)


def encode_state(state: Tensor) -> str:
    """Encode a generator's state as text."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def decode_state(text: str) -> Tensor:
    """Decode a generator's state from text."""
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8).clone()


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
