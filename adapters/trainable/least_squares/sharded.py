"""The same least squares with every parameter, gradient and velocity held by one rank only."""

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

    Answers the Exportable port. Parts may be handed to any rank, all or some, as long as the ranks have them all
    between them.
    """

    def __init__(self, features: int, collectives: Collectives) -> None:
        self.features = features
        self.collectives = collectives
        self.exports_shared = collectives.rank == 0
        self._owned = [self._slice(features), self._slice(1)]
        self.parameters = [0.0] * sum(map(len, self._owned))
        self.gradients = [0.0] * len(self.parameters)

    def _slice(self, size: int) -> range:
        rank, world_size = self.collectives.rank, self.collectives.world_size
        return range(size * rank // world_size, size * (rank + 1) // world_size)

    def stretches(self, values: list[float], suffix: str = "") -> tuple[ValueSlice, ...]:
        """This rank's slice of the weights, and the bias or nothing."""
        weight, bias = self._owned
        return (
            ValueSlice(f"weight{suffix}", self.features, values, 0, len(weight), weight.start),
            ValueSlice(f"bias{suffix}", 1, values, len(weight), len(bias), bias.start),
        )

    def pieces(self, parts: Iterable[Part]) -> list[Piece]:
        """The parts that all ranks were handed. Collective."""
        gathered = self.collectives.gather([piece_of(part) for part in parts])
        return [piece for pieces in cast("list[list[Piece]]", gathered) for piece in pieces]

    def whole_parameters(self) -> list[float]:
        """The weights and the bias of all ranks. Collective."""
        cut = len(self._owned[0])
        gathered = self.collectives.gather([self.parameters[:cut], self.parameters[cut:]])
        weights, biases = zip(*cast("list[tuple[list[float], list[float]]]", gathered), strict=True)
        return [value for values in (*weights, *biases) for value in values]

    def own(self, whole: Sequence[float]) -> list[float]:
        """What of a value for each parameter of the model belongs to this rank."""
        weight, bias = self._owned
        return [*whole[weight.start : weight.stop], *whole[self.features + bias.start : self.features + bias.stop]]

    def export(self) -> Iterator[Part]:
        """This rank's slices."""
        return export_slices(self.stretches(self.parameters))

    def load(self, parts: Iterable[Part]) -> None:
        """Take this rank's slices of exported weights; see `Exportable.load`."""
        load_slices(self.stretches(self.parameters), self.pieces(parts))


class ShardedLeastSquares:
    """Answers the Trainable port on every rank of a world, and the Exportable port by slices.

    Each rank computes on batches of its own. Forward gathers the parameters, backward adds up the ranks' gradients and
    keeps the own slice, so both are collective. A loss is the rank's share of the mean over the rows of all ranks.
    """

    def __init__(self, model: LinearShard, optimizer: MomentumOptimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self._collectives = model.collectives
        self._squares = squared_error(model.features)

    def count_items(self, window: Sequence[Sequence[Row]]) -> int:
        """The rows of the window, over all ranks."""
        return int(self._sum([sum(map(len, window))])[0])

    def loss(self, batch: Sequence[Row], window_items: Any) -> Scalar:
        """The batch's squared errors over the rows of the window."""
        value, derivatives = self._squares(self.model.whole_parameters(), batch, window_items)
        return Scalar(value, derivatives, self._accumulate)

    def clip(self, max_norm: float) -> float:
        """As one process would: by the norm over all ranks."""
        gradients = self.model.gradients
        norm = math.sqrt(self._sum([sum(gradient * gradient for gradient in gradients)])[0])
        if 0 < max_norm < norm:
            gradients[:] = [gradient * (max_norm / norm) for gradient in gradients]
        return norm

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """Put the rate of the one parameter group in force."""
        (self.optimizer.rates[0],) = rates

    def clear_gradients(self) -> None:
        """Set them to zero."""
        self.model.gradients[:] = [0.0] * len(self.model.gradients)

    def detached(self, loss: Scalar) -> Scalar:
        """The loss's value alone."""
        return detached(loss)

    def export(self) -> Iterator[Part]:
        """This rank's slices of what `LeastSquares` exports."""
        return export_slices((*self.model.stretches(self.model.parameters), *self.optimizer.stretches))

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from the exports of any number of ranks; see `LinearShard`."""
        stretches = (*self.model.stretches(self.model.parameters), *self.optimizer.stretches)
        load_slices(stretches, self.model.pieces(parts))

    def _accumulate(self, derivatives: Sequence[float]) -> None:
        gradients = self.model.gradients
        summed = self.model.own(self._sum(derivatives))
        gradients[:] = [gradient + more for gradient, more in zip(gradients, summed, strict=True)]

    def _sum(self, values: Sequence[float]) -> tuple[float, ...]:
        return self._collectives.start_reduction(values, Reduction.SUM).result()


def sharded_least_squares(
    collectives: Collectives, features: int = 1, learning_rate: float = 0.1, momentum: float = 0.9
) -> ShardedLeastSquares:
    """This rank's shard of a model of so many features, all weights zero, and its optimizer."""
    model = LinearShard(features, collectives)
    return ShardedLeastSquares(model, MomentumOptimizer(model, learning_rate, momentum))
