"""Batches are distributed over processes: every row once, in order, with the same number of steps everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from hexloop.adapters.batches.torch.batches import LoaderBatches
from hexloop.adapters.batches.torch.external import ExternalBatches, SampledBatches
from hexloop.adapters.batches.torch.loader import (
    distributed_sampler,
    is_sharded_already,
    reads_by_index,
    unsharded_batches,
)
from hexloop.adapters.batches.torch.shares import SampleCounts, SharingOptions, as_padding
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.batches.torch.structure import slice_rows
from hexloop.domain.errors import DataError
from hexloop.domain.order import Shard
from hexloop.ports.batches import Padding
from hexloop.ports.mesh import Place
from tests.examples import examples

Foreign = type[ExternalBatches]


class Numbers(Dataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def collate(rows: list[int]) -> dict[str, Tensor]:
    return {"ids": torch.tensor(rows)}


def as_it_is(batch: Any) -> Any:
    return batch


def ids(batch: Any) -> list[int]:
    """Return the rows that a batch counts for."""
    return [] if isinstance(batch, Padding) else batch["ids"].tolist()


def foreign(kind: Foreign, loader: Any, world: int, splits: bool = False) -> list[ExternalBatches]:
    """Return one set of shares per process."""
    return [
        kind(loader, as_it_is, sharing=SharingOptions(Place(rank, world), seed=7, splits=splits))
        for rank in range(world)
    ]


def epoch_of(shared: list[Any], epoch: int, position: int = 0) -> list[list[list[int]]]:
    """Return the rows of each process, step by step, while all processes take all steps."""
    batches = [list(each.epoch(epoch, position)) for each in shared]
    return [list(map(ids, step)) for step in zip(*batches, strict=True)]


def joined(steps: list[list[list[int]]]) -> list[int]:
    return [row for step in steps for rows in step for row in rows]


SIZES = {"count": st.integers(1, 60), "size": st.integers(1, 7), "world": st.integers(2, 6)}


@pytest.mark.parametrize("kind", [ExternalBatches, SampledBatches])
@given(**SIZES, splits=st.booleans(), drops=st.booleans())
@settings(max_examples=examples(20), deadline=None)
def test_external_batches_are_assigned_in_turn(
    kind: Foreign, count: int, size: int, world: int, splits: bool, drops: bool
) -> None:
    """Each row occurs once in the loader's order; with `drop_last` all processes have the same number of batches."""
    loader = DataLoader(Numbers(count), size, drop_last=drops, collate_fn=collate)
    shared = foreign(kind, loader, world, splits)

    steps = epoch_of(shared, 0)

    together = 1 if splits else world
    kept = (count // size) // together * together * size if drops else count
    assert joined(steps) == list(range(kept))
    assert {each.batches_per_epoch() for each in shared} == {len(steps)}


@pytest.mark.parametrize("kind", [ExternalBatches, SampledBatches])
@given(**SIZES, taken=st.integers(0, 10))
@settings(max_examples=examples(20), deadline=None)
def test_shuffled_external_batches_resume(kind: Foreign, count: int, size: int, world: int, taken: int) -> None:
    """All processes draw the same order, a new one in each epoch, and a resumed process continues in it."""
    loader = DataLoader(Numbers(count), size, shuffle=True, collate_fn=collate)
    shared = foreign(kind, loader, world)
    streams = torch.get_rng_state()
    whole = epoch_of(shared, 3)
    assert sorted(joined(whole)) == list(range(count))
    if kind is ExternalBatches:  # the other seeds them for each sample, as hexloop's own loaders do
        assert torch.equal(torch.get_rng_state(), streams)

    resumed = foreign(kind, loader, world)
    for each, each_shared in zip(resumed, shared, strict=True):
        each.load(list(each_shared.export()))
    taken = min(taken, len(whole))
    position = len(joined(whole[:taken]))
    if position:
        assert epoch_of(resumed, 3, position) == whole[taken:]
    if count > 8:
        assert joined(epoch_of(shared, 4)) != joined(whole)


@pytest.mark.parametrize("kind", [ExternalBatches, SampledBatches])
@given(**SIZES)
@settings(max_examples=examples(15), deadline=None)
def test_positions_count_the_rows_of_all_processes(kind: Foreign, count: int, size: int, world: int) -> None:
    """Each process counts each of its batches, including padding, as the rows of all processes in it."""
    for each in foreign(kind, DataLoader(Numbers(count), size, collate_fn=collate), world):
        counted = []
        for batch in each.epoch(0, 0):
            counted.append(each.rows(batch))
        assert sum(counted) == count
        assert len(counted) == -(-count // (size * world))


@given(**SIZES, in_turns=st.booleans(), position=st.integers(0, 3))
@settings(max_examples=examples(30), deadline=None)
def test_a_stream_is_distributed_row_by_row(count: int, size: int, world: int, in_turns: bool, position: int) -> None:
    """Each row occurs once and in order, from any batch on; batches that stay whole are assigned in turn."""
    together = size * world

    def made(ranks: list[int]) -> StreamLoader:
        shards = [Shard(Place(rank, world)) for rank in ranks]
        own = size if in_turns else together
        return StreamLoader(Stream(count), own, collate, key_seed=1, shards=shards, in_turns=in_turns)

    start = 0 if in_turns else min(position * together, count // together * together)
    shared = [
        LoaderBatches(made([rank]), as_it_is, sharing=SharingOptions(Place(rank, world))) for rank in range(world)
    ]
    steps = epoch_of(shared, 0, start)
    assert joined(steps) == list(range(start, count))
    if start == 0:
        assert {len(each.loader) for each in shared} == {len(steps)}
    if in_turns:
        sizes = [len(rows) for step in steps for rows in step if rows]
        assert sizes == [size] * (count // size) + [count % size] * (count % size > 0)

    for_all = [list(map(ids, (share.batch for share in parts))) for parts in made([*range(world)]).parts_from(0, start)]
    assert for_all == steps


def test_replaced_batches_count_as_full_ones() -> None:
    """Only batches of an unusual size are recorded, and those before the requested one are forgotten."""
    counts, batches = SampleCounts(8), [{"number": number} for number in range(4)]
    for batch, rows in zip(batches, (8, 5, 8, 3), strict=True):
        counts.note(batch, rows)

    assert [counts.of(batch) for batch in [*batches, {"number": 1}]] == [8, 5, 8, 3, 8]
    assert counts.of(batches[1]) == 8


def test_rows_are_sliced_from_nested_batches() -> None:
    """Tensors are cut along their first dimension, lists with a value per row are cut, all else stays unchanged."""
    batch = {
        "x": torch.arange(8).reshape(4, 2),
        "names": ["a", "b", "c", "d"],
        "pair": (torch.arange(4), "all"),
        "n": 3,
    }

    found = slice_rows(batch, range(1, 3), 4)

    assert found["x"].tolist() == [[2, 3], [4, 5]]
    assert (found["names"], found["pair"][0].tolist(), found["pair"][1], found["n"]) == (["b", "c"], [1, 2], "all", 3)


def test_a_batch_without_names_cannot_be_padding() -> None:
    """The error says what to change."""
    with pytest.raises(DataError, match="dataloader_drop_last=True"):
        as_padding([torch.zeros(1)])


def test_a_distributed_sampler_is_detected() -> None:
    """A loader with one is distributed already; its whole order is that of one process in the same epoch."""
    samplers: list[DistributedSampler[int]] = [DistributedSampler(Numbers(10), 4, rank, seed=2) for rank in range(4)]
    loaders = [DataLoader(Numbers(10), 2, sampler=sampler, collate_fn=collate) for sampler in samplers]
    plain = DataLoader(Numbers(10), 2, collate_fn=collate)

    assert all(map(is_sharded_already, loaders))
    assert not is_sharded_already(plain)
    assert distributed_sampler(plain) is None
    assert unsharded_batches(plain) is None
    order = unsharded_batches(loaders[0])
    assert order is not None
    rows = [index for indices in order for index in indices]
    assert sorted(rows) == list(range(10))
    assert rows[::4] == list(samplers[0])[: len(rows[::4])]

    own_loader = SharingOptions(Place(1, 4), separate=True)
    given_shares = ExternalBatches(loaders[1], as_it_is, sharing=own_loader)
    first, second = list(given_shares.epoch(0, 0))
    assert (given_shares.rows(first), given_shares.rows(second)) == (8, 4)
    assert [ids(batch) for batch in ExternalBatches(loaders[1], as_it_is, sharing=own_loader).epoch(0, 8)] == [
        ids(second)
    ]


def test_only_torchs_own_loaders_are_read_by_index() -> None:
    """A subclass may do anything with its batches, and a stream has no indices."""

    class Other(DataLoader[Any]):
        pass

    assert reads_by_index(DataLoader(Numbers(3)))
    assert not any(map(reads_by_index, (Other(Numbers(3)), DataLoader(Stream(3)), DataLoader(Numbers(3), None), [1])))
