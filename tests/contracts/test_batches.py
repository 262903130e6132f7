"""Contract of the Batches port, run on the adapters that need no framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hexloop.adapters.batches import InMemoryBatches, StatefulBatches, StreamedBatches
from hexloop.app.testing.contracts.data import BatchesContract
from hexloop.domain.order import KeyedPermutation, Sequential

ROWS = [f"row {number}" for number in range(20)]


class TestInMemoryBatches(BatchesContract[list[str]]):
    def make(self) -> InMemoryBatches[str]:
        return InMemoryBatches(ROWS, 3)

    def samples(self, batch: list[str]) -> list[object]:
        return list(batch)


class TestWithoutTheLastBatch(TestInMemoryBatches):
    def make(self) -> InMemoryBatches[str]:
        return InMemoryBatches(ROWS[:18], 3, drop_last=True)


class TestInRandomOrder(TestInMemoryBatches):
    def make(self) -> InMemoryBatches[str]:
        return InMemoryBatches(ROWS, 6, order=lambda epoch: KeyedPermutation(7, epoch, len(ROWS)))


class TestInSequentialOrder(TestInMemoryBatches):
    def make(self) -> InMemoryBatches[str]:
        return InMemoryBatches(ROWS, 7, order=lambda epoch: Sequential(len(ROWS)))


class TestStreamedBatches(TestInMemoryBatches):
    def make(self) -> Any:
        return StreamedBatches(ROWS, 3)


class Numbered:
    """Rows that record how many were read; a new pass starts where the last one ended."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        while self.read < len(ROWS):
            self.read += 1
            yield ROWS[self.read - 1]
        self.read = 0

    def state_dict(self) -> Any:
        return {"read": self.read}

    def load_state_dict(self, state: Any, /) -> None:
        self.read = state["read"]


class TestStatefulBatches(TestInMemoryBatches):
    def make(self) -> Any:
        return StatefulBatches(Numbered(), 3)

    def test_an_epoch_can_be_closed_early(self, batches: Any) -> None:
        """After an epoch is closed early, the next epoch yields the remaining rows."""
        epoch = batches.epoch(0, 0)
        next(epoch)
        epoch.close()

        assert list(epoch) == []
        assert len(self.read(batches, 1)) == len(self.read(self.make(), 1)) - 1
