"""An evaluation on held-out data, one batch at a time, so that the loop can yield events and stop in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeVar

Batch = TypeVar("Batch")


class Evaluator(Protocol[Batch]):
    """One evaluation. An interrupted evaluation is discarded and starts over."""

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the held-out batches, each sample once, in order."""

    def begin(self) -> None:
        """Switch the model to evaluation mode and drop earlier predictions."""

    def step(self, batch: Batch) -> int:
        """Predict one batch, keep what the metrics need, and return the number of samples."""

    def metrics(self) -> dict[str, float]:
        """Return the metrics of everything predicted since `begin`, under their full names."""

    def end(self) -> None:
        """Clean up, and restore the model's mode if this adapter changed it. Called however the evaluation ended."""
