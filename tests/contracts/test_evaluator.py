"""Contract of the Evaluator port, run on the least-squares evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hexloop.adapters.evaluator import LeastSquaresEvaluator
from hexloop.adapters.trainable.least_squares import LinearModel, Row
from hexloop.app.testing.contracts.data import EvaluatorContract
from hexloop.ports.batches import Evaluator
from tests.contracts.least_squares import ROWS


class TestLeastSquaresEvaluator(EvaluatorContract[Sequence[Row]]):
    @pytest.fixture
    def evaluator(self) -> Evaluator[Sequence[Row]]:
        self.model = LinearModel()
        return LeastSquaresEvaluator(self.model, ROWS, batch_size=4)

    def in_training(self, evaluator: Evaluator[Sequence[Row]]) -> bool:
        return self.model.training
