"""What every torch device shares."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part

NO_ROOM = ("not enough memory", "can't allocate memory")
"""What torch's allocator for the processor says, by platform, in an error that has no class of its own."""


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

    def forget_peak_memory(self) -> None:
        """Torch keeps no peak on this device."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether torch raised `error` for want of memory."""
        return isinstance(error, torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and any(words in str(error) for words in NO_ROOM)
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
        state: Any = np.random.get_state(legacy=True)
        yield json_part("numpy", [state[0], state[1].tolist(), *map(int, state[2:4]), float(state[4])])
        yield json_part("torch", text_of(torch.get_rng_state()))
        yield from self._own_streams()

    def load(self, parts: Iterable[Part]) -> None:
        """Put every generator where the export says it was.

        Raises ValueError where one is missing, or is no state of that generator; none has changed then.
        """
        found = {part.name: json_value(part) for part in parts}
        missing = {"python", "numpy", "torch"} - found.keys()
        if missing:
            raise ValueError(f"The saved random streams lack {', '.join(sorted(missing))}.")
        try:
            version, words, gauss = found["python"]
            kind, keys, position, has_gauss, cached = found["numpy"]
            random.Random().setstate((version, tuple(words), gauss))
            numpys = (kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached)
            np.random.RandomState().set_state(numpys)
            processors = state_of(found["torch"])
            torch.Generator().set_state(processors)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise ValueError(f"The saved random streams make no sense: {error!r}.") from error
        random.setstate((version, tuple(words), gauss))
        np.random.set_state(numpys)
        torch.set_rng_state(processors)
        self._load_own_streams(found)

    def _own_streams(self) -> Iterator[Part]:
        return iter(())

    def _load_own_streams(self, found: dict[str, Any]) -> None:
        """The processor has no stream of its own."""


def text_of(state: torch.Tensor) -> str:
    """A generator's state as text."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def state_of(text: str) -> torch.Tensor:
    """The generator's state that a text holds."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()


class CpuDevice(TorchDevice):
    """The processor."""

    def __init__(self) -> None:
        super().__init__("cpu", DeviceCapabilities("cpu", frozenset({"fp32", "bf16", "fp16"})))
