"""A simulated device, for tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from attrs import evolve, frozen

from hexloop.domain.json_documents import json_part
from hexloop.domain.random_states import refuse_invalid_python_state
from hexloop.domain.ranges import Count
from hexloop.domain.schemas import read_part
from hexloop.ports.device import DeviceCapabilities, DeviceUse, Memory
from hexloop.ports.state import Part


class SimulatedOutOfMemoryError(RuntimeError):
    """The simulated device is out of memory."""


@frozen
class SimulatedRandomStates:
    """The saved states of Python's generator and of the device's."""

    python: tuple[Any, list[Any], Any]
    seed: int
    drawn: Count


class SimulatedDevice:
    """Device adapter without hardware.

    Its random generators are Python's `random` module and `draw`, which stands for the generator of the device.

    Args:
        name: the name of the device.
        total: its memory in bytes, which `allocate` takes and `free` returns; `memory_now` and `use_now` can be
            set to any values.
        precisions: the number formats that it can compute in.
        pins_memory: whether batches are to be copied to page-locked memory.
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
        self.use_now = DeviceUse()
        self._seed = 0
        self._drawn = 0

    def flush(self) -> None:
        """No-op: nothing is recorded."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return `run`: it computes in Python, and does the same when it is called again."""
        return run

    def memory(self) -> Memory:
        """Return what is allocated."""
        return self.memory_now

    def use(self) -> DeviceUse:
        """Return what was set."""
        return self.use_now

    def allocate(self, size: int) -> None:
        """Allocate `size` bytes.

        Args:
            size: bytes.

        Raises:
            SimulatedOutOfMemoryError: if fewer are free.
        """
        now = self.memory_now
        if now.used + size > now.total:
            raise SimulatedOutOfMemoryError(
                f"{self.name} has {now.total - now.used} free bytes, fewer than the {size} requested."
            )
        self.memory_now = evolve(now, used=now.used + size, peak=max(now.peak, now.used + size))

    def free(self, size: int) -> None:
        """Free `size` bytes.

        Args:
            size: bytes.
        """
        self.memory_now = evolve(self.memory_now, used=self.memory_now.used - size)

    def release_memory(self) -> None:
        """No-op: nothing is cached."""

    def forget_peak_memory(self) -> None:
        """Reset the peak to what is allocated now."""
        self.memory_now = evolve(self.memory_now, peak=self.memory_now.used)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether the error came from `allocate` or is a MemoryError."""
        return isinstance(error, SimulatedOutOfMemoryError | MemoryError)

    def seed(self, seed: int) -> None:
        """Seed both generators."""
        random.seed(seed)
        self._seed, self._drawn = seed, 0

    def draw(self) -> float:
        """Return the next number of the device's generator, in [0, 1)."""
        self._drawn += 1
        return random.Random(f"{self._seed} {self._drawn}").random()

    def export(self) -> Iterator[Part]:
        """Yield the state of both generators."""
        yield json_part("random", {"python": random.getstate(), "seed": self._seed, "drawn": self._drawn})

    def load(self, parts: Iterable[Part]) -> None:
        """Restore the state of both generators.

        Raises:
            ValueError: changing nothing, if it is invalid.
        """
        kept = read_part(parts, "random", SimulatedRandomStates)
        refuse_invalid_python_state(*kept.python)
        version, words, gauss = kept.python
        random.setstate((version, tuple(words), gauss))
        self._seed, self._drawn = kept.seed, kept.drawn
