"""Random words, orders and keys derived from names."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.order import random_order, random_words, sample_key, sample_keys

NUMBERS = st.lists(st.integers(), max_size=4)

fixed = settings(derandomize=True, deadline=None)


@fixed
@given(NUMBERS, NUMBERS)
def test_different_names_have_different_words(one: list[int], other: list[int]) -> None:
    """Two lists of numbers have the same words exactly if they are equal."""
    assert (random_words(2, "order", *one) == random_words(2, "order", *other)) == (one == other)


def test_words_depend_on_the_separation_of_numbers() -> None:
    """Numbers whose digits concatenate to the same text, and one number for two purposes, have different words."""
    names = [("order", [1, 23]), ("order", [12, 3]), ("order", [123]), ("sample", [123])]
    assert len({random_words(1, purpose, *numbers) for purpose, numbers in names}) == 4


@fixed
@given(st.integers(0, 50), st.integers(0, 50))
def test_more_words_extend_fewer(fewer: int, more: int) -> None:
    """Requesting more words does not change the first ones, and each has 64 bits."""
    words = random_words(fewer + more, "order", 7)
    assert words[:fewer] == random_words(fewer, "order", 7)
    assert len(words) == fewer + more
    assert all(0 <= word < 2**64 for word in words)


def test_words_use_all_64_bits() -> None:
    """Each of the 64 bits is set in about half of many words."""
    words = random_words(4000, "order", 1)
    for bit in range(64):
        assert abs(sum(word >> bit & 1 for word in words) - 2000) < 160


@fixed
@given(st.integers(0, 300), st.integers())
def test_a_random_order_is_a_permutation(length: int, number: int) -> None:
    """A random order holds each index of range(length) once."""
    assert sorted(random_order(length, "batches", number)) == list(range(length))


def test_sample_keys_differ() -> None:
    """Seeds, epochs and positions each change a sample's key, and are not interchangeable."""
    keys = {
        sample_key(seed, epoch, position)
        for seed in (-1, 0, 1, 2**64, 2**64 - 1)
        for epoch in range(10)
        for position in range(50)
    }
    assert len(keys) == 5 * 10 * 50


@fixed
@given(st.integers(), st.integers(0, 2**40), st.lists(st.integers(0, 2**70), max_size=5))
def test_batched_keys_equal_single_keys(seed: int, epoch: int, positions: list[int]) -> None:
    """Keys are the words of the samples' names, computed one by one or in a batch."""
    keys = [random_words(1, "sample", seed, epoch, position)[0] for position in positions]
    assert list(sample_keys(seed, epoch, positions)) == keys
    assert [sample_key(seed, epoch, position) for position in positions] == keys


def test_words_are_stable() -> None:
    """Words, orders and keys equal those used by runs of earlier versions."""
    assert random_words(2, "order", -1, 255) == (6584441187856668492, 4598856388487945566)
    assert random_order(6, "batches", 7) == (4, 5, 3, 2, 1, 0)
    assert sample_key(42, 3, 10_000_000) == 2936125463192296067
