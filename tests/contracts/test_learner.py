"""Contract of the Learner port, run on the standard learner over least squares."""

from __future__ import annotations

from collections.abc import Sequence

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.precision.simulated_scaling import SimulatedScaling
from hexloop.adapters.trainable.least_squares import LeastSquares, Row, Scalar
from hexloop.app.testing.contracts.learning import LearnerContract
from hexloop.domain.loop import StandardLearner
from hexloop.ports.learner import Learner
from tests.contracts.least_squares import ROWS, WINDOW, small_trainable

Batch = Sequence[Row]


class OnLeastSquares(LearnerContract[Batch, Scalar]):
    """A learner on the least-squares model."""

    def window(self) -> Sequence[Batch]:
        return WINDOW

    def whole(self) -> Batch:
        return ROWS

    def make(self) -> Learner[Batch, Scalar]:
        return self.on(small_trainable())

    def make_frozen(self) -> Learner[Batch, Scalar]:
        return self.on(small_trainable(0.0))

    def on(self, trainable: LeastSquares) -> Learner[Batch, Scalar]:
        """Return a learner that trains this model."""
        return StandardLearner(trainable, PlainPrecision(), SingleProcess())


class TestStandardLearner(OnLeastSquares):
    """Without a loss scale."""


class TestStandardLearnerWithALossScale(OnLeastSquares):
    def on(self, trainable: LeastSquares) -> Learner[Batch, Scalar]:
        return StandardLearner(trainable, SimulatedScaling(), SingleProcess())
