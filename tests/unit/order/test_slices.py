"""Global batches partition the epoch, and ranks partition a global batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.order.slices import ALL, Shard, global_batch_range, global_batches, rank_slice

fixed = settings(derandomize=True, deadline=None)


@fixed
@given(st.integers(1, 70), st.integers(0, 500), st.booleans(), st.integers(0, 600))
def test_global_batches_partition_the_epoch(global_batch: int, length: int, drop_last: bool, start: int) -> None:
    """The batches hold the positions from the start on, all full except the last, whose rest is kept or dropped."""
    count = global_batches(global_batch, length, drop_last, start)
    ranges = [global_batch_range(number, global_batch, length, drop_last, start) for number in range(count)]
    rest = (length - start) % global_batch if length > start else 0
    end = max(start, length) - (rest if drop_last else 0)
    assert [position for part in ranges for position in part] == list(range(start, end))
    assert all(len(part) == global_batch for part in ranges[:-1])
    assert all(1 <= len(part) <= global_batch for part in ranges)


def test_the_last_batch_is_kept_or_dropped() -> None:
    """Of 10 samples in batches of 4 the last batch has 2, or does not exist if the last is dropped."""
    assert global_batches(4, 10, drop_last=False) == 3
    assert global_batches(4, 10, drop_last=True) == 2
    assert global_batches(5, 10, drop_last=True) == 2
    assert global_batch_range(2, 4, 10, drop_last=False) == range(8, 10)
    assert global_batch_range(1, 4, 10, drop_last=True) == range(4, 8)


def test_a_batch_has_constant_cost_at_any_position() -> None:
    """A batch far into a long epoch is computed like the first."""
    assert global_batch_range(10**15, 512, 2**62, drop_last=True) == range(512 * 10**15, 512 * 10**15 + 512)


@pytest.mark.parametrize(("number", "drop_last"), [(-1, False), (3, False), (2, True)])
def test_batches_outside_the_epoch_are_refused(number: int, drop_last: bool) -> None:
    """A batch index beyond the epoch is an error with the number of batches."""
    count = 2 if drop_last else 3
    with pytest.raises(IndexError, match=f"Global batch {number} is not among the {count} from position 0 on"):
        global_batch_range(number, 4, 10, drop_last)


@fixed
@given(st.integers(0, 10**6), st.integers(0, 300), st.integers(1, 40))
def test_ranks_partition_a_global_batch(first: int, size: int, world: int) -> None:
    """Joined in rank order, the slices are the batch; the first ranks have at most one sample more."""
    positions = range(first, first + size)
    slices = [rank_slice(positions, rank, world) for rank in range(world)]
    assert [position for part in slices for position in part] == list(positions)
    sizes = [len(part) for part in slices]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize("rank", [-1, 4])
def test_ranks_outside_the_world_are_refused(rank: int) -> None:
    """A rank outside the world is an error."""
    with pytest.raises(IndexError, match=f"Rank {rank} is not in a world of 4"):
        rank_slice(range(8), rank, 4)


@fixed
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8), st.integers(0, 70), st.booleans())
def test_shards_partition_a_global_batch(first: int, each: int, world: int, size: int, in_blocks: bool) -> None:
    """Joined in rank order, the parts are the batch; in blocks they are the batches of a single process."""
    whole = each * world
    positions = range(first, first + min(size, whole))
    parts = [Shard(rank, world, in_blocks).of(positions, whole) for rank in range(world)]
    assert [position for part in parts for position in part] == list(positions)
    assert ALL.of(positions, whole) == positions
    if in_blocks:
        assert [list(part) for part in parts if part] == [
            list(positions[start : start + each]) for start in range(0, len(positions), each)
        ]
    else:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
