"""What an evaluation gives: predictions, labels, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class EvalPrediction:
    """What `compute_metrics` is given: arrays of shape (samples, ...), or tuples and dictionaries of them.

    predictions: what the model returned besides its loss. label_ids: the labels. inputs, losses: where
    `include_for_metrics` asks for them. Uneven second dimensions are padded with -100. Unpacks as
    `(predictions, label_ids[, inputs][, losses])`.
    """

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses

    @property
    def elements(self) -> tuple[Any, ...]:
        """Predictions and labels, and inputs and losses where there are any."""
        further = tuple(value for value in (self.inputs, self.losses) if value is not None)
        return (self.predictions, self.label_ids, *further)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self.elements):
            raise IndexError(f"There are {len(self.elements)} parts of an evaluation's predictions, and no {index}.")
        return self.elements[index]


class EvalLoopOutput(NamedTuple):
    """What `Trainer.evaluation_loop` gives."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None
    num_samples: int | None


class PredictionOutput(NamedTuple):
    """What `Trainer.predict` gives."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None
