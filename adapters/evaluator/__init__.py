"""Adapters of the Evaluator port; here the one for models on lists of floats."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol, TypeAlias

Row: TypeAlias = tuple[tuple[float, ...], float]
"""Features and target."""


class Predictor(Protocol):
    """A model that predicts a number from a row's features."""

    training: bool

    def predict(self, features: Sequence[float]) -> float:
        """Return the prediction."""
        ...

    def train(self, mode: bool = True) -> None:
        """Switch to training mode, or to evaluation mode."""
        ...


class LeastSquaresEvaluator:
    """Implements the Evaluator port with two metrics: the mean squared error "loss" and the largest error "max_error".

    Their names start with `prefix`. Both are nan if there are no rows.

    Args:
        model: the model that predicts.
        rows: held-out rows of features and target.
        batch_size: rows in a batch.
        prefix: the beginning of the names of the metrics.
    """

    def __init__(self, model: Predictor, rows: Sequence[Row], batch_size: int = 8, prefix: str = "eval_") -> None:
        self._model = model
        self._rows = rows
        self._batch_size = batch_size
        self._prefix = prefix
        self._errors: list[float] = []
        self._was_training = False

    def batches(self) -> Generator[Sequence[Row], None, None]:
        """Yield the rows in order."""
        for start in range(0, len(self._rows), self._batch_size):
            yield self._rows[start : start + self._batch_size]

    def begin(self) -> None:
        """Switch the model to evaluation mode and discard earlier errors."""
        self._was_training = self._model.training
        self._model.train(False)
        self._errors = []

    def step(self, batch: Sequence[Row]) -> int:
        """Predict the rows of a batch."""
        self._errors += [self._model.predict(features) - target for features, target in batch]
        return len(batch)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all predictions."""
        errors = self._errors or [float("nan")]
        return {
            f"{self._prefix}loss": sum(error * error for error in errors) / len(errors),
            f"{self._prefix}max_error": max(map(abs, errors)),
        }

    def end(self) -> None:
        """Switch the model back to its previous mode."""
        self._model.train(self._was_training)
