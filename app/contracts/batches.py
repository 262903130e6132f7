"""What gives the training data."""

from __future__ import annotations

from contextlib import closing
from typing import Generic, TypeVar

import pytest

from hexloop.app.contracts.parts import kept
from hexloop.ports.batches import Batches

Batch = TypeVar("Batch")


class BatchesContract(Generic[Batch]):
    """The suite of the Batches port."""

    def make(self) -> Batches[Batch]:
        """A new adapter under test, over the same data each time: three batches an epoch or more."""
        raise NotImplementedError

    def samples(self, batch: Batch) -> list[object]:
        """The samples of a batch in order, as values that can be compared."""
        raise NotImplementedError

    @pytest.fixture
    def batches(self) -> Batches[Batch]:
        """The adapter under test."""
        return self.make()

    def read(self, batches: Batches[Batch], epoch: int, position: int = 0, limit: int | None = None) -> list[Batch]:
        """The batches from a position on, or the first few of them."""
        with closing(batches.epoch(epoch, position)) as epoch_batches:
            return [batch for _, batch in zip(range(limit or 10**9), epoch_batches, strict=False)]

    def all_samples(self, batches: list[Batch]) -> list[list[object]]:
        """The samples of each batch."""
        return [self.samples(batch) for batch in batches]

    def test_the_lengths_are_those_of_an_epoch(self, batches: Batches[Batch]) -> None:
        """Where the lengths are known, an epoch has as many batches and samples; `rows` tells those of a batch."""
        read = self.read(batches, 0)

        assert len(read) >= 3
        assert batches.batches_per_epoch() in (None, len(read))
        assert batches.samples_per_epoch() in (None, sum(map(batches.rows, read)))
        assert [batches.rows(batch) for batch in read] == [len(self.samples(batch)) for batch in read]

    @pytest.mark.parametrize("epoch", [0, 1, 3])
    def test_an_epoch_can_begin_at_every_batch(self, batches: Batches[Batch], epoch: int) -> None:
        """From the position after any number of batches on come the other batches, also in a process of its own."""
        whole = self.read(batches, epoch)

        position = 0
        for number in range(len(whole) + 1):
            before, other = self.make(), self.make()
            # As a run that was interrupted: it read so far, and another process goes on from what it exported.
            self.read(before, epoch, limit=number) if number else None
            other.load(kept(before.export()))
            rest = self.read(other, epoch, position)
            assert self.all_samples(rest) == self.all_samples(whole[number:])
            if number < len(whole):
                position += batches.rows(whole[number])

    def test_the_epochs_follow_each_other_alike(self, batches: Batches[Batch]) -> None:
        """Two objects over the same data give the same epochs, one after the other, of the same length each."""
        other = self.make()

        for epoch in range(3):
            read = self.read(batches, epoch)
            assert self.all_samples(read) == self.all_samples(self.read(other, epoch))
            assert len(read) == len(self.read(self.make(), 0))

    def test_an_epoch_may_be_closed_early(self, batches: Batches[Batch]) -> None:
        """After an epoch is closed in its middle it gives nothing more, and the next one is whole."""
        epoch = batches.epoch(0, 0)
        next(epoch)
        epoch.close()

        assert list(epoch) == []
        assert len(self.read(batches, 1)) == len(self.read(self.make(), 1))
