"""A single process against the contract of the Parallelism port."""

from __future__ import annotations

from collections.abc import Sequence

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.trainable.least_squares.trainable import LeastSquares, LinearModel, MomentumOptimizer, Row, Scalar
from hexloop.app.testing.contracts.processes import ParallelismContract
from hexloop.ports.parallelism import Parallelism
from tests.contracts.least_squares import ROWS

Batch = Sequence[Row]


class OnLeastSquares(ParallelismContract[LinearModel, Batch, Scalar]):
    """A way of spreading a model, tried on floats."""

    def model(self) -> LinearModel:
        return LinearModel()

    def optimizer(self, model: LinearModel) -> MomentumOptimizer:
        return MomentumOptimizer(model)

    def trainable(self, model: LinearModel, optimizer: MomentumOptimizer) -> LeastSquares:
        return LeastSquares(model, optimizer)

    def batch(self) -> Batch:
        return ROWS


class TestSingleProcess(OnLeastSquares):
    def make(self) -> Parallelism[Scalar]:
        return SingleProcess()
