"""The losses of all processes of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from attrs import frozen

from hexloop.ports.collectives import Collectives, Reduction
from hexloop.ports.losses import Losses
from hexloop.ports.state import Part

Loss_contra = TypeVar("Loss_contra", contravariant=True)


@frozen
class SharedLosses(Generic[Loss_contra]):
    """Answers the Losses port over processes each of which computes its share of every window's loss.

    They are added up only when somebody asks, which is at the same step everywhere.
    """

    own: Losses[Loss_contra]
    collectives: Collectives

    def add(self, loss: Loss_contra) -> None:
        """Count one share of this process in."""
        self.own.add(loss)

    def drain(self) -> float:
        """The sum over all processes; waits for the slowest. Raises CollectiveError."""
        (total,) = self.collectives.start_reduction([self.own.drain()], Reduction.SUM).result()
        return total

    def export(self) -> Iterator[Part]:
        """This process's own sum."""
        return self.own.export()

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an exported sum."""
        self.own.load(parts)
