"""A device that is not there."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator

from attrs import evolve

from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.device import DeviceCapabilities, Memory
from hexloop.ports.state import Part


class SimulatedOutOfMemoryError(RuntimeError):
    """The simulated device has no room."""


class SimulatedDevice:
    """Answers the Device port without hardware.

    total: its memory in bytes, of which `allocate` takes and `free` gives back; `memory_now` may be set to any figures.
    Its random streams are those of python's `random` module and `draw`, which stands for the device's own generator.
    """

    def __init__(
        self,
        name: str = "simulated:0",
        total: int = 2**30,
        precisions: Collection[str] = ("fp32",),
        pins_memory: bool = False,
    ) -> None:
        self.name = name
        self.capabilities = DeviceCapabilities(name.partition(":")[0], frozenset(precisions), pins_memory)
        self.memory_now = Memory(0, 0, total)
        self._seed = 0
        self._drawn = 0

    def memory(self) -> Memory:
        """What is allocated."""
        return self.memory_now

    def allocate(self, size: int) -> None:
        """Take `size` bytes. Raises SimulatedOutOfMemoryError where there are not as many."""
        now = self.memory_now
        if now.used + size > now.total:
            raise SimulatedOutOfMemoryError(f"{self.name} has {now.total - now.used} bytes left, and not {size}.")
        self.memory_now = evolve(now, used=now.used + size, peak=max(now.peak, now.used + size))

    def free(self, size: int) -> None:
        """Give `size` bytes back."""
        self.memory_now = evolve(self.memory_now, used=self.memory_now.used - size)

    def release_memory(self) -> None:
        """Nothing is kept for later."""

    def forget_peak_memory(self) -> None:
        """The peak is what is allocated now."""
        self.memory_now = evolve(self.memory_now, peak=self.memory_now.used)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `allocate` raised the error, or Python had no room."""
        return isinstance(error, SimulatedOutOfMemoryError | MemoryError)

    def seed(self, seed: int) -> None:
        """Start both streams."""
        random.seed(seed)
        self._seed, self._drawn = seed, 0

    def draw(self) -> float:
        """The next number of the device's own stream, at least 0 and less than 1."""
        self._drawn += 1
        return random.Random(f"{self._seed} {self._drawn}").random()

    def export(self) -> Iterator[Part]:
        """Where both streams stand."""
        yield json_part("random", {"python": random.getstate(), "seed": self._seed, "drawn": self._drawn})

    def load(self, parts: Iterable[Part]) -> None:
        """Put both streams where they stood."""
        kept = only_value(parts, "random")
        version, numbers, gauss = kept["python"]
        random.setstate((version, tuple(numbers), gauss))
        self._seed, self._drawn = kept["seed"], kept["drawn"]
