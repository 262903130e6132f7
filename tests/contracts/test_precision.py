"""Contract of the Precision port, run on the precisions that need no framework."""

from __future__ import annotations

from collections.abc import Sequence

from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.precision.simulated_scaling import SimulatedScaling
from hexloop.adapters.trainable.least_squares import LeastSquares, Row, Scalar
from hexloop.app.testing.contracts.devices import PrecisionContract
from hexloop.ports.learner import Precision
from tests.contracts.least_squares import ROWS, small_trainable

Batch = Sequence[Row]


class OnLeastSquares(PrecisionContract[Batch, Scalar]):
    """A precision on the least-squares model."""

    def trainable(self) -> LeastSquares:
        return small_trainable()

    def batch(self) -> Batch:
        return ROWS


class TestPlainPrecision(OnLeastSquares):
    def make(self) -> Precision[Scalar]:
        return PlainPrecision()


class TestSimulatedScaling(OnLeastSquares):
    def make(self) -> Precision[Scalar]:
        return SimulatedScaling(overflows={5}, growth_interval=2)
