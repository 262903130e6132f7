"""A linear model fitted to rows of floats by least squares: real training in microseconds, with no framework.

Model, loss, momentum optimizer and training step, in one process or sharded over the ranks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from attrs import define, frozen

from hexloop.ports.collectives import Collectives, Reduction
from hexloop.ports.state import Part

__path__: list[str] = []  # lets hexloop._moved serve old paths below this one

Row: TypeAlias = tuple[tuple[float, ...], float]
"""Features and target."""

# The state of lists of floats


@frozen
class ValueSlice:
    """A slice of a named value: its elements from `offset` on are `values[first : first + length]`.

    size: the number of elements of the whole value. exported: False if another rank exports the slice.
    """

    name: str
    size: int
    values: list[float]
    first: int
    length: int
    offset: int = 0
    exported: bool = True

    def read(self) -> memoryview:
        """Return the current elements as little-endian doubles."""
        return memoryview(struct.pack(f"<{self.length}d", *self.values[self.first : self.first + self.length]))


def export_slices(slices: Iterable[ValueSlice]) -> Iterator[Part]:
    """Yield a part for each slice that is exported and not empty."""
    for each in slices:
        if each.exported and each.length > 0:
            yield Part(each.name, "F64", (each.size,), each.offset, each.length, each.read)


Piece: TypeAlias = "tuple[str, str, tuple[int, ...], int, tuple[float, ...]]"
"""The name, dtype, shape, offset and elements of a part."""


def piece_of(part: Part) -> Piece:
    """Return a part with its elements read; without elements if they are not doubles."""
    elements = struct.unpack(f"<{part.length}d", part.read()) if part.dtype == "F64" else ()
    return part.name, part.dtype, part.shape, part.offset, elements


def load_slices(slices: Iterable[ValueSlice], pieces: Iterable[Piece]) -> None:
    """Fill the slices from pieces, which together cover every value; a piece may occur more than once.

    Raises ValueError if a value is missing, unknown or of a different shape; then nothing is changed.
    """
    expected = {each.name: each for each in slices}
    wholes: dict[str, dict[int, float]] = {name: {} for name in expected}
    problems: list[str] = []
    for name, dtype, shape, offset, elements in pieces:
        if name not in expected:
            problems.append(f"{name!r} is unknown")
        elif (dtype, tuple(shape)) != ("F64", (expected[name].size,)):
            problems.append(f"{name!r} is {dtype} {list(shape)} and should be F64 [{expected[name].size}]")
        else:
            wholes[name] |= dict(enumerate(elements, offset))
    for name, each in expected.items():
        lacking = each.size - len(wholes[name])
        if lacking:
            problems.append(f"{name!r} is missing, {lacking} of its {each.size} elements")
    if problems:
        raise ValueError(f"The saved state does not fit: {'; '.join(problems)}.")
    for name, each in expected.items():
        own = [wholes[name][index] for index in range(each.offset, each.offset + each.length)]
        each.values[each.first : each.first + each.length] = own


# The loss

Accumulate = Callable[[Sequence[float]], None]
"""Adds derivatives, one per parameter, to the gradients."""


@define(eq=False, repr=False)
class Scalar:
    """A loss: its value and its derivative with respect to each parameter, which `backward` passes to `accumulate`."""

    value: float
    _derivatives: Sequence[float]
    _accumulate: Accumulate

    def backward(self) -> None:
        """Add the derivatives to the gradients."""
        self._accumulate(self._derivatives)

    def __mul__(self, factor: float) -> Scalar:
        """Return the loss times a number, as loss scaling needs it."""
        return Scalar(self.value * factor, [slope * factor for slope in self._derivatives], self._accumulate)

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"Scalar({self.value!r})"


def _no_gradients(derivatives: Sequence[float]) -> None:
    raise RuntimeError("A detached loss has no gradients; call backward on the loss itself.")


def detached(loss: Scalar) -> Scalar:
    """Return the value without derivatives. Its `backward` raises RuntimeError."""
    return Scalar(loss.value, (), _no_gradients)


SquaredError: TypeAlias = Callable[[Sequence[float], Sequence[Row], int], tuple[float, Sequence[float]]]
"""From parameters (the weights, then the bias), rows and a divisor n to the loss and its derivatives.

