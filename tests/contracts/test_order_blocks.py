"""Vectorized sample orders equal those of the domain, index for index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hexloop.adapters.batches.torch.order import CHUNK, VectorisedPermutation
from hexloop.domain.order import MAX_LENGTH, MAX_TABLE_LENGTH, GroupedByLength, KeyedPermutation

KEYS = st.one_of(st.integers(-3, 3), st.integers(-(2**80), 2**80))
LENGTHS = st.one_of(
    st.integers(0, 20),
    st.integers(MAX_TABLE_LENGTH - 20, MAX_TABLE_LENGTH + 1000),
    st.integers(2**40 - 1000, 2**40 + 1000),
    st.integers(MAX_LENGTH - 1000, MAX_LENGTH),
    st.integers(0, MAX_LENGTH),
)

fixed = settings(derandomize=True, deadline=None)


def indices(seed: int, epoch: int, length: int, start: int, stop: int) -> NDArray[np.int64]:
    return VectorisedPermutation(seed, epoch, length).indices(start, stop)


@fixed
@given(KEYS, KEYS, LENGTHS, st.data())
def test_a_block_equals_the_domains(seed: int, epoch: int, length: int, data: st.DataObject) -> None:
    """Any block of any order of any length holds the indices of the domain as 64-bit integers."""
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, min(length, start + 300)))
    block = indices(seed, epoch, length, start, stop)
    assert block.dtype == np.int64
    assert block.tolist() == KeyedPermutation(seed, epoch, length).block(start, stop)
    assert VectorisedPermutation(seed, epoch, length).block(start, stop) == block.tolist()


@pytest.mark.parametrize("length", [1025, 2**15 + 1, 2**40, MAX_LENGTH])
def test_the_ends_of_an_epoch_equal_the_domains(length: int) -> None:
    """The first and the last indices of an epoch are the domain's."""
    for start, stop in ((0, 500), (length - 500, length)):
        assert indices(1, 2, length, start, stop).tolist() == KeyedPermutation(1, 2, length).block(start, stop)


def test_a_block_longer_than_a_chunk_equals_the_domains() -> None:
    """If a block is computed in several chunks, nothing is lost or repeated between them."""
    stop = 5 + 2 * CHUNK + 17
    assert indices(9, 1, 2**33, 5, stop).tolist() == KeyedPermutation(9, 1, 2**33).block(5, stop)


@pytest.mark.parametrize("length", [10**5, 2**17, 2**20 + 1])
def test_a_whole_epoch_holds_each_sample_once(length: int) -> None:
    """A long epoch computed in one block is a bijection."""
    assert np.array_equal(np.sort(indices(0, 0, length, 0, length)), np.arange(length))


@pytest.mark.matrix
def test_every_length_is_a_bijection() -> None:
    """At every length up to 5000 each sample occurs exactly once."""
    for length in range(5001):
        assert np.array_equal(np.sort(indices(length, 1, length, 0, length)), np.arange(length))


@pytest.mark.parametrize("length", [10, 5000])
def test_blocks_outside_the_epoch_are_refused(length: int) -> None:
    """A block that starts before the epoch or ends after it is an error, as in the domain."""
    for start, stop in ((-1, 2), (length - 1, length + 1), (length, length + 1)):
        with pytest.raises(IndexError, match=rf"not all inside an epoch of {length} samples"):
            indices(0, 0, length, start, stop)
        with pytest.raises(IndexError):
            KeyedPermutation(0, 0, length).block(start, stop)


@pytest.mark.parametrize("start", [0, 3, 10, 5000])
def test_an_empty_block_is_empty(start: int) -> None:
    """A block of no positions is an empty array."""
    assert indices(0, 0, 5000, start, start).shape == (0,)


def test_grouping_by_length_is_the_same_over_blocks() -> None:
    """The order grouped by length is the same over vectorized permutations as over the domain's."""

    def length_of(index: int) -> int:
        return index * index % 97

    plain = GroupedByLength(KeyedPermutation(4, 2, 3000), 16, length_of)
    fast = GroupedByLength(VectorisedPermutation(4, 2, 3000), 16, length_of)
    assert list(fast) == list(plain)
