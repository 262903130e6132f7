"""A device of XLA, such as a TPU, through torch_xla."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from hexloop.adapters.device.torch import RandomStates, Saved, TorchDevice, encode_state
from hexloop.domain.json_documents import json_part
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part

SEED_BYTES = 8


class XlaDevice(TorchDevice):
    """This process's device of XLA.

    Operations are recorded, and compiled and run when the device is flushed. What is recorded between two flushes is
    one program, which is compiled once for all steps with equal shapes.
    """

    def __init__(self) -> None:
        self._xla: Any = import_module("torch_xla")
        self._model: Any = import_module("torch_xla.core.xla_model")
        self._device = self._xla.device()
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
