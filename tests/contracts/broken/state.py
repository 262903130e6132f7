"""Adapters for data and state that each violate their contract in one way; `broken` names the test that detects it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

import pytest

from hexloop.domain.json_documents import json_part
from hexloop.ports.batches import Batches
from hexloop.ports.collectives import Collectives
from hexloop.ports.state import Part, Snapshots
from hexloop.testing import (
    BatchesContract,
    ExportableContract,
    InMemoryBatches,
    InMemorySnapshots,
    LeastSquares,
    LossesContract,
    PlainLosses,
    ShardedLeastSquares,
    SimulatedWorld,
    SnapshotsContract,
    least_squares,
    sharded_least_squares,
)

Result = TypeVar("Result")
ROWS = [f"row {number}" for number in range(20)]


class Replaying(InMemoryBatches[str]):
    def epoch(self, epoch: int, position: int) -> Generator[list[str], None, None]:
        yield from super().epoch(epoch, 0)


class Wandering(InMemoryBatches[str]):
    begun = 0

    def epoch(self, epoch: int, position: int) -> Generator[list[str], None, None]:
        Wandering.begun += 1
        first = Wandering.begun % 2
        yield from [batch[first:] + batch[:first] for batch in super().epoch(epoch, position)]


class Miscounting(InMemoryBatches[str]):
    def batches_per_epoch(self) -> int:
        return super().batches_per_epoch() - 1


class BatchesTest(BatchesContract[list[str]]):
    kind: type[InMemoryBatches[str]]

    def make(self) -> Batches[list[str]]:
        return self.kind(ROWS, 3)

    def samples(self, batch: list[str]) -> list[object]:
        return list(batch)


class TestReplaying(BatchesTest):
    broken = "test_an_epoch_can_start_at_every_batch"
    kind = Replaying


class TestWandering(BatchesTest):
    broken = "test_epochs_are_reproducible"
    kind = Wandering


class TestMiscounting(BatchesTest):
    broken = "test_lengths_match_an_epoch"
    kind = Miscounting


class NeverEmptied(PlainLosses):
    def drain(self) -> float:
        total = super().drain()
        self.add(total)
        return total


class EmptiedByExport(PlainLosses):
    def export(self) -> Iterator[Part]:
        yield json_part("undrained", self.drain())


class LossesTest(LossesContract[float]):
    kind: type[PlainLosses]

    def make(self) -> PlainLosses:
        return self.kind()

    def loss(self, value: float) -> float:
        return value


class TestNeverEmptied(LossesTest):
    broken = "test_a_drain_resets_the_sum"
    kind = NeverEmptied


class TestEmptiedByExport(LossesTest):
    broken = "test_an_export_changes_nothing"
    kind = EmptiedByExport


class Forgetful(LeastSquares):
    def export(self) -> Iterator[Part]:
        yield from self.model.export()

    def load(self, parts: Iterable[Part]) -> None:
        self.model.load(parts)
        self.optimizer.velocity[:] = [0.0] * len(self.optimizer.velocity)


class NeverReading(LeastSquares):
    def load(self, parts: Iterable[Part]) -> None:
        held = [part for part in parts if "momentum" not in part.name]
        super().load([*held, *(part for part in self.export() if "momentum" in part.name)])


class AcceptingEverything(LeastSquares):
    def load(self, parts: Iterable[Part]) -> None:
        super().load(part for part in parts if not part.name.startswith("unknown"))


class ExportableTest(ExportableContract[LeastSquares]):
    kind: type[LeastSquares]

    def run(self, size: int, function: Callable[[Collectives], Result]) -> list[Result]:
        return SimulatedWorld(size).run(function)

    def make(self, collectives: Collectives) -> LeastSquares:
        made = least_squares()
        return self.kind(made.model, made.optimizer)

    def advance(self, kept: LeastSquares) -> None:
        kept.loss([((1.0,), 2.0)], 1).backward()
        kept.optimizer.step()


class TestForgetful(ExportableTest):
    broken = "test_it_can_be_restored_at_every_boundary"
    kind = Forgetful


class TestNeverReading(ExportableTest):
    broken = "test_a_loaded_object_is_independent"
    kind = NeverReading


class TestAcceptingEverything(ExportableTest):
    broken = "test_incompatible_parts_are_refused"
    kind = AcceptingEverything


class Whole(ShardedLeastSquares):
    """Exports everything on every rank."""

    def export(self) -> Iterator[Part]:
        yield from least_squares(2).export()


class TestWhole(ExportableContract[Whole]):
    broken = "test_parts_are_well_formed"
    sizes = (2,)

    def run(self, size: int, function: Callable[[Collectives], Result]) -> list[Result]:
        return SimulatedWorld(size).run(function)

    def make(self, collectives: Collectives) -> Whole:
        made = sharded_least_squares(collectives, 2)
        return Whole(made.model, made.optimizer)

    def advance(self, kept: Whole) -> None:
        kept.optimizer.step()


def reading(data: bytearray) -> Callable[[], memoryview]:
    return lambda: memoryview(data)


class Forwarding(InMemorySnapshots):
    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        return list(parts)


class Stale(InMemorySnapshots):
    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, list[Part]] = {}

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        if owner not in self._first:
            self._first[owner] = super().take(owner, parts)
        return self._first[owner]


class Sharing(InMemorySnapshots):
    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        return super().take("everybody", parts)


class Unordered(InMemorySnapshots):
    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        return super().take(owner, parts)[::-1]


class SnapshotsTest(SnapshotsContract):
    kind: type[InMemorySnapshots]

    @pytest.fixture
    def snapshots(self) -> Snapshots:
        return self.kind()

    def make_values(self) -> Any:
        return [bytearray(b"first123"), bytearray(b"second45")]

    def parts_of(self, values: Any) -> list[Part]:
        return [Part("weight", "U8", (16,), 8 * at, 8, reading(data)) for at, data in enumerate(values)]

    def change(self, values: Any) -> None:
        for data in values:
            data[:] = bytes(byte ^ 255 for byte in data)


class TestForwarding(SnapshotsTest):
    broken = "test_a_copy_does_not_change"
    kind = Forwarding


class TestStale(SnapshotsTest):
    broken = "test_the_next_snapshot_replaces_it"
    kind = Stale


class TestSharing(SnapshotsTest):
    broken = "test_owners_do_not_share_memory"
    kind = Sharing


class TestUnordered(SnapshotsTest):
    broken = "test_a_copy_has_the_metadata_of_the_part"
    kind = Unordered
