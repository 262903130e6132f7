"""A linear model fitted to rows of floats by least squares: real training in microseconds, with no framework.

Model, loss, momentum optimizer and training step, in one process; see `sharded` for several.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias

from attrs import define, frozen

from hexloop.ports.state import Part

Row: TypeAlias = tuple[tuple[float, ...], float]
"""Features and target."""

# The state of lists of floats


@frozen
class ValueSlice:
    """A part of a named value: some runs of its elements, which follow each other in `values` from `first` on.

    Args:
        name: the name of the value.
        shape: of the whole value.
        values: one number per parameter.
        first: where it starts in `values`.
        runs: the first element of each in the flattened value, and its length.
    """

    name: str
    shape: tuple[int, ...]
    values: list[float]
    first: int
    runs: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """The number of elements of the whole value."""
        return prod(self.shape)

    def parts(self) -> Iterator[Part]:
        """Yield a part for each run, which reads the current elements as little-endian doubles."""
        first = self.first
        for offset, length in self.runs:
            yield Part(self.name, "F64", self.shape, offset, length, partial(self._read, first, length))
            first += length

    def _read(self, first: int, length: int) -> memoryview:
        return as_doubles(self.values[first : first + length])


def as_doubles(values: Sequence[float]) -> memoryview:
    """Return numbers as little-endian doubles.

    Args:
        values: one number per parameter.
    """
    return memoryview(struct.pack(f"<{len(values)}d", *values))


def whole_slice(name: str, shape: tuple[int, ...], values: list[float], first: int = 0) -> ValueSlice:
    """Return a value that is in `values` from `first` on, whole.

    Args:
        name: the name of the value.
        shape: the lengths of its dimensions.
        values: one number per parameter.
        first: where it starts in `values`.
    """
    return ValueSlice(name, shape, values, first, ((0, prod(shape)),))


Piece: TypeAlias = "tuple[str, str, tuple[int, ...], int, tuple[float, ...]]"
"""The name, dtype, shape, offset and elements of a part."""


def piece_of(part: Part) -> Piece:
    """Return a part with its elements read; without elements if they are not doubles."""
    elements = struct.unpack(f"<{part.length}d", part.read()) if part.dtype == "F64" else ()
    return part.name, part.dtype, part.shape, part.offset, elements


def load_slices(slices: Iterable[ValueSlice], pieces: Iterable[Piece]) -> None:
    """Fill the slices from pieces, which together cover every value; a piece may occur more than once.

    Args:
        slices: the named values.
        pieces: parts with their elements.

    Raises:
        ValueError: if a value is missing, unknown or of a different shape; then nothing is changed.
    """
    expected = {each.name: each for each in slices}
    wholes: dict[str, dict[int, float]] = {name: {} for name in expected}
    problems: list[str] = []
    for name, dtype, shape, offset, elements in pieces:
        if name not in expected:
            problems.append(f"{name!r} is unknown")
        elif (dtype, tuple(shape)) != ("F64", expected[name].shape):
            problems.append(f"{name!r} is {dtype} {list(shape)} and should be F64 {list(expected[name].shape)}")
        else:
            wholes[name] |= dict(enumerate(elements, offset))
    for name, each in expected.items():
        lacking = each.size - len(wholes[name])
        if lacking:
            problems.append(f"{name!r} is missing, {lacking} of its {each.size} elements")
    if problems:
        raise ValueError(f"The saved state does not fit: {'; '.join(problems)}.")
    for name, each in expected.items():
        own = [wholes[name][index] for offset, length in each.runs for index in range(offset, offset + length)]
        each.values[each.first : each.first + len(own)] = own


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
    """Return the function for rows with this number of features; for one feature it is three times as fast.

    Args:
        features: the numbers of a row without its target.
    """
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
    """Return w . x + b.

    Args:
        weights: one number per feature.
        bias: added to the products.
        features: the numbers of a row without its target.

    Raises:
        ValueError: if the numbers of features and weights differ.
    """
    products = (weight * feature for weight, feature in zip(weights, features, strict=True))
    return sum(products) + bias


# Model, optimizer and training step


class LinearModel:
    """y = weight . x + bias. `parameters` holds the weights and then the bias, all initially zero.

    `training` has no effect, as in a model without dropout; tests check who sets it.
    Implements the Exportable port with the values "weight" and "bias".

    Args:
        features: the number of features, or the rows and columns of the weight.
    """

    def __init__(self, features: int | tuple[int, int] = 1) -> None:
        self.shape = (features,) if isinstance(features, int) else features
        self.features = prod(self.shape)
        self.parameters = [0.0] * (self.features + 1)
        self.gradients = [0.0] * (self.features + 1)
        self.training = True

    def whole_parameters(self) -> Sequence[float]:
        """Return the weights and the bias."""
        return self.parameters

    def predict(self, features: Sequence[float]) -> float:
        """Return the model's y for one row.

        Args:
            features: the numbers of one row.

        Raises:
            ValueError: for a wrong number of features.
        """
        *weights, bias = self.whole_parameters()
        return predict(weights, bias, features)

    def train(self, mode: bool = True) -> None:
        """Switch to training mode, or to evaluation mode.

        Args:
            mode: False for evaluation mode.
        """
        self.training = mode

    def slices(self, values: list[float], suffix: str = "") -> tuple[ValueSlice, ...]:
        """Return the named slices of `values`, one value per parameter here; `suffix` is appended to the names.

        Args:
            values: one number per parameter.
            suffix: appended to the names.
        """
        return (
            whole_slice(f"weight{suffix}", self.shape, values),
            whole_slice(f"bias{suffix}", (1,), values, self.features),
        )

    def export_slices(self, slices: Iterable[ValueSlice]) -> Iterator[Part]:
        """Yield the parts of the model's values, or of the optimizer's.

        Args:
            slices: the named values.
        """
        return (part for each in slices for part in each.parts())

    def load_slices(self, slices: Iterable[ValueSlice], parts: Iterable[Part]) -> None:
        """Fill slices from exported parts; see `load_slices`.

        Args:
            slices: the named values.
            parts: the exported parts.
        """
        load_slices(slices, [piece_of(part) for part in parts])

    def export(self) -> Iterator[Part]:
        """Export the weights and the bias."""
        return self.export_slices(self.slices(self.parameters))

    def load(self, parts: Iterable[Part]) -> None:
        """Load exported weights; see `Exportable.load`."""
        self.load_slices(self.slices(self.parameters), parts)


class MomentumOptimizer:
    """v <- momentum * v + gradient, parameter <- parameter - rate * v, where v is initially zero.

    The learning rate of the only parameter group is `rates[0]`. Implements the Optimizer and the Exportable port.

    Args:
        model: the model whose parameters are updated.
        learning_rate: the initial rate of the only parameter group.
        momentum: the share of the velocity that is kept at each step.
    """

    def __init__(self, model: LinearModel, learning_rate: float = 0.1, momentum: float = 0.9) -> None:
        self.gradients = model.gradients
        self.velocity = [0.0] * len(model.parameters)
        self.rates = [learning_rate]
        self.momentum = momentum
        self.slices = (
            *model.slices(self.velocity, ".momentum_buffer"),
            whole_slice("learning_rate", (1,), self.rates),
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
        return self._model.export_slices(self.slices)

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export; see `Exportable.load`."""
        self._model.load_slices(self.slices, parts)


