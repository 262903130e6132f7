"""A stream that does not divide itself among the loader workers is read once, or a warning says that it may not be."""

from __future__ import annotations

import logging
import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hexloop import DataError
from hexloop.adapters.batches.torch import workers
from hexloop.adapters.batches.torch.stream import StreamLoader

ROWS = 22


@pytest.fixture(autouse=True)
def reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the messages about division that were logged."""
    monkeypatch.setattr(workers, "_reported", set())
    caplog.set_level(logging.WARNING, "hexloop")
    return lambda: [each.message for each in caplog.records if "loader workers" in each.message]


class Undivided(IterableDataset[Any]):
    """Every worker reads all rows."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(ROWS))


class Drawn(Undivided):
    """Rows in a random order, with a random number each."""

    def __iter__(self) -> Iterator[Any]:
        order = random.sample(range(ROWS), ROWS)
        for row in order:
            yield row + random.random() / 2 + torch.rand(()).item() / 4


class Asks(Undivided):
    """Each worker yields its part, and draws at random."""

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(first, ROWS, step):
            yield row + random.random() / 2


class AsksAtOnce(Undivided):
    """The same, in an `__iter__` that is no generator."""

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        return iter(range(info.id, ROWS, info.num_workers))


class AsksLate(Undivided):
    """Asks after the first row."""

    def __iter__(self) -> Iterator[Any]:
        yield 0
        info: Any = get_worker_info()
        yield from range(1 + info.id, ROWS, info.num_workers)


class Shared(Undivided):
    """The workers take rows from one queue."""

    def __init__(self) -> None:
        self.lock = multiprocessing.Lock()
        self.taken = multiprocessing.Value("i", 0)

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self.lock:
                row, self.taken.value = self.taken.value, self.taken.value + 1
            if row >= ROWS:
                return
            yield row


class Stateful(Undivided):
    """Every worker reads all rows, and has a state."""

    read = 0

    def __iter__(self) -> Iterator[Any]:
        while self.read < ROWS:
            self.read += 1
            yield self.read - 1
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class Fails(Undivided):
    """Fails in one worker, before its first row, while the others wait for its note."""

    def __iter__(self) -> Iterator[Any]:
        if torch.initial_seed() % 2 == multiprocessing.current_process()._identity[-1] % 2:
            raise OSError("no such file")
        return iter(range(ROWS))


def batches(data: Any, workers: int, position: int = 0, epoch: int = 0, loader: Any = None) -> Any:
    """Return the rows of each batch."""
    made = StreamLoader(data, 4, list, key_seed=3, num_workers=workers) if loader is None else loader
    return [list(batch) for batch in made.batches_from(epoch, position)]


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("data", [Undivided, Drawn])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_batches_are_those_of_a_single_reader(data: Any, workers: int, reported: Any) -> None:
    """Also random order and random rows, after a resume, and in the next epoch of persistent workers."""
    whole = batches(data(), 0)
    assert batches(data(), workers) == whole
    (message,) = reported()
    assert message.startswith(f"{data.__name__} does not divide its rows among the {workers} loader workers")
    assert "get_worker_info()" in message
    for position in (4, 12, 20):
        assert batches(data(), workers, position) == whole[position // 4 :]
    loader = StreamLoader(data(), 4, list, key_seed=3, num_workers=workers, persistent_workers=True)
    assert [batches(None, workers, epoch=epoch, loader=loader) for epoch in (0, 1)] == [
        whole,
        batches(data(), 0, epoch=1),
    ]
    loader.stop_workers()
    assert len(reported()) == 1


def test_a_stream_that_divides_itself_is_left_alone(reported: Any) -> None:
    """Nothing is logged, each row is read once, and the workers draw different numbers."""
    for data in (Asks(), AsksAtOnce()):
        read = [row for batch in batches(data, 2) for row in batch]
        assert sorted(map(int, read)) == list(range(ROWS))
    fractions = [row % 1 for batch in batches(Asks(), 2) for row in batch]
    assert len(set(fractions)) == ROWS
    assert reported() == []


def test_datasets_divide_themselves(reported: Any) -> None:
    """A stream of `datasets` has shards, of which each worker reads some."""
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"row": list(range(ROWS))}).to_iterable_dataset(num_shards=2)
    read = [row["row"] for batch in batches(table, 2) for row in batch]
    assert sorted(read) == list(range(ROWS))
    assert reported() == []


def test_what_cannot_be_compared_is_not_divided(reported: Any) -> None:
    """Workers that take rows from one queue lose none; a warning says that rows may be used several times."""
    read = [row for batch in batches(Shared(), 2) for row in batch]
    assert sorted(read) == list(range(ROWS))
    assert "a row that several workers read is used several times" in reported()[0]
    read = [row for batch in batches(Stateful(), 2) for row in batch]
    assert sorted(read) == sorted([*range(ROWS)] * 2)
    assert reported()[1].startswith("Stateful does not ask which of the 2 loader workers reads it")


def test_rows_are_not_lost_if_a_stream_asks_late() -> None:
    """The error says where to ask."""
    with pytest.raises(DataError, match="at the start of __iter__"):
        batches(AsksLate(), 2)


@pytest.mark.matrix
def test_no_worker_waits_for_one_that_failed() -> None:
    """The error of the dataset is raised."""
    with pytest.raises(OSError, match="no such file"):
        batches(Fails(), 2)


@pytest.mark.matrix
def test_the_seed_of_a_run_is_not_needed(reported: Any) -> None:
    """In an evaluation by one process the random streams are not keyed."""
    loader = StreamLoader(Undivided(), 4, list, num_workers=2, in_turns=True)
    assert [row for batch in loader for row in batch] == list(range(ROWS))
    assert len(reported()) == 1
