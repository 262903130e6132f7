"""Least squares by gradient descent, in the pieces of a training step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hexloop.adapters.trainable.least_squares.model import LinearModel
from hexloop.adapters.trainable.least_squares.momentum import MomentumOptimizer
from hexloop.adapters.trainable.least_squares.scalar import Scalar, detached
from hexloop.adapters.trainable.least_squares.squares import Row, squares
from hexloop.adapters.trainable.least_squares.stretches import export_stretches, load_stretches
from hexloop.ports.state import Part


class LeastSquares:
    """Answers the Trainable port, and the Exportable port for model and optimizer together.

    A batch is a list of rows, the window's loss the mean of their squared errors. Each row weighs the same however the
    window is cut into batches, so accumulation changes nothing but the rounding.
    """

    detached = staticmethod(detached)

    def __init__(self, model: LinearModel, optimizer: MomentumOptimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self._squares = squares(model.features)
        self._accumulate = self._add_to_gradients  # bound once: the loop asks at every step
        self._zeros = [0.0] * len(model.parameters)

    def count_items(self, window: Sequence[Sequence[Row]]) -> int:
        """The rows of the window."""
        return sum(map(len, window))

    def loss(self, batch: Sequence[Row], window_items: Any) -> Scalar:
        """The batch's squared errors over the rows of the window. Raises ValueError for another number of features."""
        value, derivatives = self._squares(self.model.parameters, batch, window_items)
        return Scalar(value, derivatives, self._accumulate)

    def clip(self, max_norm: float) -> float:
        """Scale the gradients down to `max_norm` (0: leave them), and give back their norm before."""
        gradients = self.model.gradients
        norm = math.hypot(*gradients)
        if 0 < max_norm < norm:
            gradients[:] = [gradient * (max_norm / norm) for gradient in gradients]
        return norm

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """Put the rate of the one parameter group in force."""
        (self.optimizer.rates[0],) = rates

    def clear_gradients(self) -> None:
        """Set them to zero."""
        self.model.gradients[:] = self._zeros

    def export(self) -> Iterator[Part]:
        """The weights, the bias, their velocities and the learning rate."""
        return export_stretches((*self.model.stretches(self.model.parameters), *self.optimizer.stretches))

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an export; see `Exportable.load`."""
        stretches = (*self.model.stretches(self.model.parameters), *self.optimizer.stretches)
        load_stretches(stretches, self.model.pieces(parts))

    def _add_to_gradients(self, derivatives: Sequence[float]) -> None:
        gradients = self.model.gradients
        for index, derivative in enumerate(derivatives):
            gradients[index] += derivative


def least_squares(features: int = 1, learning_rate: float = 0.1, momentum: float = 0.9) -> LeastSquares:
    """A model of so many features, all weights zero, and its optimizer."""
    model = LinearModel(features)
    return LeastSquares(model, MomentumOptimizer(model, learning_rate, momentum))
