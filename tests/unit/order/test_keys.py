"""Words, orders and keys by name."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.order.permutation import random_order, random_words, sample_key, sample_keys

NUMBERS = st.lists(st.integers(), max_size=4)

fixed = settings(derandomize=True, deadline=None)


@fixed
@given(NUMBERS, NUMBERS)
def test_words_tell_names_apart(one: list[int], other: list[int]) -> None:
    """Two lists of numbers have the same words exactly where they are the same list."""
    assert (random_words(2, "order", *one) == random_words(2, "order", *other)) == (one == other)


def test_words_tell_digits_apart() -> None:
    """Numbers whose digits join to the same text, and one number for two purposes, have different words."""
    names = [("order", [1, 23]), ("order", [12, 3]), ("order", [123]), ("sample", [123])]
    assert len({random_words(1, purpose, *numbers) for purpose, numbers in names}) == 4


@fixed
@given(st.integers(0, 50), st.integers(0, 50))
def test_more_words_begin_with_the_fewer(fewer: int, more: int) -> None:
    """Asking for more words does not change the first ones, and each fits in 64 bits."""
    words = random_words(fewer + more, "order", 7)
    assert words[:fewer] == random_words(fewer, "order", 7)
    assert len(words) == fewer + more
    assert all(0 <= word < 2**64 for word in words)


def test_words_fill_their_64_bits() -> None:
    """Each of the 64 bits is set in about half of many words."""
    words = random_words(4000, "order", 1)
    for bit in range(64):
        assert abs(sum(word >> bit & 1 for word in words) - 2000) < 160


@fixed
@given(st.integers(0, 300), st.integers())
def test_a_random_order_holds_each_index_once(length: int, number: int) -> None:
    """A random order is one of the orders of range(length)."""
    assert sorted(random_order(length, "batches", number)) == list(range(length))


def test_sample_keys_differ() -> None:
    """Seeds, epochs and positions each change a sample's key, and do not stand in for one another."""
    keys = {
        sample_key(seed, epoch, position)
        for seed in (-1, 0, 1, 2**64, 2**64 - 1)
        for epoch in range(10)
        for position in range(50)
    }
    assert len(keys) == 5 * 10 * 50


@fixed
@given(st.integers(), st.integers(0, 2**40), st.lists(st.integers(0, 2**70), max_size=5))
def test_keys_by_the_batch_are_those_of_the_samples(seed: int, epoch: int, positions: list[int]) -> None:
    """Whether keys are made one by one or together, they are the words under the samples' names."""
    keys = [random_words(1, "sample", seed, epoch, position)[0] for position in positions]
    assert list(sample_keys(seed, epoch, positions)) == keys
    assert [sample_key(seed, epoch, position) for position in positions] == keys


def test_names_keep_their_words() -> None:
    """Words, orders and keys are those that runs saved by earlier versions were made with."""
    assert random_words(2, "order", -1, 255) == (6584441187856668492, 4598856388487945566)
    assert random_order(6, "batches", 7) == (4, 5, 3, 2, 1, 0)
    assert sample_key(42, 3, 10_000_000) == 2936125463192296067
