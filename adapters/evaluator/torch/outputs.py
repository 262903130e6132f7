"""The results of an evaluation: predictions, labels and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class EvalPrediction:
    """The argument of `compute_metrics`: arrays of shape (samples, ...), or tuples and dictionaries of them.

    predictions: the model's outputs except its loss. label_ids: the labels. inputs, losses: present if
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
        """Predictions and labels, and inputs and losses if there are any."""
        further = tuple(value for value in (self.inputs, self.losses) if value is not None)
        return (self.predictions, self.label_ids, *further)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self.elements):
            raise IndexError(f"Index {index} is out of range: EvalPrediction has {len(self.elements)} elements.")
        return self.elements[index]


class EvalLoopOutput(NamedTuple):
    """The result of `Trainer.evaluation_loop`."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None
    num_samples: int | None


class PredictionOutput(NamedTuple):
    """The result of `Trainer.predict`."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None
