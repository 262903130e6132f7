"""The number of global batches in an epoch, and how ranks partition a global batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.order import ALL, Shard, global_batches, rank_slice
from hexloop.ports.mesh import Place

fixed = settings(derandomize=True, deadline=None)


def test_the_last_batch_is_kept_or_dropped() -> None:
    """Of 10 samples in batches of 4 the last batch has 2, or does not exist if the last is dropped."""
    assert global_batches(4, 10, drop_last=False) == 3
    assert global_batches(4, 10, drop_last=True) == 2
    assert global_batches(5, 10, drop_last=True) == 2
    assert global_batches(4, 10, drop_last=False, start=8) == 1
    assert global_batches(4, 10, drop_last=False, start=11) == 0


@given(st.integers(1, 8), st.lists(st.text(min_size=1), max_size=10))
def test_each_rank_has_its_own_part(world: int, parts: list[str]) -> None:
    """That at its place; the last ranks have none if there are fewer parts than ranks."""
    found = [Shard(Place(rank, world)).own(parts) for rank in range(world)]
    assert [part for part in found if part is not None] == parts[:world]
    assert found[len(parts) :] == [None] * (world - len(parts))


def test_one_part_is_the_first() -> None:
    """That of the first rank."""
    assert [Shard(Place(rank, 3)).is_first for rank in range(3)] == [True, False, False]


@fixed
@given(st.integers(0, 10**6), st.integers(0, 300), st.integers(1, 40))
def test_ranks_partition_a_global_batch(first: int, size: int, world: int) -> None:
    """Joined in rank order, the slices are the batch; the first ranks have at most one sample more."""
    positions = range(first, first + size)
    slices = [rank_slice(positions, Place(rank, world)) for rank in range(world)]
    assert [position for part in slices for position in part] == list(positions)
    sizes = [len(part) for part in slices]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize("rank", [-1, 4])
def test_ranks_outside_the_world_are_refused(rank: int) -> None:
    """A rank outside the world is an error."""
    with pytest.raises(IndexError, match=f"Rank {rank} is not in a world of 4"):
        rank_slice(range(8), Place(rank, 4))


@fixed
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8), st.integers(0, 70), st.booleans())
def test_shards_partition_a_global_batch(first: int, each: int, world: int, size: int, in_blocks: bool) -> None:
    """Joined in rank order, the parts are the batch; in blocks they are the batches of a single process."""
    whole = each * world
    positions = range(first, first + min(size, whole))
    parts = [Shard(Place(rank, world), in_blocks).of(positions, whole) for rank in range(world)]
    assert [position for part in parts for position in part] == list(positions)
    assert ALL.of(positions, whole) == positions
    if in_blocks:
        assert [list(part) for part in parts if part] == [
            list(positions[start : start + each]) for start in range(0, len(positions), each)
        ]
    else:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
