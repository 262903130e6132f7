"""Contract of the Trainable port, run on least squares, whole and sharded."""

from __future__ import annotations

from collections.abc import Sequence

from hexloop.adapters.collectives import SingleProcessCollectives
from hexloop.adapters.trainable.least_squares import LeastSquares, Row, Scalar, least_squares
from hexloop.adapters.trainable.least_squares.sharded import ShardedLeastSquares, sharded_least_squares
from hexloop.app.testing.contracts.learning import TrainableContract
from hexloop.ports.learner import Trainable
from tests.contracts.least_squares import PLANE, ROWS, WINDOW, small_trainable

Batch = Sequence[Row]


class OfOneFeature(TrainableContract[Batch, Scalar]):
    """The model on the small problem."""

    def window(self) -> Sequence[Batch]:
        return WINDOW

    def whole(self) -> Batch:
        return ROWS


class TestLeastSquares(OfOneFeature):
    def make(self) -> LeastSquares:
        return small_trainable()


class TestLeastSquaresOfTwoFeatures(TrainableContract[Batch, Scalar]):
    def make(self) -> Trainable[Batch, Scalar]:
        return least_squares(2, learning_rate=0.05)

    def window(self) -> Sequence[Batch]:
        return [PLANE[:4], PLANE[4:6], PLANE[6:]]

    def whole(self) -> Batch:
        return PLANE


class TestShardedLeastSquaresInAWorldOfOne(TestLeastSquaresOfTwoFeatures):
    def make(self) -> ShardedLeastSquares:
        return sharded_least_squares(SingleProcessCollectives(), 2, learning_rate=0.05)
