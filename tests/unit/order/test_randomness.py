"""The keyed permutation passes statistical tests that a true shuffle passes and an affine map fails."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from hexloop.domain.order import MAX_TABLE_LENGTH, KeyedPermutation
from tests.unit.order import chi_square

Make = Callable[[int, int], Sequence[int]]
"""The order of n samples under the k-th key: (k, n) -> order."""

DOUBTFUL = 1e-4

# Odd products of two factors, for the blocks and the batches of the tests: a table and a network of 34 x 34 cells.
SHORT, SHORT_FACTOR, SHORT_KEYS = 35, 7, 1500
LONG, LONG_FACTOR, LONG_KEYS = 1147, 31, 60

SIZES = pytest.mark.parametrize(
    ("length", "factor", "keys"), [(SHORT, SHORT_FACTOR, SHORT_KEYS), (LONG, LONG_FACTOR, LONG_KEYS)]
)


def over_seeds(key: int, length: int) -> Sequence[int]:
    return list(KeyedPermutation(key, 0, length))


def over_epochs(key: int, length: int) -> Sequence[int]:
    return list(KeyedPermutation(42, key, length))


def true_shuffle(key: int, length: int) -> Sequence[int]:
    order = list(range(length))
    random.Random(key).shuffle(order)
    return order


def affine_map(key: int, length: int) -> Sequence[int]:
    factor, offset = affine_key(key, length)
    return [(factor * position + offset) % length for position in range(length)]


def affine_key(key: int, length: int) -> tuple[int, int]:
    draw = random.Random(key)
    factor = draw.randrange(1, length)
    while math.gcd(factor, length) > 1:
        factor = draw.randrange(1, length)
    return factor, draw.randrange(length)


def probabilities(make: Make, length: int, factor: int, keys: int) -> dict[str, float]:
    """Return the probability of every test of whole orders."""
    orders = [make(key, length) for key in range(keys)]
    return {
        "positions": chi_square.positions(orders, factor),
        "successive orders": chi_square.successive(orders, factor),
        "neighbours": chi_square.neighbours(orders),
        "neighbours in a column of the network": chi_square.neighbours(orders, math.isqrt(length - 1) + 1),
        "shared batches": chi_square.shared_batches(orders, factor),
    }


KEYED = pytest.mark.parametrize("make", [over_seeds, over_epochs])


@KEYED
@SIZES
def test_orders_are_random(make: Make, length: int, factor: int, keys: int) -> None:
    """Positions, neighbours and companions in a batch are distributed as in random orders, over seeds and epochs."""
    found = probabilities(make, length, factor, keys)
    assert {name: value for name, value in found.items() if value < DOUBTFUL} == {}


@SIZES
def test_a_true_shuffle_passes(length: int, factor: int, keys: int) -> None:
    """The standard library's shuffle passes all tests."""
    found = probabilities(true_shuffle, length, factor, keys)
    assert {name: value for name, value in found.items() if value < DOUBTFUL} == {}


@SIZES
def test_an_affine_map_fails(length: int, factor: int, keys: int) -> None:
    """Every one of the tests rejects an affine map."""
    found = probabilities(affine_map, length, factor, keys)
    assert {name: value for name, value in found.items() if value >= DOUBTFUL} == {}


@KEYED
@pytest.mark.parametrize("length", [2, 3, 4, 5, 6])
def test_all_short_orders_are_equally_frequent(make: Make, length: int) -> None:
    """Up to length 6 each of the n! orders is equally frequent."""
    assert chi_square.rates([make(key, length) for key in range(20_000)]) > DOUBTFUL


@pytest.mark.parametrize("length", [4, 5, 6])
def test_an_affine_map_misses_short_orders(length: int) -> None:
    """The test of frequencies rejects an affine map, which has only a few of the n! orders."""
    assert chi_square.rates([affine_map(key, length) for key in range(20_000)]) < DOUBTFUL


@pytest.mark.parametrize("length", [MAX_TABLE_LENGTH + 1, 10**8, 2**40 + 1, 2**62])
def test_one_position_of_a_long_order_is_uniform_over_keys(length: int) -> None:
    """At one position every part of a long data set is equally frequent, over seeds and over epochs."""
    for position in (0, length // 3, length - 1):
        over_seeds = [KeyedPermutation(seed, 0, length)[position] for seed in range(2000)]
        over_epochs = [KeyedPermutation(42, epoch, length)[position] for epoch in range(2000)]
        assert chi_square.uniform(over_seeds, length, 40) > DOUBTFUL
        assert chi_square.uniform(over_epochs, length, 40) > DOUBTFUL


@pytest.mark.parametrize("length", [10**8, 2**40 + 1, 2**62])
def test_a_stretch_of_a_long_order_is_random(length: int) -> None:
    """Within one long order the samples of a stretch, and the differences of neighbours, are uniform."""
    order = KeyedPermutation(3, 5, length)
    for start in (0, length // 2, length - 8000):
        assert min(chi_square.stretch(order.block(start, start + 8000), length, 97)) > DOUBTFUL


@pytest.mark.parametrize("length", [10**8, 2**40 + 1, 2**62])
def test_a_stretch_of_an_affine_map_is_rejected(length: int) -> None:
    """The test of a stretch rejects an affine map by its differences and by its evenness."""
    factor, offset = affine_key(1, length)
    values = [(factor * position + offset) % length for position in range(8000)]
    assert max(chi_square.stretch(values, length, 97)) < DOUBTFUL


@pytest.mark.matrix
@KEYED
@pytest.mark.parametrize(
    ("length", "factor", "keys"), [(1025, 41, 600), (1369, 37, 400), (4941, 81, 80), (20_301, 67, 12)]
)
def test_orders_are_random_at_length(make: Make, length: int, factor: int, keys: int) -> None:
    """Orders with ten times as many samples pass the tests of whole orders too."""
    found = probabilities(make, length, factor, keys)
    assert {name: value for name, value in found.items() if value < DOUBTFUL} == {}
