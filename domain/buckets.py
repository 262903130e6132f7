"""Buckets: the few lengths to which batches of sequences are padded, so that they have few shapes and little padding.

Every batch is padded to the shortest planned length that fits it. Which lengths add the least padding is the assortment
problem: Sadowski, "A few remarks on the assortment problem" (Management Science 6, 1959).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from attrs import define, field, frozen

MOST_CLASSES = 4096
"""How many lengths are told apart. If there are more, neighbors count as the longer one."""

Sizes = tuple[int, ...]
"""The lengths of a sample's sequences, such as those of its inputs and of its labels."""


@define
class LengthClass:
    """Samples of nearly the same length.

    Args:
        length: of the longest one.
        samples: how many there are.
        batches: how many batches have their longest sample here.
        sizes: the largest of each of their sizes.
    """

    length: int
    samples: int
    batches: int
    sizes: Sizes

    def merge(self, other: LengthClass) -> None:
        """Add the samples of another class.

        Args:
            other: the class to add.
        """
        self.length = max(self.length, other.length)
        self.samples += other.samples
        self.batches += other.batches
        if self.sizes != other.sizes:
            self.sizes = tuple(map(max, self.sizes, other.sizes))


@define
class LengthCounts:
    """How many samples have which length, in at most `most` classes, whatever the number of samples.

    The classes depend on the lengths alone, and not on the order in which they are added.

    Args:
        most: the largest number of classes.
    """

    most: int = MOST_CLASSES
    _width: int = field(default=1, init=False)
    _by_key: dict[int, LengthClass] = field(factory=dict, init=False)

    def add(self, length: int, sizes: Sizes) -> None:
        """Count a sample.

        Args:
            length: the length of the sample.
            sizes: the sizes of its sequences.
        """
        self._add(LengthClass(length, 1, 0, sizes))
        while len(self._by_key) > self.most:
            known, self._by_key = self._by_key.values(), {}
            self._width *= 2
            for each in known:
                self._add(each)

    def add_batch(self, longest: int) -> None:
        """Count a batch whose longest sample has the length of a sample that was added.

        Args:
            longest: the longest sample of the batch.
        """
        self._by_key[self._key(longest)].batches += 1

    def classes(self) -> list[LengthClass]:
        """Return the classes in ascending order of length."""
        return [each for _, each in sorted(self._by_key.items())]

    def _add(self, new: LengthClass) -> None:
        known = self._by_key.setdefault(self._key(new.length), new)
        if known is not new:
            known.merge(new)

    def _key(self, length: int) -> int:
        return -(-length // self._width)


def fingerprint(classes: Sequence[LengthClass]) -> str:
    """Return 16 hexadecimal digits that depend on the sizes of the samples, and how many have them.

    Args:
        classes: in ascending order of length.
    """
    counted = Counter[Sizes]()
    for each in classes:
        counted[each.sizes] += each.samples
    return hashlib.blake2b(repr(sorted(counted.items())).encode(), digest_size=8).hexdigest()


@frozen
class BucketPlan:
    """The buckets of a data set.

    Args:
        buckets: the sizes to which the sequences of a batch are padded, in ascending order; the last ones fit every
            batch.
        added: how much longer batches are expected to be than without buckets; 0.1 is a tenth.
    """

    buckets: tuple[Sizes, ...]
    added: float


def plan_buckets(classes: Sequence[LengthClass], most: int, rows: int | None = None) -> BucketPlan:
    """Return at most `most` buckets that are expected to add the least padding to batches.

    A bucket that ends with a class has the largest sizes up to there, so that it fits every batch of samples that are
    not longer.

    Args:
        classes: at least one, in ascending order of length.
        most: how many there are at most.
        rows: samples of a batch that are drawn at random; None if the batches were counted.

    Raises:
        ValueError: without a class or a bucket.
    """
    if not classes or most < 1:
        raise ValueError("A plan needs at least one class of lengths and one bucket.")
    sizes = list(accumulate((each.sizes for each in classes), lambda one, other: tuple(map(max, one, other))))
    counts = [each.samples for each in classes]
    weights = [float(each.batches) for each in classes] if rows is None else chances_of_longest(counts, rows)
    costs = [sum(each) for each in sizes]
    ends = best_ends(weights, costs, most)
    planned, first = 0.0, 0
    for end in ends:
        planned, first = planned + sum(weights[first : end + 1]) * costs[end], end + 1
    least = sum(weight * cost for weight, cost in zip(weights, costs, strict=True))
    return BucketPlan(tuple(sizes[end] for end in ends), planned / least - 1 if least else 0.0)


NEGLIGIBLE = 1e-18
"""A chance that is too small to change a sum of chances."""


def chances_of_longest(samples: Sequence[int], rows: int) -> list[float]:
    """Return, for each class, the chance that the longest of `rows` samples, drawn without repeating one, is in it.

    Of n samples, n_i of them in the classes up to i, none of the drawn ones is beyond class i with the chance
    C(n_i, rows) / C(n, rows).

    Args:
        samples: how many are in each class, in ascending order of length.
        rows: how many samples a batch has.
    """
    total = sum(samples)
    up_to = [_chance_of_all(reached, total, min(rows, total)) for reached in accumulate(samples)]
    return [later - earlier for earlier, later in zip([0.0, *up_to], up_to, strict=False)]


def _chance_of_all(some: int, total: int, rows: int) -> float:
    """Return the chance that `rows` of `total` samples, drawn without repeating one, are all among `some` of them."""
    chance = 1.0
    for drawn in range(rows):
        chance *= (some - drawn) / (total - drawn)
        if chance < NEGLIGIBLE:
            return 0.0
    return chance


def best_ends(weights: Sequence[float], costs: Sequence[int], most: int) -> list[int]:
    """Return the classes with which the buckets end, so that the sum of weight times cost is the least.

    Each class has the cost of the end of its bucket. Of equal sums, the one with the fewest buckets counts.

    This is a dynamic programme over the number of buckets, exact apart from rounding. The weight that lies between two
    classes times the cost of the latter has the Monge property, so that the start of the last bucket moves only forward
    with its end, and another bucket never helps more than the one before. That makes the programme O(most * n log n):
    Wu, "Optimal quantization by matrix searching" (Journal of Algorithms 12, 1991).

    Args:
        weights: the number of batches in each class.
        costs: the cost of a batch of each class, in ascending order.
        most: how many there are at most.
    """
    reached = [0.0, *accumulate(weights)]
    least = [0.0, *(weight * cost for weight, cost in zip(reached[1:], costs, strict=True))]
    starts = [[0] * len(least)]
    for buckets in range(2, min(most, len(costs)) + 1):
        with_one_more, begins = _with_one_more(least, reached, costs, buckets)
        if with_one_more[-1] >= least[-1]:
            break
        least = with_one_more
        starts.append(begins)
    ends, at = list[int](), len(costs)
    for begins in reversed(starts):
        ends.append(at - 1)
        at = begins[at]
    return ends[::-1]


def _with_one_more(
    least: Sequence[float], reached: Sequence[float], costs: Sequence[int], buckets: int
) -> tuple[list[float], list[int]]:
    """Return the least sums of the first 0, 1, 2, ... classes in so many `buckets`, and where the last one starts.

    least: the sums with one bucket less. It divides and conquers: the start of a class in the middle bounds those of
    the classes before and after it.
    """
    sums, starts = [math.inf] * len(least), [0] * len(least)
    waiting = [(buckets, len(costs), buckets - 1, len(costs) - 1)]
    while waiting:
        low, high, first, last = waiting.pop()
        if low > high:
            continue
        middle = (low + high) // 2
        cost, weight = costs[middle - 1], reached[middle]
        for start in range(first, min(last, middle - 1) + 1):
            found = least[start] + (weight - reached[start]) * cost
            if found < sums[middle]:
                sums[middle], starts[middle] = found, start
        waiting += [(low, middle - 1, first, starts[middle]), (middle + 1, high, starts[middle], last)]
    return sums, starts
