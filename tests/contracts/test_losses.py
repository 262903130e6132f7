"""Contract of the Losses port, run on the losses that need no framework."""

from __future__ import annotations

from hexloop.adapters.losses import PlainLosses, PlainWindowValues
from hexloop.adapters.trainable.least_squares import Scalar, detached
from hexloop.app.testing.contracts.learning import LossesContract, WindowValuesContract


class TestPlainLosses(LossesContract[float]):
    def make(self) -> PlainLosses:
        return PlainLosses()

    def loss(self, value: float) -> float:
        return value


class TestPlainLossesOfScalars(LossesContract[Scalar]):
    def make(self) -> PlainLosses:
        return PlainLosses()

    def loss(self, value: float) -> Scalar:
        return detached(Scalar(value, (), lambda derivatives: None))


class TestPlainWindowValues(WindowValuesContract[float]):
    def make(self) -> PlainWindowValues:
        return PlainWindowValues()

    def loss(self, value: float) -> float:
        return value
