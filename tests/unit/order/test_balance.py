"""The samples of a step are divided so that the most expensive micro-batch is as cheap as possible."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.order import balanced_sizes, batch_cost

fixed = settings(derandomize=True, deadline=None)


def most_expensive(lengths: list[int], starts: list[int]) -> int:
    return max(batch_cost(stop - start, lengths[start]) for start, stop in pairwise([*starts, len(lengths)]))


@fixed
@given(st.lists(st.integers(0, 60), min_size=1, max_size=9), st.data())
def test_no_other_division_is_cheaper(lengths: list[int], data: st.DataObject) -> None:
    """Compared with every division of the sorted samples into as many batches of neighbors."""
    lengths.sort(reverse=True)
    batches = data.draw(st.integers(1, len(lengths)))
    sizes = balanced_sizes(lengths, batches)
    cuts = combinations(range(1, len(lengths)), batches - 1)
    cheapest = min(most_expensive(lengths, [0, *each]) for each in cuts)

    assert (len(sizes), sum(sizes), min(sizes) > 0) == (batches, len(lengths), True)
    assert most_expensive(lengths, [sum(sizes[:number]) for number in range(batches)]) == cheapest


@fixed
@given(st.integers(1, 300), st.integers(1, 12))
def test_equal_lengths_are_divided_evenly(samples: int, batches: int) -> None:
    """No batch is larger than it has to be."""
    if samples >= batches:
        assert max(balanced_sizes([7] * samples, batches)) == -(-samples // batches)


def test_long_samples_are_in_small_batches() -> None:
    """The cost of a batch grows faster than its number of tokens."""
    assert balanced_sizes([1000] * 2 + [100] * 14, 2) == [2, 14]
    assert batch_cost(1, 2000) == 3 * batch_cost(1, 1000)


@pytest.mark.parametrize("batches", [0, 4])
def test_a_batch_has_at_least_one_sample(batches: int) -> None:
    """So that every process takes part in every step."""
    with pytest.raises(ValueError, match="3 samples cannot be divided"):
        balanced_sizes([3, 2, 1], batches)
