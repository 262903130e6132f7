"""Chi-square tests of whole orders of n samples, each against the exact mean under uniformly random orders.

Every test returns a two-sided probability, with a Bonferroni correction if it makes several comparisons: it is small
both if counts are too uneven and if they are too even, since a lattice (an affine map) deviates in either direction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

Orders = Sequence[Sequence[int]]


def probability(statistic: float, degrees: int) -> float:
    """Return the two-sided tail of chi-square with `degrees` of freedom, by Wilson and Hilferty's cube root (1931)."""
    variance = 2 / (9 * degrees)
    deviation = ((statistic / degrees) ** (1 / 3) - (1 - variance)) / math.sqrt(variance)
    return math.erfc(abs(deviation) / math.sqrt(2))


def deviation(counts: Iterable[int], cells: int, expected: float) -> float:
    """Return Pearson's statistic of `cells` equally likely cells, of which `counts` lists the non-empty ones."""
    filled = list(counts)
    return (sum((count - expected) ** 2 for count in filled) + (cells - len(filled)) * expected**2) / expected


def uniform(values: Sequence[int], bound: int, cells: int) -> float:
    """Test whether independent values are uniform on `cells` equal parts of range(bound)."""
    counts = Counter(value * cells // bound for value in values)
    return probability(deviation(counts.values(), cells, len(values) / cells), cells - 1)


def positions(orders: Orders, blocks: int) -> float:
    """Test whether the samples of each block of indices are uniform over all blocks of positions; `blocks` divides n.

    Tests all orders together and the most extreme one. A table with fixed margins is hypergeometric, which makes the
    statistic larger by n / (n - 1).
    """
    length = len(orders[0])
    size = length // blocks
    tables = [Counter((at // size, index // size) for at, index in enumerate(order)) for order in orders]

    def evenness(table: Counter[tuple[int, int]], times: int) -> float:
        statistic = deviation(table.values(), blocks**2, times * size**2 / length)
        return probability(statistic * (length - 1) / length, (blocks - 1) ** 2)

    together = Counter[tuple[int, int]]()
    for table in tables:
        together.update(table)
    oddest = min(evenness(table, 1) for table in tables)
    return min(1.0, 2 * min(evenness(together, len(orders)), len(orders) * oddest))


def successive(orders: Orders, blocks: int) -> float:
    """Test whether the samples of each block of positions are uniform over all position blocks of the next order."""
    places = [{index: at for at, index in enumerate(order)} for order in orders]
    moves = [[place[index] for index in order] for order, place in zip(orders[:-1], places[1:], strict=True)]
    return positions(moves, blocks)


def neighbours(orders: Orders, apart: int = 1) -> float:
    """Test whether all differences (modulo n) of indices whose positions are `apart` are equally frequent.

    Over the cyclic differences of one order, each of variance E (1 + 1 / ((n - 1) (n - 2))) about E = n / (n - 1), the
    mean of the statistic is n - 1 to within 1 / (n - 2), not n - 2.
    """
    length = len(orders[0])
    counts = Counter(
        (order[(at + apart) % length] - index) % length for order in orders for at, index in enumerate(order)
    )
    statistic = deviation(counts.values(), length - 1, len(orders) * length / (length - 1))
    return probability(statistic * (length - 2) / (length - 1), length - 2)


def shared_batches(orders: Orders, batch: int) -> float:
    """Test whether samples d indices apart (modulo n) share a batch equally often for each d.

    n is odd, and `batch` divides it. Two samples meet with p = (b - 1) / (n - 1). As every sample has b - 1 companions
    in every order, the counts of pairs have n (n - 3) / 2 degrees of freedom and so the variance p (1 - p) (n - 1) / (n
    - 3) in each of them; the n pairs of one d are orthogonal to the constraint except for the sum over all d.
    """
    length = len(orders[0])
    counts: Counter[int] = Counter()
    for order in orders:
        for start in range(0, length, batch):
            for one, other in combinations(order[start : start + batch], 2):
                distance = abs(one - other)
                counts[min(distance, length - distance)] += 1
    meeting = (batch - 1) / (length - 1)
    expected = len(orders) * length * meeting
    scale = (1 - meeting) * (length - 1) / (length - 3)
    distances = (length - 1) // 2
    return probability(deviation(counts.values(), distances, expected) / scale, distances - 1)


def rates(orders: Orders) -> float:
    """Test whether each of the n! orders occurs equally often."""
    every = math.factorial(len(orders[0]))
    counts = Counter(tuple(order) for order in orders)
    return probability(deviation(counts.values(), every, len(orders) / every), every - 1)


def stretch(values: Sequence[int], bound: int, cells: int) -> tuple[float, float]:
    """Test whether a stretch of an order of `bound` samples and its neighbour differences are uniform on
    range(bound).
    """
    steps = [(after - before) % bound for before, after in pairwise(values)]
    return uniform(values, bound, cells), uniform(steps, bound, cells)
