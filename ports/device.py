"""The device on which a run computes: its memory and its random generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from attrs import frozen

from hexloop.ports.state import Part


@frozen
class DeviceCapabilities:
    """What a device can do.

    Args:
        kind: the kind of the device, such as "cuda".
        precisions: the names of the number formats that it supports.
        pins_memory: copies from pinned memory do not wait.
        exchanges: processes on such devices can exchange tensors.
        records: it runs nothing before it is flushed, or a value is read.
        captures: it can `capture` operations.
        emulates: the formats whose results it computes in another format, which is slower.
    """

    kind: str
    precisions: frozenset[str]
    pins_memory: bool = False
    exchanges: bool = True
    records: bool = False
    captures: bool = False
    emulates: frozenset[str] = frozenset()


@frozen
class Memory:
    """Bytes on the device: in use, the peak since the last reset, and the total (0: unknown).

    Args:
        used: bytes in use.
        peak: the most bytes in use since the last reset.
        total: bytes of the device; 0 if unknown.
    """

    used: int
    peak: int
    total: int


@frozen
class DeviceUse:
    """What a device does now, with all processes that use it; None for what is not measured.

    Args:
        use: the share of the time in which it computed, in percent.
        memory: bytes in use.
        power: in watts.
        temperature: in degrees Celsius.
    """

    use: float | None = None
    memory: float | None = None
    power: float | None = None
    temperature: float | None = None


class Device(Protocol):
    """One device, named as the framework names it ("cpu", "cuda:0", "mps")."""

    @property
    def name(self) -> str:
        """The framework's name."""

    @property
    def capabilities(self) -> DeviceCapabilities:
        """What the device can do."""

    def flush(self) -> None:
        """Start the operations that were recorded, on a device that does not run each at once; does not wait."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record the operations that `run` starts, without executing them; return what executes them.

        They then read and write the same memory as if `run` had executed them. Called only on a device that `captures`.

        Args:
            run: starts the operations.
        """

    def memory(self) -> Memory:
        """Return the memory in use, without a device synchronization."""

    def use(self) -> DeviceUse:
        """Return what the device does now, without a device synchronization. Any thread may call it."""

    def release_memory(self) -> None:
        """Release the memory that the framework's allocator caches."""

    def forget_peak_memory(self) -> None:
        """Reset the peak that `memory` returns."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether `error` means that this device ran out of memory.

        Args:
            error: what a computation raised.
        """

    def seed(self, seed: int) -> None:
        """Seed every random generator of the process (Python, numpy, the framework on this device).

        Args:
            seed: the same number for all generators.
        """

    def export(self) -> Iterator[Part]:
        """Yield the state of every random generator of the process."""

    def load(self, parts: Iterable[Part]) -> None:
        """Restore the random generators from an export."""
