from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.examples.trigram import NGram, tuned

few_bytes = st.binary(max_size=30) | st.lists(st.sampled_from(b"ab "), max_size=30).map(bytes)


@given(
    text=few_bytes,
    context=few_bytes,
    order=st.integers(1, 4),
    discount=st.floats(0.01, 1),
)
def test_probabilities_sum_to_one(text: bytes, context: bytes, order: int, discount: float) -> None:
    """After any context the probabilities are positive and sum to one."""
    model = NGram(text, order, discount)
    chances = [model.probability(byte, context) for byte in range(256)]
    assert math.fsum(chances) == pytest.approx(1)
    assert min(chances) > 0


def test_a_trigram_of_abab_by_hand() -> None:
    """What the definition gives for the text "abab" with a discount of one half, worked out on paper.

    Its trigrams are aba and bab; they end in the bigrams ba and ab, which end in the bytes a and b, each once.
    So one byte: (1 - 1/2) / 2 + (1/2 * 2 / 2) / 256 for a and for b, half of 1/256 for others.
    After one byte: b after a is (1 - 1/2) / 1 + 1/2 of that; after two bytes: 1/2 + 1/2 of what one byte says.
    """
    model = NGram(b"abab", order=3, discount=0.5)
    one = 1 / 4 + 1 / 512
    two = 1 / 2 + one / 2
    three = 1 / 2 + two / 2
    assert model.probability(ord("b"), b"") == pytest.approx(one)
    assert model.probability(ord("x"), b"") == pytest.approx(1 / 512)
    assert model.probability(ord("b"), b"a") == pytest.approx(two)
    assert model.probability(ord("a"), b"zab") == pytest.approx(three)
    assert model.probability(ord("a"), b"xx") == pytest.approx(one)
    assert model.bits_per_byte(b"aba") == pytest.approx(-(math.log2(two) + math.log2(three)) / 2)


def test_unigram_equals_byte_frequencies() -> None:
    """With a tiny discount, a unigram equals the byte frequencies: three quarters cost 0.415 bits."""
    model = NGram(b"aaab", order=1, discount=1e-9)
    assert model.bits_per_byte(b"aa") == pytest.approx(math.log2(4 / 3))


def test_untrained_model_needs_eight_bits_per_byte() -> None:
    """Without text every byte has the same probability."""
    assert NGram(b"").bits_per_byte(b"hello") == pytest.approx(8)


def test_more_context_helps_on_periodic_text() -> None:
    """A bigram predicts text with a period of four bytes, and a unigram does not."""
    text = b"abcd" * 50
    unigram, bigram = (NGram(text, order).bits_per_byte(text) for order in (1, 2))
    assert unigram > 1.9
    assert bigram < 0.3


def test_the_discount_is_chosen_on_the_last_tenth() -> None:
    """New bytes at the end give a high discount, none give a low one; counts use the whole text."""
    regular = "ab" * 100
    surprising = "ab" * 90 + "".join(map(chr, range(40, 60)))
    for text, discount in ((regular, 0.1), (surprising, 0.9)):
        model = tuned(text, order=2, discounts=(0.1, 0.9))
        expected = NGram(text.encode(), order=2, discount=discount)
        assert model.bits_per_byte(text.encode()) == pytest.approx(expected.bits_per_byte(text.encode()), rel=1e-12)
