"""Contract of the Learner port, run on the standard learner over least squares."""

from __future__ import annotations

from collections.abc import Sequence

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.precision.simulated_scaling import SimulatedScaling
from hexloop.adapters.trainable.least_squares import Row, Scalar
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


class TestStandardLearner(OnLeastSquares):
    def make(self) -> Learner[Batch, Scalar]:
        return StandardLearner(small_trainable(), PlainPrecision(), SingleProcess())


class TestStandardLearnerWithALossScale(OnLeastSquares):
    def make(self) -> Learner[Batch, Scalar]:
        return StandardLearner(small_trainable(), SimulatedScaling(), SingleProcess())
