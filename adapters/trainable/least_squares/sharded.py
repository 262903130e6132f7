"""Least squares on a mesh: the weight is sharded in rows and computed in columns, on as many ranks as one likes.

The ranks along the mesh's dimension "shard" hold some of the weight's rows each, and gather them in the forward pass.
Those along "tensor" hold some of its columns each, and add up their parts of every prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from hexloop.adapters.trainable.least_squares import (
    LeastSquares,
    LinearModel,
    MomentumOptimizer,
    Piece,
    Row,
    Scalar,
    ValueSlice,
    as_doubles,
    load_slices,
    piece_of,
)
from hexloop.domain.ranks import assign_to_ranks
from hexloop.ports.collectives import Collectives, Reduction
from hexloop.ports.mesh import DATA, Mesh, Sharded, Spread, flat_mesh
from hexloop.ports.state import Part

SHARDS, COLUMNS = "shard", "tensor"
"""The dimensions of the mesh along which the weight is divided."""


class LinearShard(LinearModel):
    """One rank's box of "weight", and the bias on the first ranks along "shard".

    Each part may be loaded on any rank, or on several, as long as the ranks together have all of them.

    Args:
        features: the number of features of a row.
        collectives: the processes that share the model.
        mesh: where this process is among them.
    """

    def __init__(self, features: int | tuple[int, int], collectives: Collectives, mesh: Mesh) -> None:
        super().__init__(features)
        if len(self.shape) == 1 and mesh.along(COLUMNS).size > 1:
            raise ValueError(
                f"A weight without columns cannot be divided along {COLUMNS}; pass features=(rows, columns)."
            )
        self.mesh, self.collectives = mesh, collectives
        rows = Sharded(SHARDS)
        self._spreads = {
            "weight": Spread(self.shape, mesh, (rows, Sharded(COLUMNS, len(self.shape) - 1))),
            "bias": Spread((1,), mesh, (rows,)),
        }
        self.boxes = {name: spread.own for name, spread in self._spreads.items()}
        self.parameters = [0.0] * sum(box.size for box in self.boxes.values())
        self.gradients = [0.0] * len(self.parameters)

    def whole_parameters(self) -> list[float]:
        """Return the weights and the bias of all ranks. Collective."""
        return [value for each in self.slices(self.parameters) for value in self._gathered(each)]

    def own(self, whole: Sequence[float]) -> list[float]:
        """Return this rank's part of a list with one value per parameter of the model.

        Args:
            whole: one value per parameter of the model.
        """
        weight, bias = self.slices(self.parameters)
        own = [value for first, length in weight.runs for value in whole[first : first + length]]
        return own + [whole[self.features + first] for first, _ in bias.runs]

    def slices(self, values: list[float], suffix: str = "") -> tuple[ValueSlice, ...]:
        """Return this rank's slices of the weight and of the bias, whose elements follow each other in `values`."""
        found, first = list[ValueSlice](), 0
        for name, spread in self._spreads.items():
            runs = tuple(self.boxes[name].runs(spread.shape))
            found.append(ValueSlice(name + suffix, spread.shape, values, first, runs))
            first += self.boxes[name].size
        return tuple(found)

    def export_slices(self, slices: Iterable[ValueSlice]) -> Iterator[Part]:
        """Yield each value whole on the rank that it is assigned to, and an empty part on the others. Collective."""
        slices = list(slices)
        owners = assign_to_ranks([each.size for each in slices], self.mesh.size)
        for each, owner in zip(slices, owners, strict=True):
            whole = as_doubles(self._gathered(each) if owner == self.mesh.rank else self._sent(each))
            yield Part(each.name, "F64", each.shape, 0, len(whole) // 8, whole.toreadonly)

    def load_slices(self, slices: Iterable[ValueSlice], parts: Iterable[Part]) -> None:
        """Fill slices from the parts that were passed to any rank. Collective."""
        gathered = self.collectives.gather([piece_of(part) for part in parts])
        load_slices(slices, [piece for pieces in cast("list[list[Piece]]", gathered) for piece in pieces])

    def _gathered(self, each: ValueSlice) -> list[float]:
        """Return all elements of a value. Collective."""
        spread = self._spreads.get(each.name.partition(".")[0])
        own = each.values[each.first : each.first + sum(length for _, length in each.runs)]
        by_rank = cast("list[list[float]]", self.collectives.gather(own))
        if spread is None:
            return by_rank[0]
        whole = [0.0] * each.size
        for rank, box in spread.holders().items():
            rest = iter(by_rank[rank])
            for offset, length in box.runs(spread.shape):
                whole[offset : offset + length] = [next(rest) for _ in range(length)]
        return whole

    def _sent(self, each: ValueSlice) -> list[float]:
        self._gathered(each)
        return []


class ShardedLeastSquares(LeastSquares):
    """Least squares with the parameters, gradients and velocities distributed over a mesh.

    Ranks with different places in the data compute on batches of their own, the others together on one. All passes are
    collective. A loss is the share of the mean over the rows of all ranks that those with this rank's batch have.
    """

    model: LinearShard

    def __init__(self, model: LinearShard, optimizer: MomentumOptimizer) -> None:
        super().__init__(model, optimizer)
        ranks, among = model.mesh.ranks, model.collectives.among
        self._data, self._rows, self._columns = among(ranks(*DATA)), among(ranks(SHARDS)), among(ranks(COLUMNS))
        self._parts = among(ranks(SHARDS, COLUMNS))

    def count_items(self, window: Sequence[Sequence[Row]]) -> int:
        """Return the number of rows in the windows of all ranks."""
        return int(_total(self._data, [super().count_items(window)])[0])

    def loss(self, batch: Sequence[Row], window_items: Any) -> Scalar:
        """Return the batch's squared errors divided by `window_items`.

        Raises:
            ValueError: for a wrong row length.
        """
        own, bias = self._gathered_rows()
        used = [index for row in range(self._row_count) for index in self._indices(row)]
        parts = []
        for features, _ in batch:
            if len(features) != self.model.features:
                raise ValueError(f"A row has {len(features)} features, and the model {self.model.features}.")
            parts.append(sum(weight * features[index] for weight, index in zip(own, used, strict=True)))
        predicted = _total(self._columns, parts)
        errors = [each + bias - target for each, (_, target) in zip(predicted, batch, strict=True)]
        slopes = [
            2 * sum(error * features[index] for error, (features, _) in zip(errors, batch, strict=True)) / window_items
            for index in used
        ]
        derivatives = [*slopes, 2 * sum(errors) / window_items]
        return Scalar(sum(error * error for error in errors) / window_items, derivatives, self._accumulate)

    def clip(self, max_norm: float) -> float:
        """Scale by the norm over all ranks, as one process would."""
        gradients, weights = self.model.gradients, self.model.boxes["weight"].size
        counted = gradients if self.model.mesh.along(COLUMNS).rank == 0 else gradients[:weights]  # the bias once
        norm = math.sqrt(_total(self._parts, [sum(gradient * gradient for gradient in counted)])[0])
        if 0 < max_norm < norm:
            gradients[:] = [gradient * (max_norm / norm) for gradient in gradients]
        return norm

    @property
    def _row_count(self) -> int:
        return self.model.shape[0] if len(self.model.shape) > 1 else 1

    def _indices(self, row: int) -> range:
        """Return the features of a row of the weight that this rank computes."""
        columns = self.model.shape[-1]
        own = self.model.boxes["weight"].slices[-1] if len(self.model.shape) > 1 else slice(0, columns)
        return range(row * columns + own.start, row * columns + own.stop)

    def _gathered_rows(self) -> tuple[list[float], float]:
        """Return the weights of all rows in this rank's columns, and the bias."""
        cut = self.model.boxes["weight"].size
        gathered = self._rows.gather([self.model.parameters[:cut], self.model.parameters[cut:]])
        weights, biases = zip(*cast("list[tuple[list[float], list[float]]]", gathered), strict=True)
        (bias,) = (value for each in biases for value in each)
        return [value for each in weights for value in each], bias

    def _add_to_gradients(self, derivatives: Sequence[float]) -> None:
        """Sum the derivatives over the batches of all ranks, and add those of this rank's box to its gradients."""
        summed = _total(self._data, derivatives)
        width = (len(summed) - 1) // self.model.shape[0]
        rows, bias = self.model.boxes["weight"].slices[0], self.model.boxes["bias"].slices[0]
        super()._add_to_gradients([*summed[rows.start * width : rows.stop * width], *summed[-1:][bias]])


def _total(collectives: Collectives, values: Sequence[float]) -> tuple[float, ...]:
    return collectives.start_reduction(values, Reduction.SUM).result()


def sharded_least_squares(
    collectives: Collectives,
    features: int | tuple[int, int] = 1,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    mesh: Mesh | None = None,
) -> ShardedLeastSquares:
    """Return this rank's part of a model with all weights zero, and its optimizer.

    Args:
        collectives: the processes that share the model.
        features: the number of features, or the rows and columns of the weight.
        learning_rate: the initial rate.
        momentum: the share of the velocity that is kept at each step.
        mesh: by default all ranks have some of the rows.
    """
    mesh = flat_mesh(collectives.rank, collectives.world_size, SHARDS) if mesh is None else mesh
    model = LinearShard(features, collectives, mesh)
    return ShardedLeastSquares(model, MomentumOptimizer(model, learning_rate, momentum))
