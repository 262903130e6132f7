"""Contract suites of the ports that supply and evaluate data: Batches and Evaluator."""

from __future__ import annotations

from contextlib import closing
from typing import Generic, TypeVar

import pytest

from hexloop.app.testing.contracts.overriding import not_overridden
from hexloop.app.testing.contracts.state import kept
from hexloop.ports.batches import Batches, Evaluator

Batch = TypeVar("Batch")


class BatchesContract(Generic[Batch]):
    """Contract suite of the Batches port."""

    def make(self) -> Batches[Batch]:
        """Return a new adapter under test, always over the same data: at least three batches per epoch."""
        raise not_overridden(self)

    def samples(self, batch: Batch) -> list[object]:
        """Return the samples of a batch in order, as values that can be compared.

        Args:
            batch: a batch.
        """
        raise not_overridden(self)

    @pytest.fixture
    def batches(self) -> Batches[Batch]:
        """The adapter under test."""
        return self.make()

    def read(self, batches: Batches[Batch], epoch: int, position: int = 0, limit: int | None = None) -> list[Batch]:
        """Return the batches of an epoch from a position on, at most `limit` of them.

        Args:
            batches: the adapter under test.
            epoch: the number of the epoch, from 0.
            position: the first sample.
            limit: the most batches.
        """
        with closing(batches.epoch(epoch, position)) as epoch_batches:
            return [batch for _, batch in zip(range(limit or 10**9), epoch_batches, strict=False)]

    def all_samples(self, batches: list[Batch]) -> list[list[object]]:
        """Return the samples of each batch.

        Args:
            batches: the adapter under test.
        """
        return [self.samples(batch) for batch in batches]

    def test_lengths_match_an_epoch(self, batches: Batches[Batch]) -> None:
        """Lengths that are known match the batches and samples of an epoch, and `rows` those of a batch."""
        read = self.read(batches, 0)

        assert len(read) >= 3
        assert batches.batches_per_epoch() in (None, len(read))
        assert batches.samples_per_epoch() in (None, sum(map(batches.rows, read)))
        assert [batches.rows(batch) for batch in read] == [len(self.samples(batch)) for batch in read]

    @pytest.mark.parametrize("epoch", [0, 1, 3])
    def test_an_epoch_can_start_at_every_batch(self, batches: Batches[Batch], epoch: int) -> None:
        """Reading from the position after any number of batches yields the remaining ones, also in a new process."""
        whole = self.read(batches, epoch)

        position = 0
        for number in range(len(whole) + 1):
            before, other = self.make(), self.make()
            # As in an interrupted run: one process reads this far, another resumes from what it exported.
            self.read(before, epoch, limit=number) if number else None
            other.load(kept(before.export()))
            rest = self.read(other, epoch, position)
            assert self.all_samples(rest) == self.all_samples(whole[number:])
            if number < len(whole):
                position += batches.rows(whole[number])

    def test_epochs_are_reproducible(self, batches: Batches[Batch]) -> None:
        """Two adapters over the same data yield the same epochs in the same order, all of the same length."""
        other = self.make()

        for epoch in range(3):
            read = self.read(batches, epoch)
            assert self.all_samples(read) == self.all_samples(self.read(other, epoch))
            assert len(read) == len(self.read(self.make(), 0))

    def test_an_epoch_can_be_closed_early(self, batches: Batches[Batch]) -> None:
        """An epoch that is closed early yields nothing more, and the next one is complete."""
        epoch = batches.epoch(0, 0)
        next(epoch)
        epoch.close()

        assert list(epoch) == []
        assert len(self.read(batches, 1)) == len(self.read(self.make(), 1))


class EvaluatorContract(Generic[Batch]):
    """Contract suite of the Evaluator port."""

    @pytest.fixture
    def evaluator(self) -> Evaluator[Batch]:
        """The adapter under test, with at least two batches and a model in training mode."""
        raise not_overridden(self)

    def in_training(self, evaluator: Evaluator[Batch]) -> bool:
        """Return whether the evaluator's model is in training mode.

        Args:
            evaluator: the adapter under test.
        """
        raise not_overridden(self)

    def evaluate(self, evaluator: Evaluator[Batch], batches: int | None = None) -> dict[str, float]:
        """Return the metrics of the first `batches` batches, or of all.

        Args:
            evaluator: the adapter under test.
            batches: the number of batches; by default all.
        """
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
        """The batches are the same each time, and each step returns its number of samples."""
        counts = []
        for _ in range(2):
            evaluator.begin()
            counts.append([evaluator.step(batch) for batch in evaluator.batches()])
            evaluator.end()

        assert counts[0] == counts[1]
        assert len(counts[0]) >= 2
        assert all(count > 0 for count in counts[0])

    def test_metrics_are_named_floats(self, evaluator: Evaluator[Batch]) -> None:
        """There is at least one metric, all are floats, and evaluating the same model again returns the same values."""
        metrics = self.evaluate(evaluator)

        assert metrics
        assert all(isinstance(name, str) and isinstance(value, float) for name, value in metrics.items())
        assert self.evaluate(evaluator) == metrics

    def test_an_interrupted_evaluation_leaves_no_trace(self, evaluator: Evaluator[Batch]) -> None:
        """An evaluation that ends at its first batch does not change the result of the next."""
        metrics = self.evaluate(evaluator)
        self.evaluate(evaluator, batches=1)

        assert self.evaluate(evaluator) == metrics

    def test_training_mode_is_restored_at_the_end(self, evaluator: Evaluator[Batch]) -> None:
        """The model is in evaluation mode from `begin` to `end`, whenever `end` is called."""
        evaluator.begin()
        assert not self.in_training(evaluator)
        evaluator.end()
        assert self.in_training(evaluator)
        self.evaluate(evaluator, batches=1)
        assert self.in_training(evaluator)
