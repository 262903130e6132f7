"""A number that knows its derivatives."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import frozen

from hexloop.ports.state import Part

Accumulate = Callable[[Sequence[float]], None]
"""Adds derivatives, one for each parameter, to the gradients of the window."""


class Scalar:
    """A loss: its value, its derivative by each parameter, and where `backward` adds those."""

    __slots__ = ("_accumulate", "_derivatives", "value")

    def __init__(self, value: float, derivatives: Sequence[float], accumulate: Accumulate) -> None:
        self.value = value
        self._derivatives = derivatives
        self._accumulate = accumulate

    def backward(self) -> None:
        """Add the derivatives to the gradients of the window."""
        self._accumulate(self._derivatives)

    def __mul__(self, factor: float) -> Scalar:
        """The loss times a number, as loss scaling needs it."""
        return Scalar(self.value * factor, [slope * factor for slope in self._derivatives], self._accumulate)

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"Scalar({self.value!r})"


def _refuse(derivatives: Sequence[float]) -> None:
    raise RuntimeError("A detached loss has no gradients; call backward on the loss itself.")


def detached(loss: Scalar) -> Scalar:
    """The bare value. Raises RuntimeError on `backward`."""
    return Scalar(loss.value, (), _refuse)


Row: TypeAlias = tuple[tuple[float, ...], float]
"""Features and target."""

SquaredError: TypeAlias = Callable[[Sequence[float], Sequence[Row], int], tuple[float, Sequence[float]]]
"""From parameters (the weights, then the bias), rows and a divisor n to the loss and its derivatives.

With the error e = w . x + b - y of a row, the loss is sum(e^2) / n, its derivatives 2 sum(e x) / n and 2 sum(e) / n.
"""


def squared_error(features: int) -> SquaredError:
    """The function for rows of so many features; one feature needs no inner loops, which is three times as fast."""
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
    """The sum w . x + b. Raises ValueError where there are not as many features as weights."""
    products = (weight * feature for weight, feature in zip(weights, features, strict=True))
    return sum(products) + bias


@frozen
class ValueSlice:
    """The elements `first` to `first + length` of `values` are those from `offset` on of the value `name`.

    size: the elements of the whole value. exported: False where it only loads, because somebody else exports it.
    """

    name: str
    size: int
    values: list[float]
    first: int
    length: int
    offset: int = 0
    exported: bool = True

    def read(self) -> memoryview:
        """The elements as they are now, as little-endian doubles."""
        return memoryview(struct.pack(f"<{self.length}d", *self.values[self.first : self.first + self.length]))

    def fill_from(self, whole: Sequence[float]) -> None:
        """Take the elements from the whole value."""
        self.values[self.first : self.first + self.length] = whole[self.offset : self.offset + self.length]


def export_slices(stretches: Iterable[ValueSlice]) -> Iterator[Part]:
    """One part for each stretch that is exported and not empty."""
    for stretch in stretches:
        if stretch.exported and stretch.length > 0:
            yield Part(stretch.name, "F64", (stretch.size,), stretch.offset, stretch.length, stretch.read)


Piece: TypeAlias = "tuple[str, str, tuple[int, ...], int, tuple[float, ...]]"
"""Name, dtype, shape and offset of a part, and its elements."""


def piece_of(part: Part) -> Piece:
    """A part with its elements read (none where it holds no doubles)."""
    elements = struct.unpack(f"<{part.length}d", part.read()) if part.dtype == "F64" else ()
    return part.name, part.dtype, part.shape, part.offset, elements


def load_slices(stretches: Iterable[ValueSlice], pieces: Iterable[Piece]) -> None:
    """Fill the stretches from pieces, which cover every value between them; a piece may come more than once.

    Raises ValueError, naming them, where one is missing, unknown or of another shape; nothing is changed then.
    """
    wanted = {stretch.name: stretch for stretch in stretches}
    wholes: dict[str, dict[int, float]] = {name: {} for name in wanted}
    problems: list[str] = []
    for name, dtype, shape, offset, elements in pieces:
        if name not in wanted:
            problems.append(f"{name!r} is unknown")
        elif (dtype, tuple(shape)) != ("F64", (wanted[name].size,)):
            problems.append(f"{name!r} is {dtype} {list(shape)} and should be F64 [{wanted[name].size}]")
        else:
            wholes[name] |= dict(enumerate(elements, offset))
    for name, stretch in wanted.items():
        lacking = stretch.size - len(wholes[name])
        if lacking:
            problems.append(f"{name!r} is missing, {lacking} of its {stretch.size} elements")
    if problems:
        raise ValueError(f"The saved state does not fit: {'; '.join(problems)}.")
    for name, stretch in wanted.items():
        stretch.fill_from([wholes[name][index] for index in range(stretch.size)])


class LinearModel:
    """y = weight . x + bias. `parameters` holds the weights and then the bias, all zero at first.

    `training` is a switch without effect, as a model without dropout has it; tests can see who turned it.
    Answers the Exportable port with the values "weight" and "bias".
    """

    exports_shared = True

    def __init__(self, features: int = 1) -> None:
        self.parameters = [0.0] * (features + 1)
        self.gradients = [0.0] * (features + 1)
        self.training = True

    @property
    def features(self) -> int:
        """How many numbers make the input of one prediction."""
        return len(self.parameters) - 1

    def predict(self, features: Sequence[float]) -> float:
        """The model's y for one row's features. Raises ValueError for another number of them."""
        *weights, bias = self.parameters
        return predict(weights, bias, features)

    def train(self, mode: bool = True) -> None:
        """Switch to training, or to evaluation."""
        self.training = mode

    def stretches(self, values: list[float], suffix: str = "") -> tuple[ValueSlice, ...]:
        """All weights, and the bias."""
        return (
            ValueSlice(f"weight{suffix}", self.features, values, 0, self.features),
            ValueSlice(f"bias{suffix}", 1, values, self.features, 1),
        )

    def pieces(self, parts: Iterable[Part]) -> list[Piece]:
        """The parts that this process was handed: there is no other."""
        return [piece_of(part) for part in parts]

    def export(self) -> Iterator[Part]:
        """The weights and the bias."""
        return export_slices(self.stretches(self.parameters))

    def load(self, parts: Iterable[Part]) -> None:
        """Take exported weights; see `Exportable.load`."""
        load_slices(self.stretches(self.parameters), self.pieces(parts))


class Parameterized(Protocol):
    """What an optimizer needs of a model, or of one rank's shard of it."""

    parameters: list[float]
    gradients: list[float]
    exports_shared: bool

    def stretches(self, values: list[float], suffix: str = "") -> Sequence[ValueSlice]:
        """How `values`, one for each parameter here, fall into named values; `suffix` follows the parameters' names."""
        ...

    def pieces(self, parts: Iterable[Part]) -> list[Piece]:
        """The parts that all ranks were handed."""
        ...


