"""The sum of losses since the last log, kept on the device until it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from hexloop.ports.state import Part

Loss_contra = TypeVar("Loss_contra", contravariant=True)


class Losses(Protocol[Loss_contra]):
    """Sums losses without waiting for the device. The host only waits in `drain`, when a log is due."""

    def add(self, loss: Loss_contra) -> None:
        """Add one micro-batch's share of its window's loss."""

    def drain(self) -> float:
        """Return the sum of everything added since the last drain, and reset it to zero."""

    def export(self) -> Iterator[Part]:
        """Export the sum that was not drained yet."""

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported sum."""
