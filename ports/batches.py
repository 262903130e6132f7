"""The data: the batches that are trained on, from any position, and an evaluation on held-out ones.

A position counts samples, not batches or steps, so that a run can resume with another batch size or number of
processes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Protocol, TypeVar

from hexloop.ports.state import Part

Batch = TypeVar("Batch")

IGNORED_LABEL = -100
"""The label of what does not count in a loss, such as padding. It is the one that torch's cross entropy ignores."""


class Padding(dict[str, object]):
    """A batch without samples. It is computed, so that all processes take the same steps, but not counted.

    A process receives one if the last batch of an epoch has fewer samples than there are processes.
    """


class Batches(Protocol[Batch]):
    """The training data of one process."""

    def batches_per_epoch(self) -> int | None:
        """Return the number of batches in an epoch, or None if it is unknown before its end."""

    def samples_per_epoch(self) -> int | None:
        """Return the number of samples in an epoch over all processes, or None if it is unknown."""

    def epoch(self, epoch: int, position: int) -> Generator[Batch, None, None]:
        """Yield the batches of `epoch`, starting at the sample `position`. Closing the generator stops its workers.

        Args:
            epoch: the number of the epoch, from 0.
            position: the sample to start at, over all processes.
        """

    def rows(self, batch: Batch) -> int:
        """Return the number of samples of the batch over all processes.

        Args:
            batch: a batch of this process.
        """

    def export(self) -> Iterator[Part]:
        """Export the state of the data that a position does not determine."""

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported state."""


class Evaluator(Protocol[Batch]):
    """One evaluation on held-out data, a batch at a time, so that the loop can yield events and stop in between.

    An interrupted evaluation is discarded and starts over.
    """

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the held-out batches, each sample once, in order."""

    def begin(self) -> None:
        """Switch the model to evaluation mode and drop earlier predictions."""

    def step(self, batch: Batch) -> int:
        """Predict one batch, keep what the metrics need, and return the number of samples.

        Args:
            batch: a batch of this process.
        """

    def metrics(self) -> dict[str, float]:
        """Return the metrics of everything predicted since `begin`, under their full names."""

    def end(self) -> None:
        """Clean up, and restore the model's mode if this adapter changed it. Called however the evaluation ended."""
