"""How well a model does on held-out data, one batch at a time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeVar

Batch = TypeVar("Batch")


class Evaluator(Protocol[Batch]):
    """One evaluation. An interrupted one is thrown away and begun again."""

    def batches(self) -> Generator[Batch, None, None]:
        """The held-out batches, each sample once, in order."""
        ...

    def begin(self) -> None:
        """Put the model in the mode for evaluation and forget earlier predictions."""
        ...

    def step(self, batch: Batch) -> int:
        """Predict one batch and keep what the metrics need; says how many samples it held."""
        ...

    def metrics(self) -> dict[str, float]:
        """The metrics of everything predicted since `begin`, under their full names."""
        ...

    def end(self) -> None:
        """Put the model back in the mode for training; called however the evaluation ended."""
        ...
