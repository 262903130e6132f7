"""Apple's GPU through Metal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hexloop.adapters.device.torch.base import TorchDevice, decode_state, encode_state
from hexloop.domain.json_documents import json_part
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part


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

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether Metal raised `error` because memory ran out."""
        return super().is_out_of_memory(error) or "MPS backend out of memory" in str(error)

    def _own_generators(self) -> Iterator[Part]:
        yield json_part("device", encode_state(torch.mps.get_rng_state()))

    def _decode_own_generators(self, found: dict[str, Any]) -> list[tuple[int, torch.Tensor]]:
        states = [(0, decode_state(found["device"]))] if "device" in found else []
        for _, state in states:
            torch.Generator("mps").set_state(state)
        return states

    def _load_own_generators(self, states: list[tuple[int, torch.Tensor]]) -> None:
        for _, state in states:
            torch.mps.set_rng_state(state)