class MomentumOptimizer:
    """v <- momentum * v + gradient, parameter <- parameter - rate * v, where v starts at zero.

    The learning rate of the one parameter group is `rates[0]`. Answers the Optimizer and the Exportable port.
    """

    def __init__(self, model: Parameterized, learning_rate: float = 0.1, momentum: float = 0.9) -> None:
        self.gradients = model.gradients
        self.velocity = [0.0] * len(model.parameters)
        self.rates = [learning_rate]
        self.momentum = momentum
        self.stretches = (
            *model.stretches(self.velocity, ".momentum_buffer"),
            ValueSlice("learning_rate", 1, self.rates, 0, 1, exported=model.exports_shared),
        )
        self._model = model

    def step(self) -> None:
        """Change every parameter once."""
        parameters, velocity, momentum, rate = self._model.parameters, self.velocity, self.momentum, self.rates[0]
        for index, gradient in enumerate(self.gradients):
            velocity[index] = moved = momentum * velocity[index] + gradient
            parameters[index] -= rate * moved

    def export(self) -> Iterator[Part]:
        """The velocities, as "<parameter>.momentum_buffer", and the learning rate."""
        return export_slices(self.stretches)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an export; see `Exportable.load`."""
        load_slices(self.stretches, self._model.pieces(parts))


class LeastSquares:
    """Answers the Trainable port, and the Exportable port for model and optimizer together.

    A batch is a list of rows, the window's loss the mean of their squared errors. Each row weighs the same however the
    window is cut into batches, so accumulation changes nothing but the rounding.
    """

    detached = staticmethod(detached)

    def __init__(self, model: LinearModel, optimizer: MomentumOptimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self._squares = squared_error(model.features)
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
        return export_slices((*self.model.stretches(self.model.parameters), *self.optimizer.stretches))

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an export; see `Exportable.load`."""
        stretches = (*self.model.stretches(self.model.parameters), *self.optimizer.stretches)
        load_slices(stretches, self.model.pieces(parts))

    def _add_to_gradients(self, derivatives: Sequence[float]) -> None:
        gradients = self.model.gradients
        for index, derivative in enumerate(derivatives):
            gradients[index] += derivative


def least_squares(features: int = 1, learning_rate: float = 0.1, momentum: float = 0.9) -> LeastSquares:
    """A model of so many features, all weights zero, and its optimizer."""
    model = LinearModel(features)
    return LeastSquares(model, MomentumOptimizer(model, learning_rate, momentum))