class LeastSquares:
    """Implements the Trainable port, and the Exportable port for model and optimizer together.

    A batch is a list of rows. The loss of a window is the mean of the squared errors of its rows, so the number of
    batches in a window changes only the rounding.

    Args:
        model: the model that is trained.
        optimizer: the optimizer of its parameters.
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
        """Return the batch's squared errors divided by `window_items`.

        Raises:
            ValueError: for a wrong row length.
        """
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
        """Set the rate of the only parameter group.

        Args:
            rates: one number, for the only parameter group.
        """
        (self.optimizer.rates[0],) = rates

    def clear_gradients(self) -> None:
        """Set the gradients to zero."""
        self.model.gradients[:] = self._zeros

    def export(self) -> Iterator[Part]:
        """Export the weights, the bias, their velocities and the learning rate."""
        return self.model.export_slices((*self.model.slices(self.model.parameters), *self.optimizer.slices))

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export, or from those of any number of ranks; see `Exportable.load`."""
        self.model.load_slices((*self.model.slices(self.model.parameters), *self.optimizer.slices), parts)

    def _add_to_gradients(self, derivatives: Sequence[float]) -> None:
        gradients = self.model.gradients
        for index, derivative in enumerate(derivatives):
            gradients[index] += derivative


def least_squares(
    features: int | tuple[int, int] = 1, learning_rate: float = 0.1, momentum: float = 0.9
) -> LeastSquares:
    """Return a model with this number of features and all weights zero, and its optimizer.

    Args:
        features: the number of features of a row.
        learning_rate: the initial rate.
        momentum: the share of the velocity that is kept at each step.

    Examples:
        >>> from hexloop.domain.loop import train
        >>> from hexloop.testing import least_squares, simulated_run
        >>> model = least_squares(learning_rate=0.1)
        >>> rows = [((x / 10,), 3 * x / 10 - 1) for x in range(20)]
        >>> for _ in train(simulated_run(rows, trainable=model, epochs=300)):
        ...     pass
        >>> [round(value, 1) for value in model.model.parameters]
        [3.0, -1.0]
    """
    model = LinearModel(features)
    return LeastSquares(model, MomentumOptimizer(model, learning_rate, momentum))
