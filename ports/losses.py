"""The losses of the steps since the last log, kept where they were computed until somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from hexloop.ports.state import Part

Loss_contra = TypeVar("Loss_contra", contravariant=True)


class Losses(Protocol[Loss_contra]):
    """Adds losses up without waiting for the device. `drain` is the only moment at which the host waits."""

    def add(self, loss: Loss_contra) -> None:
        """Count one micro-batch's share of its window's loss in."""
        ...

    def drain(self) -> float:
        """The sum of everything added since the last drain; starts again from zero."""
        ...

    def export(self) -> Iterator[Part]:
        """The sum that no log has shown yet."""
        ...

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an exported sum."""
        ...
