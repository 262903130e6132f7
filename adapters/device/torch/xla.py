"""A device of XLA, such as a TPU, through torch_xla."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from hexloop.adapters.device.torch import RandomStates, Saved, TorchDevice, encode_state
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import json_part
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part

SEED_BYTES = 8

KIND = "PJRT_DEVICE"
"""The variable that names the kind of device on which XLA computes."""


@contextmanager
def refusing_missing_devices() -> Iterator[None]:
    """Convert the error of XLA's runtime, if it finds no device, to a ConfigurationError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # OSError: the library of TPUs is missing
        chosen, reason = os.environ.get(KIND, ""), str(error).strip().partition("\n")[0]
        raise ConfigurationError(
            f"The device xla cannot be used: {KIND}={chosen!r}, but XLA's runtime finds no such device ({reason}). Set "
            f"{KIND} to what this machine has, such as CPU, or train on another device with USE_TORCH_XLA=false or "
            "use_cpu=True."
        ) from error


def connect(local_rank: int, local_world_size: int) -> None:
    """Let this process have one of the machine's devices, and exchange tensors with the processes of the others.

    Has no effect once the process has used a device, or torch_xla's own launcher has done the same. Raises
    ConfigurationError if XLA finds no device of the kind that PJRT_DEVICE names.
    """
    if not import_module("torch_xla")._XLAC._xla_runtime_is_initialized():
        with refusing_missing_devices():
            import_module("torch_xla._internal.pjrt").initialize_multiprocess(local_rank, local_world_size)


def _refuse_earlier_backward(device: Any) -> None:
    """Raise ConfigurationError if torch made a backward pass in this process before XLA started.

    torch's autograd then has no queue for the device.
    """
    try:
        torch.ones((), device=device, requires_grad=True).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "device_ready_queues_" not in str(error):
            raise
        raise ConfigurationError(
            "The device xla cannot be used: this process has made a backward pass before it used XLA, and torch's "
            "autograd knows only the devices that it found then. Call torch_xla.device() at the start of the program, "
            "or train in another process."
        ) from error


class XlaDevice(TorchDevice):
    """This process's device of XLA.

    Operations are recorded, and compiled and run when the device is flushed. What is recorded between two flushes is
    one program, which is compiled once for all steps with equal shapes.

    Raises ConfigurationError if XLA finds no device of the kind that PJRT_DEVICE names, or cannot be used any more.
    """

    def __init__(self) -> None:
        self._xla: Any = import_module("torch_xla")
        self._model: Any = import_module("torch_xla.core.xla_model")
        with refusing_missing_devices():
            self._device = self._xla.device()
            import_module("torch_xla.runtime").addressable_runtime_device_count()  # starts XLA also for SPMD
        _refuse_earlier_backward(self._device)
        able = DeviceCapabilities("xla", frozenset({"fp32", "bf16"}), exchanges=False, records=True)
        super().__init__(str(self._device), able)

    def flush(self) -> None:
        """Compile what was recorded, unless it was before, and start it."""
        self._xla.sync()

    def memory(self) -> Memory:
        """Return XLA's figures; zeros where it has none, as on a CPU."""
        try:
            found = self._model.get_memory_info(self._device)
        except RuntimeError:
            return Memory(0, 0, 0)
        used = int(found["bytes_used"])
        return Memory(used, int(found.get("peak_bytes_used", used)), int(found["bytes_limit"]))

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether XLA, or PyTorch, raised `error` because memory ran out."""
        exhausted = isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
        return exhausted or super().is_out_of_memory(error)

    def seed(self, seed: int) -> None:
        """Seed Python, numpy, torch on the CPU, and this device."""
        super().seed(seed)
        self._model.set_rng_state(seed, self.name)

    def _own_generators(self) -> Iterator[Part]:
        """Yield the seed of the next program. Each flush leads to another one, in the same order in every run."""
        seed = bytearray(self._model.get_rng_state(self.name).to_bytes(SEED_BYTES, "little"))
        yield json_part("device", encode_state(torch.frombuffer(seed, dtype=torch.uint8)))

    def _saved_generators(self, saved: RandomStates) -> Iterable[Saved]:
        return [("device", self.name, saved.device, 0)] if saved.device is not None else []

    def _set_generator(self, number: int, state: Tensor) -> None:
        self._model.set_rng_state(int.from_bytes(bytes(state.tolist()), "little"), self.name)