With the error e = w . x + b - y of a row, the loss is sum(e^2) / n, its derivatives 2 sum(e x) / n and 2 sum(e) / n.
"""


def squared_error(features: int) -> SquaredError:
    """Return the function for rows with this number of features; for one feature it is three times as fast."""
    return _one_feature if features == 1 else _many_features


def _one_feature(parameters: Sequence[float], rows: Sequence[Row], divisor: int) -> tuple[float, Sequence[float]]:
    weight, bias = parameters
    total = by_weight = by_bias = 0.0
    for (feature,), target in rows:
        error = weight * feature + bias - target
        total += error * error
        by_weight += error * feature
        by_bias += error
    return total / divisor, (2 * by_weight / divisor, 2 * by_bias / divisor)


def _many_features(parameters: Sequence[float], rows: Sequence[Row], divisor: int) -> tuple[float, Sequence[float]]:
    *weights, bias = parameters
    total = by_bias = 0.0
    by_weights = [0.0] * len(weights)
    for features, target in rows:
        error = predict(weights, bias, features) - target
        total += error * error
        by_bias += error
        for index, feature in enumerate(features):
            by_weights[index] += error * feature
    return total / divisor, [2 * slope / divisor for slope in (*by_weights, by_bias)]


def predict(weights: Sequence[float], bias: float, features: Sequence[float]) -> float:
    """Return w . x + b. Raises ValueError if the numbers of features and weights differ."""
    products = (weight * feature for weight, feature in zip(weights, features, strict=True))
    return sum(products) + bias


# Model, optimizer and training step


class LinearModel:
    """y = weight . x + bias. `parameters` holds the weights and then the bias, all initially zero.

    `training` has no effect, as in a model without dropout; tests check who sets it.
    Implements the Exportable port with the values "weight" and "bias".
    """

    exports_shared = True

    def __init__(self, features: int = 1) -> None:
        self.features = features
        self.parameters = [0.0] * (features + 1)
        self.gradients = [0.0] * (features + 1)
        self.training = True

    def whole_parameters(self) -> Sequence[float]:
        """Return the weights and the bias."""
        return self.parameters

    def predict(self, features: Sequence[float]) -> float:
        """Return the model's y for one row. Raises ValueError for a wrong number of features."""
        *weights, bias = self.whole_parameters()
        return predict(weights, bias, features)

    def train(self, mode: bool = True) -> None:
        """Switch to training mode, or to evaluation mode."""
        self.training = mode

    def slices(self, values: list[float], suffix: str = "") -> tuple[ValueSlice, ...]:
        """Return the named slices of `values`, one value per parameter here; `suffix` is appended to the names."""
        return (
            ValueSlice(f"weight{suffix}", self.features, values, 0, self.features),
            ValueSlice(f"bias{suffix}", 1, values, self.features, 1),
        )

    def pieces(self, parts: Iterable[Part]) -> list[Piece]:
        """Return the parts that were passed to any rank."""
        return [piece_of(part) for part in parts]

    def export(self) -> Iterator[Part]:
        """Export the weights and the bias, or this rank's slices of them."""
        return export_slices(self.slices(self.parameters))

    def load(self, parts: Iterable[Part]) -> None:
        """Load exported weights; see `Exportable.load`."""
        load_slices(self.slices(self.parameters), self.pieces(parts))


