"""Batches whose samples have their own random streams."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from hexloop.adapters.batches.torch.order import KeyedDataset, keyed_indices, only_stored

ROWS = [{"x": float(row)} for row in range(8)]
BATCH = keyed_indices([5, 0, 3], seed=7, epoch=1, start=0)


def table() -> datasets.Dataset:
    return datasets.Dataset.from_list(ROWS)


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


class Noisy(Dataset[Any]):
    """Counts its reads, and draws from every generator in each read."""

    def __init__(self) -> None:
        self.batches = 0

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> list[float]:
        return [float(index), *drawn()]

    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        self.batches += 1
        return [self[index] for index in indices]


STORED: dict[str, Callable[[], Any]] = {
    "list": lambda: ROWS,
    "tuple": lambda: tuple(ROWS),
    "tensors": lambda: TensorDataset(torch.arange(8.0)),
    "table": table,
    "table of tensors": lambda: table().with_format("torch"),
    "part of a table": lambda: Subset(table(), list(range(8))),
}


@pytest.mark.parametrize("name", STORED)
def test_batched_reads_equal_single_reads(name: str) -> None:
    """Stored samples and the random streams of the collator are the same in a batched read as one by one."""
    keyed = KeyedDataset(STORED[name]())
    at_once, then = keyed.__getitems__(BATCH), drawn()
    one_by_one, after = [keyed[index] for index in BATCH], drawn()
    assert list(at_once) == one_by_one
    assert then == after


def test_samples_that_may_draw_have_their_own_streams() -> None:
    """The second sample is the same without the first, even if the data set could read a whole batch at once."""
    data = Noisy()
    keyed = KeyedDataset(data)
    together = keyed.__getitems__(BATCH)
    assert data.batches == 0
    assert keyed.__getitems__(BATCH[1:]) == together[1:]
    assert len({sample[1] for sample in together}) == len(BATCH)


def test_an_empty_batch_reads_nothing() -> None:
    """A worker may get an empty batch."""
    assert list(KeyedDataset(table()).__getitems__([])) == []


def test_data_that_run_user_code_are_not_batched() -> None:
    """A user-defined data set, a table with a transform, a subclass of list, or a part of one is read one by one."""

    class Own(list[Any]):
        pass

    transformed = table().with_transform(lambda batch: {"x": [value + random.random() for value in batch["x"]]})
    assert not any(map(only_stored, (Noisy(), transformed, Own(ROWS), Subset(Noisy(), [1, 2]))))
    alone = KeyedDataset(transformed)
    assert alone.__getitems__(BATCH)[1:] == alone.__getitems__(BATCH[1:])


def test_a_transform_set_later_is_used() -> None:
    """A callback may add a transform to a table during a run."""
    data = table()
    keyed = KeyedDataset(data)
    assert [sample["x"] for sample in keyed.__getitems__(BATCH)] == [5.0, 0.0, 3.0]
    data.set_transform(lambda batch: {"x": [random.random() for _ in batch["x"]]})
    assert keyed.__getitems__(BATCH)[1:] == keyed.__getitems__(BATCH[1:])
