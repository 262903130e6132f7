"""A linear model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hexloop.adapters.trainable.least_squares.squares import predict
from hexloop.adapters.trainable.least_squares.stretches import (
    Piece,
    Stretch,
    export_stretches,
    load_stretches,
    piece_of,
)
from hexloop.ports.state import Part


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

    def stretches(self, values: list[float], suffix: str = "") -> tuple[Stretch, ...]:
        """All weights, and the bias."""
        return (
            Stretch(f"weight{suffix}", self.features, values, 0, self.features),
            Stretch(f"bias{suffix}", 1, values, self.features, 1),
        )

    def pieces(self, parts: Iterable[Part]) -> list[Piece]:
        """The parts that this process was handed: there is no other."""
        return [piece_of(part) for part in parts]

    def export(self) -> Iterator[Part]:
        """The weights and the bias."""
        return export_stretches(self.stretches(self.parameters))

    def load(self, parts: Iterable[Part]) -> None:
        """Take exported weights; see `Exportable.load`."""
        load_stretches(self.stretches(self.parameters), self.pieces(parts))
