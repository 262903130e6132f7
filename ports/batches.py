"""The data as the loop sees it: the batches of an epoch, from any position.

A position counts samples, not batches or steps, so that a run may go on with another batch size or number of processes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Protocol, TypeVar

from hexloop.ports.state import Part

Batch = TypeVar("Batch")


class Padding(dict[str, object]):
    """A batch that stands for no sample: it is computed, so that all processes take the same steps, and never counted.

    A process gets one where the last batch of an epoch has fewer samples than there are processes.
    """


class Batches(Protocol[Batch]):
    """The training data of one process."""

    def batches_per_epoch(self) -> int | None:
        """How many batches a whole epoch has; None where nobody knows before its end."""
        ...

    def samples_per_epoch(self) -> int | None:
        """How many samples a whole epoch has over all processes; None where nobody knows."""
        ...

    def epoch(self, epoch: int, position: int) -> Generator[Batch, None, None]:
        """The batches of `epoch` from the sample at `position` on. Closing the iterator stops its workers."""
        ...

    def rows(self, batch: Batch) -> int:
        """How many samples, over all processes, the batch stands for."""
        ...

    def export(self) -> Iterator[Part]:
        """The data's own state, where a position does not say it all."""
        ...

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an exported state."""
        ...
