"""What measures a model on held-out data."""

from __future__ import annotations

from typing import Generic, TypeVar

import pytest

from hexloop.ports.evaluator import Evaluator

Batch = TypeVar("Batch")


class EvaluatorContract(Generic[Batch]):
    """The suite of the Evaluator port."""

    @pytest.fixture
    def evaluator(self) -> Evaluator[Batch]:
        """The adapter under test, over two batches or more, of a model that is in the mode for training."""
        raise NotImplementedError

    def in_training(self, evaluator: Evaluator[Batch]) -> bool:
        """Whether the evaluator's model is in the mode for training."""
        raise NotImplementedError

    def evaluate(self, evaluator: Evaluator[Batch], batches: int | None = None) -> dict[str, float]:
        """The metrics of the first few batches, or of all."""
        evaluator.begin()
        for number, batch in enumerate(evaluator.batches()):
            if number == batches:
                break
            assert not self.in_training(evaluator)
            evaluator.step(batch)
        metrics = evaluator.metrics()
        evaluator.end()
        return metrics

    def test_every_sample_is_counted_once(self, evaluator: Evaluator[Batch]) -> None:
        """The batches are the same each time, and each step says how many samples it had."""
        counts = []
        for _ in range(2):
            evaluator.begin()
            counts.append([evaluator.step(batch) for batch in evaluator.batches()])
            evaluator.end()

        assert counts[0] == counts[1]
        assert len(counts[0]) >= 2
        assert all(count > 0 for count in counts[0])

    def test_the_metrics_are_numbers_by_name(self, evaluator: Evaluator[Batch]) -> None:
        """There is a metric or more, each a float; measured again, on the same model, they are the same."""
        metrics = self.evaluate(evaluator)

        assert metrics
        assert all(isinstance(name, str) and isinstance(value, float) for name, value in metrics.items())
        assert self.evaluate(evaluator) == metrics

    def test_an_interrupted_evaluation_leaves_no_trace(self, evaluator: Evaluator[Batch]) -> None:
        """After an evaluation that ended at its first batch the next one measures what it would have measured."""
        metrics = self.evaluate(evaluator)
        self.evaluate(evaluator, batches=1)

        assert self.evaluate(evaluator) == metrics

    def test_the_model_is_back_in_training_at_the_end(self, evaluator: Evaluator[Batch]) -> None:
        """The mode for evaluation lasts from the beginning to the end, which may come at any time."""
        evaluator.begin()
        assert not self.in_training(evaluator)
        evaluator.end()
        assert self.in_training(evaluator)
        self.evaluate(evaluator, batches=1)
        assert self.in_training(evaluator)
