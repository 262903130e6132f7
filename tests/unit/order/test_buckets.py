"""Planned lengths: at most as many as allowed, every sample fits, and no other plan pads batches less."""

from __future__ import annotations

import math
import random
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.buckets import LengthClass, LengthCounts, best_ends, chances_of_longest, fingerprint, plan_buckets

fixed = settings(derandomize=True, deadline=None)
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=40)


def counted(lengths: list[int], most: int = 4096) -> list[LengthClass]:
    """Return the classes of samples with one sequence."""
    counts = LengthCounts(most)
    for length in lengths:
        counts.add(length, (length,))
    return counts.classes()


def padded(lengths: list[int], planned: list[int]) -> int:
    """Return the sum of the lengths after each is padded to the first planned length that fits it."""
    return sum(next(room for room in planned if room >= length) for length in lengths)


@fixed
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1, max_size=8), st.integers(1, 6))
def test_no_other_buckets_cost_less(classes: list[tuple[int, int]], most: int) -> None:
    """Of all ways to end the buckets, the planned one costs the least, with the fewest buckets."""
    weights, costs = [weight for weight, _ in classes], sorted(cost for _, cost in classes)

    def cost(ends: tuple[int, ...]) -> int:
        starts = (0, *(end + 1 for end in ends))
        return sum(sum(weights[start : end + 1]) * costs[end] for start, end in zip(starts, ends, strict=False))

    last = len(classes) - 1
    others = [(*ends, last) for number in range(min(most, len(classes))) for ends in combinations(range(last), number)]
    ends = tuple(best_ends(weights, costs, most))
    least = min(map(cost, others))

    assert ends in others
    assert cost(ends) == least
    assert len(ends) == min(len(each) for each in others if cost(each) == least)


@fixed
@given(LENGTHS, st.integers(1, 8))
def test_the_plan_of_single_samples_is_the_best(lengths: list[int], most: int) -> None:
    """With one sample in a batch: at most so many lengths, of which the last is the longest, and the least padding."""
    plan = plan_buckets(counted(lengths), most, rows=1)
    planned, known = [size for (size,) in plan.buckets], sorted(set(lengths))

    assert len(planned) <= most
    assert planned == sorted(set(planned) & set(known))
    assert planned[-1] == known[-1]
    others = [
        sorted({*chosen, known[-1]})
        for number in range(min(most, len(known)))
        for chosen in combinations(known[:-1], number)
    ]
    assert padded(lengths, planned) == min(padded(lengths, each) for each in others)
    if sum(lengths):
        assert plan.added == pytest.approx(padded(lengths, planned) / sum(lengths) - 1)


@fixed
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 7))
def test_chances_are_those_of_all_draws(samples: list[int], rows: int) -> None:
    """The chance that the longest of some samples is in a class, counted over all ways to draw them."""
    every = [number for number, count in enumerate(samples) for _ in range(count)]
    if not every:
        return
    draws = list(combinations(every, min(rows, len(every))))
    expected = [sum(max(draw) == number for draw in draws) / len(draws) for number in range(len(samples))]

    assert chances_of_longest(samples, rows) == pytest.approx(expected)


def test_large_batches_get_the_longest_lengths() -> None:
    """Nearly all batches of 64 random samples hold a long one, so that the planned lengths are near the longest."""
    lengths = [1 + number % 100 for number in range(10_000)]
    alone = plan_buckets(counted(lengths), 3, rows=1)
    together = plan_buckets(counted(lengths), 3, rows=64)

    assert [size for (size,) in alone.buckets] == pytest.approx([34, 67, 100], abs=1)
    assert min(size for (size,) in together.buckets) > 90
    assert together.added < 0.02 < alone.added
    assert math.fsum(chances_of_longest([each.samples for each in counted(lengths)], 64)) == pytest.approx(1)


MANY_LENGTHS = st.lists(st.integers(1, 10_000), min_size=1, max_size=200)


@fixed
@given(MANY_LENGTHS, st.integers(1, 20), st.integers())
def test_classes_are_bounded_and_do_not_depend_on_the_order(lengths: list[int], most: int, seed: int) -> None:
    """Neighbors share a class, whose length is that of its longest sample; no sample is lost."""
    classes = counted(lengths, most)
    shuffled = random.Random(seed).sample(lengths, len(lengths))

    assert len(classes) <= most
    assert sum(each.samples for each in classes) == len(lengths)
    assert {each.length for each in classes} <= set(lengths)
    assert classes == sorted(classes, key=lambda each: each.length)
    assert classes[-1].length == max(lengths)
    assert counted(shuffled, most) == classes
    assert fingerprint(counted(shuffled, most)) == fingerprint(classes)


def test_neighbors_share_a_class_if_there_are_too_many_lengths() -> None:
    """Classes are widened twofold until they are few enough; they keep all samples, and the longest of each size."""
    assert [(each.length, each.samples) for each in counted([*range(1, 11), 9], 3)] == [(4, 4), (8, 4), (10, 3)]
    counts = LengthCounts(most=2)
    for inputs, labels in [(1, 9), (2, 1), (4, 3), (3, 7)]:
        counts.add(inputs, (inputs, labels))
    assert [each.sizes for each in counts.classes()] == [(2, 9), (4, 7)]
    counts.add_batch(3)
    assert [each.batches for each in counts.classes()] == [0, 1]


def test_few_lengths_are_told_apart() -> None:
    """Each has a class of its own; other lengths have another fingerprint."""
    assert [(each.length, each.samples) for each in counted([3, 1, 3, 2])] == [(1, 1), (2, 1), (3, 2)]
    assert fingerprint(counted([3, 1, 3, 2])) != fingerprint(counted([3, 1, 2, 2]))


def test_further_sequences_get_the_longest_that_occurs() -> None:
    """A bucket has room for the longest labels of all samples whose inputs fit it."""
    counts = LengthCounts()
    for inputs, labels in [(2, 9), (3, 1), (8, 4), (9, 12)]:
        counts.add(inputs, (inputs, labels))

    assert plan_buckets(counts.classes(), 4, rows=1).buckets == ((2, 9), (3, 9), (8, 9), (9, 12))
    assert plan_buckets(counts.classes(), 1, rows=1).buckets == ((9, 12),)


def test_batches_in_order_are_counted() -> None:
    """The plan is that of the longest samples of the batches, and not of all samples."""
    counts = LengthCounts()
    for length in [1, 2, 3, 10, 11, 12]:
        counts.add(length, (length,))
    for longest in [12, 12, 3]:
        counts.add_batch(longest)

    assert plan_buckets(counts.classes(), 2).buckets == ((3,), (12,))
    assert plan_buckets(counts.classes(), 6).added == 0


@pytest.mark.parametrize(("classes", "most"), [([], 1), ([LengthClass(1, 1, 0, (1,))], 0)])
def test_a_plan_needs_samples_and_buckets(classes: Any, most: int) -> None:
    with pytest.raises(ValueError, match="at least one class of lengths and one bucket"):
        plan_buckets(classes, most)
