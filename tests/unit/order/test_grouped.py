"""Grouping by length keeps the samples of each window and batches samples of similar length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.order import GroupedByLength, KeyedPermutation, sample_key

fixed = settings(derandomize=True, deadline=None)


def length_of(index: int) -> int:
    """Return lengths from 1 to 100 with many ties."""
    return sample_key(0, 0, index) % 100 + 1


def grouped(samples: int, global_batch: int, seed: int = 0, epoch: int = 0) -> GroupedByLength:
    return GroupedByLength(KeyedPermutation(seed, epoch, samples), global_batch, length_of)


def batches(indices: Sequence[int], global_batch: int) -> list[list[int]]:
    """Return the lengths of the samples, batch by batch."""
    return [
        [length_of(index) for index in indices[start : start + global_batch]]
        for start in range(0, len(indices), global_batch)
    ]


@fixed
@given(st.integers(0, 1500), st.integers(1, 40), st.integers(0, 5))
def test_each_sample_occurs_once(samples: int, global_batch: int, epoch: int) -> None:
    """Grouping keeps every sample exactly once, for any number of samples and any batch size."""
    order = grouped(samples, global_batch, epoch=epoch)
    assert len(order) == samples
    assert sorted(order) == list(range(samples))


@fixed
@given(st.integers(1, 1500), st.integers(1, 40), st.integers(0, 5))
def test_batches_of_a_window_have_disjoint_lengths(samples: int, global_batch: int, epoch: int) -> None:
    """A window has the samples of its part of the keyed order, sorted by length into whole batches and a rest."""
    order = grouped(samples, global_batch, epoch=epoch)
    size = global_batch * max(1, min(50, samples // (4 * global_batch)))
    for start in range(0, samples, size):
        stop = min(start + size, samples)
        window = order.block(start, stop)
        assert sorted(window) == sorted(order.order.block(start, stop))
        cut = sorted(batches(window, global_batch), key=lambda lengths: (len(lengths), min(lengths), max(lengths)))
        if len(cut[0]) < global_batch:
            assert cut[0] == batches(window, global_batch)[-1]
        for shorter, longer in pairwise(cut):
            assert max(shorter) <= min(longer)
        assert all(lengths == sorted(lengths, reverse=True) for lengths in cut)


@pytest.mark.parametrize(("samples", "batches_in_window"), [(4, 1), (32, 2), (796, 49), (804, 50), (4000, 50)])
def test_a_window_is_50_batches_or_a_quarter_of_the_epoch(samples: int, batches_in_window: int) -> None:
    """A window has 50 global batches, or a quarter of the epoch's, and asks for each of its lengths once."""
    counts: Counter[int] = Counter()

    def count(index: int) -> int:
        counts[index] += 1
        return length_of(index)

    order = GroupedByLength(KeyedPermutation(7, 0, samples), 4, count)
    size = 4 * batches_in_window
    for position in (1, 0, size - 1):
        order[position]
    assert counts == Counter(order.order.block(0, size))


def test_a_position_does_not_depend_on_earlier_accesses() -> None:
    """Random access across windows returns what sequential access returns."""
    in_turn = list(grouped(1000, 4))
    order = grouped(1000, 4)
    jumping = {
        position: order[position] for position in sorted(range(1000), key=lambda position: position * 377 % 1000)
    }
    assert [jumping[position] for position in range(1000)] == in_turn


def test_the_first_batch_is_the_longest_of_its_window() -> None:
    """The epoch starts with the longest samples of its first window, for every seed."""
    for seed in range(20):
        cut = batches(grouped(1000, 4, seed).block(0, 200), 4)
        assert cut[0] == sorted((length for batch in cut for length in batch), reverse=True)[:4]


def test_the_other_batches_are_shuffled() -> None:
    """The longest batch of a later window is equally likely at each position, and windows and epochs differ."""
    places: Counter[int] = Counter()
    for seed in range(10):
        for epoch in range(10):
            order = grouped(1000, 4, seed, epoch)
            for window in (200, 400, 600):
                longest = [sum(lengths) for lengths in batches(order.block(window, window + 200), 4)]
                places[longest.index(max(longest)) // 10] += 1
    assert places.total() == 300
    assert all(35 < places[fifth] < 85 for fifth in range(5))


def test_the_second_batch_of_an_epoch_is_random() -> None:
    """After the longest batch the first window continues with any of its others."""
    means = {sum(batches(grouped(1000, 4, seed).block(4, 8), 4)[0]) // 100 for seed in range(40)}
    assert len(means) == 4


def test_padding_is_small() -> None:
    """Batches padded to their longest sample need a small part of the padding of the keyed order."""

    def padding(indices: Sequence[int]) -> int:
        return sum(max(lengths) * len(lengths) - sum(lengths) for lengths in batches(indices, 8))

    order = grouped(4000, 8)
    assert padding(order.block(0, 4000)) < 0.1 * padding(order.order.block(0, 4000))


def test_an_empty_global_batch_is_refused() -> None:
    """A global batch has at least one sample."""
    with pytest.raises(ValueError, match="global_batch"):
        grouped(10, 0)


def test_positions_outside_the_epoch_are_refused() -> None:
    """A position after the last is an error."""
    with pytest.raises(IndexError, match="Position 10 is outside"):
        grouped(10, 2)[10]
