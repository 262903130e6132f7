"""Batches in memory against the contract of their port."""

from __future__ import annotations

from hexloop.adapters.batches.in_memory import InMemoryBatches
from hexloop.app.contracts.batches import BatchesContract
from hexloop.domain.order.permutation import KeyedPermutation
from hexloop.domain.order.sequential import Sequential

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