class LinearShard(LinearModel):
    """One rank's slices of "weight" and "bias": of a value of n elements, rank r of w has those from n r // w on.

    Each part may be loaded on any rank, or on several, as long as the ranks together have all of them.
    """

    def __init__(self, features: int, collectives: Collectives) -> None:
        super().__init__(features)
        self.collectives = collectives
        self.exports_shared = collectives.rank == 0
        self._owned = [self._range(features), self._range(1)]
        self.parameters = [0.0] * sum(map(len, self._owned))
        self.gradients = [0.0] * len(self.parameters)

    def _range(self, size: int) -> range:
        rank, world_size = self.collectives.rank, self.collectives.world_size
        return range(size * rank // world_size, size * (rank + 1) // world_size)

    def whole_parameters(self) -> list[float]:
        """Return the weights and the bias of all ranks. Collective."""
        cut = len(self._owned[0])
        gathered = self.collectives.gather([self.parameters[:cut], self.parameters[cut:]])
        weights, biases = zip(*cast("list[tuple[list[float], list[float]]]", gathered), strict=True)
        return [value for values in (*weights, *biases) for value in values]

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

    def own(self, whole: Sequence[float]) -> list[float]:
        """Return this rank's part of a list with one value per parameter of the model."""
        weight, bias = self._owned
        return [*whole[weight.start : weight.stop], *whole[self.features + bias.start : self.features + bias.stop]]


class MomentumOptimizer:
    """v <- momentum * v + gradient, parameter <- parameter - rate * v, where v is initially zero.

    The learning rate of the only parameter group is `rates[0]`. Implements the Optimizer and the Exportable port.
    """

    def __init__(self, model: LinearModel, learning_rate: float = 0.1, momentum: float = 0.9) -> None:
        self.gradients = model.gradients
        self.velocity = [0.0] * len(model.parameters)
        self.rates = [learning_rate]
        self.momentum = momentum
        self.slices = (
            *model.slices(self.velocity, ".momentum_buffer"),
            ValueSlice("learning_rate", 1, self.rates, 0, 1, exported=model.exports_shared),
        )
        self._model = model

    def step(self) -> None:
        """Update every parameter once."""
        parameters, velocity, momentum, rate = self._model.parameters, self.velocity, self.momentum, self.rates[0]
        for index, gradient in enumerate(self.gradients):
            velocity[index] = moved = momentum * velocity[index] + gradient
            parameters[index] -= rate * moved

    def export(self) -> Iterator[Part]:
        """Export the velocities, as "<parameter>.momentum_buffer", and the learning rate."""
        return export_slices(self.slices)

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export; see `Exportable.load`."""
        load_slices(self.slices, self._model.pieces(parts))


class LeastSquares:
    """Implements the Trainable port, and the Exportable port for model and optimizer together.

    A batch is a list of rows. The loss of a window is the mean of the squared errors of its rows, so the number of
    batches in a window changes only the rounding.
    """

    detached = staticmethod(detached)

    def __init__(self, model: LinearModel, optimizer: MomentumOptimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self._squared_error = squared_error(model.features)
        self._accumulate = self._add_to_gradients  # bound once, because the loop uses it at every step
        self._zeros = [0.0] * len(model.parameters)

    def count_items(self, window: Sequence[Sequence[Row]]) -> int:
        """Return the number of rows in the window."""
        return sum(map(len, window))

    def loss(self, batch: Sequence[Row], window_items: Any) -> Scalar:
        """Return the batch's squared errors divided by `window_items`. Raises ValueError for a wrong row length."""
        value, derivatives = self._squared_error(self.model.parameters, batch, window_items)
        return Scalar(value, derivatives, self._accumulate)

    def clip(self, max_norm: float) -> float:
        """Scale the gradients to a norm of at most `max_norm` (0: do not scale), and return the norm before."""
        gradients = self.model.gradients
        norm = math.hypot(*gradients)
        if 0 < max_norm < norm:
            gradients[:] = [gradient * (max_norm / norm) for gradient in gradients]
        return norm

    def set_learning_rates(self, rates: Sequence[float]) -> None:
        """Set the rate of the only parameter group."""
        (self.optimizer.rates[0],) = rates

    def clear_gradients(self) -> None:
        """Set the gradients to zero."""
        self.model.gradients[:] = self._zeros

    def export(self) -> Iterator[Part]:
        """Export the weights, the bias, their velocities and the learning rate; of sharded ones this rank's slices."""
        return export_slices((*self.model.slices(self.model.parameters), *self.optimizer.slices))

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export, or from those of any number of ranks; see `Exportable.load`."""
        slices = (*self.model.slices(self.model.parameters), *self.optimizer.slices)
        load_slices(slices, self.model.pieces(parts))

    def _add_to_gradients(self, derivatives: Sequence[float]) -> None:
        gradients = self.model.gradients
        for index, derivative in enumerate(derivatives):
            gradients[index] += derivative


class ShardedLeastSquares(LeastSquares):
    """Least squares with the parameters, gradients and velocities sharded over the ranks.

    Each rank computes on its own batches. Forward gathers the parameters; backward sums the gradients of the ranks and
    keeps this rank's slice. Both are collective. A loss is the rank's share of the mean over the rows of all ranks.
    """

    model: LinearShard

    def count_items(self, window: Sequence[Sequence[Row]]) -> int:
        """Return the number of rows in the windows of all ranks."""
        return int(self._sum([super().count_items(window)])[0])

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

    def _add_to_gradients(self, derivatives: Sequence[float]) -> None:
        super()._add_to_gradients(self.model.own(self._sum(derivatives)))

    def _sum(self, values: Sequence[float]) -> tuple[float, ...]:
        return self.model.collectives.start_reduction(values, Reduction.SUM).result()


def least_squares(features: int = 1, learning_rate: float = 0.1, momentum: float = 0.9) -> LeastSquares:
    """Return a model with this number of features and all weights zero, and its optimizer."""
    model = LinearModel(features)
    return LeastSquares(model, MomentumOptimizer(model, learning_rate, momentum))


def sharded_least_squares(
    collectives: Collectives, features: int = 1, learning_rate: float = 0.1, momentum: float = 0.9
) -> ShardedLeastSquares:
    """Return this rank's shard of a model with this number of features and all weights zero, and its optimizer."""
    model = LinearShard(features, collectives)
    return ShardedLeastSquares(model, MomentumOptimizer(model, learning_rate, momentum))
