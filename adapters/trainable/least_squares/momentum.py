"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from hexloop.adapters.trainable.least_squares.stretches import Piece, Stretch, export_stretches, load_stretches
from hexloop.ports.state import Part


class Parameterized(Protocol):
    """What an optimizer needs of a model, or of one rank's shard of it."""

    parameters: list[float]
    gradients: list[float]
    exports_shared: bool

    def stretches(self, values: list[float], suffix: str = "") -> Sequence[Stretch]:
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
            Stretch("learning_rate", 1, self.rates, 0, 1, exported=model.exports_shared),
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
        return export_stretches(self.stretches)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an export; see `Exportable.load`."""
        load_stretches(self.stretches, self._model.pieces(parts))
