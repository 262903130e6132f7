"""Least squares with the parameters, gradients and velocities sharded over the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from hexloop.adapters.trainable.least_squares.trainable import (
    MomentumOptimizer,
    Piece,
    Row,
    Scalar,
    ValueSlice,
    detached,
    export_slices,
    load_slices,
    piece_of,
    squared_error,
)
from hexloop.ports.collectives import Collectives, Reduction
from hexloop.ports.state import Part


class LinearShard:
    """One rank's slices of "weight" and "bias": of a value of n elements, rank r of w has those from n r // w on.

    Implements the Exportable port. Each part may be passed to any rank, or to several, as long as the ranks together
    have all of them.
    """

    def __init__(self, features: int, collectives: Collectives) -> None:
        self.features = features
        self.collectives = collectives
        self.exports_shared = collectives.rank == 0
        self._owned = [self._range(features), self._range(1)]
        self.parameters = [0.0] * sum(map(len, self._owned))
        self.gradients = [0.0] * len(self.parameters)

    def _range(self, size: int) -> range:
        rank, world_size = self.collectives.rank, self.collectives.world_size
        return range(size * rank // world_size, size * (rank + 1) // world_size)

    def slices(self, values: list[float], suffix: str = "") -> tuple[ValueSlice, ...]:
        """Return this rank's slice of the weights, and the bias or nothing."""
        weight, bias = self._owned
        return (
            ValueSlice(f"weight{suffix}", self.features, values, 0, len(weight), weight.start),
            ValueSlice(f"bias{suffix}", 1, values, len(weight), len(bias), bias.start),
        )

    def pieces(self, parts: Iterable[Part]) -> list[Piece]:
        """Return the parts that were passed to any rank. Collective."""
        gathered = self.collectives.gather([piece_of(part) for part in parts])
        return [piece for pieces in cast("list[list[Piece]]", gathered) for piece in pieces]

    def whole_parameters(self) -> list[float]:
        """Return the weights and the bias of all ranks. Collective."""
        cut = len(self._owned[0])
        gathered = self.collectives.gather([self.parameters[:cut], self.parameters[cut:]])
        weights, biases = zip(*cast("list[tuple[list[float], list[float]]]", gathered), strict=True)
        return [value for values in (*weights, *biases) for value in values]

    def own(self, whole: Sequence[float]) -> list[float]:
        """Return this rank's part of a list with one value per parameter of the model."""
        weight, bias = self._owned
        return [*whole[weight.start : weight.stop], *whole[self.features + bias.start : self.features + bias.stop]]

    def export(self) -> Iterator[Part]:
        """Export this rank's slices."""
        return export_slices(self.slices(self.parameters))

    def load(self, parts: Iterable[Part]) -> None:
        """Load this rank's slices of exported weights; see `Exportable.load`."""
        load_slices(self.slices(self.parameters), self.pieces(parts))


class ShardedLeastSquares:
    """Implements the Trainable port on every rank of a world, and the Exportable port by slices.

    Each rank computes on its own batches. Forward gathers the parameters; backward sums the gradients of the ranks and
    keeps this rank's slice. Both are collective. A loss is the rank's share of the mean over the rows of all ranks.
    """

    def __init__(self, model: LinearShard, optimizer: MomentumOptimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self._collectives = model.collectives
        self._squared_error = squared_error(model.features)

    def count_items(self, window: Sequence[Sequence[Row]]) -> int:
        """Return the number of rows in the windows of all ranks."""
        return int(self._sum([sum(map(len, window))])[0])

    def loss(self, batch: Sequence[Row], window_items: Any) -> Scalar:
        """Return the batch's squared errors divided by `window_items`."""
        value, derivatives = self._squared_error(self.model.whole_parameters(), batch, window_items)
        return Scalar(value, derivatives, self._accumulate)

    def clip(self, max_norm: float) -> float:
        """Scale by the norm over all ranks, as one process would."""
        gradients = self.model.gradients
        norm = math.sqrt(self._sum([sum(gradient * gradient for gradient in gradients)])[0])
        if 0 < max_norm < norm:
            gradients[:] = [gradient * (max_norm / norm) for gradient in gradients]
        return norm

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """Set the rate of the only parameter group."""
        (self.optimizer.rates[0],) = rates

    def clear_gradients(self) -> None:
        """Set the gradients to zero."""
        self.model.gradients[:] = [0.0] * len(self.model.gradients)

    def detached(self, loss: Scalar) -> Scalar:
        """Return the loss's value alone."""
        return detached(loss)

    def export(self) -> Iterator[Part]:
        """Export this rank's slices of what `LeastSquares` exports."""
        return export_slices((*self.model.slices(self.model.parameters), *self.optimizer.slices))

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from the exports of any number of ranks; see `LinearShard`."""
        slices = (*self.model.slices(self.model.parameters), *self.optimizer.slices)
        load_slices(slices, self.model.pieces(parts))

    def _accumulate(self, derivatives: Sequence[float]) -> None:
        gradients = self.model.gradients
        summed = self.model.own(self._sum(derivatives))
        gradients[:] = [gradient + more for gradient, more in zip(gradients, summed, strict=True)]

    def _sum(self, values: Sequence[float]) -> tuple[float, ...]:
        return self._collectives.start_reduction(values, Reduction.SUM).result()


def sharded_least_squares(
    collectives: Collectives, features: int = 1, learning_rate: float = 0.1, momentum: float = 0.9
) -> ShardedLeastSquares:
    """Return this rank's shard of a model with this number of features and all weights zero, and its optimizer."""
    model = LinearShard(features, collectives)
    return ShardedLeastSquares(model, MomentumOptimizer(model, learning_rate, momentum))
