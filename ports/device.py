"""Where the work runs, what it holds, how its randomness is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from attrs import frozen

from hexloop.ports.state import Part


@frozen
class DeviceCapabilities:
    """What a device can do. `precisions` holds the names of the formats that it computes in."""

    kind: str
    precisions: frozenset[str]
    pins_memory: bool = False


@frozen
class Memory:
    """Bytes on the device: in use now, the most ever in use since the last reset, and in all (0: not known)."""

    used: int
    peak: int
    total: int


class Device(Protocol):
    """One device. Its name is the framework's own ("cpu", "cuda:0", "mps")."""

    @property
    def name(self) -> str:
        """How the framework calls it."""
        ...

    @property
    def capabilities(self) -> DeviceCapabilities:
        """What it can do."""
        ...

    def memory(self) -> Memory:
        """How much is held there, without waiting for running work."""
        ...

    def release_memory(self) -> None:
        """Give back what the framework's allocator keeps for later."""
        ...

    def forget_peak_memory(self) -> None:
        """From now on `memory` tells the most that was in use since here."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` says that this device had no room."""
        ...

    def seed(self, seed: int) -> None:
        """Start every random stream of the process (python, numpy, the framework on this device) from `seed`."""
        ...

    def export(self) -> Iterator[Part]:
        """Where every random stream of the process stands."""
        ...

    def load(self, parts: Iterable[Part]) -> None:
        """Put the random streams where an export says they were."""
        ...
