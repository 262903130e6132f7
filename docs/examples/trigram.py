"""The n-gram baseline of the language model: interpolated Kneser-Ney over bytes.

Source: Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling", section 4.1.6.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

SYMBOLS = 256


class NGram:
    """The probability of each byte given the `order - 1` bytes before it.

    What was seen `count` times after a context of `total` bytes gets `(count - discount) / total`; what the discounts
    free is spread as the model of one order less says, and below the lowest order evenly over all 256 bytes. Lower
    orders count in how many different contexts a sequence was seen, not how often: that is how well it fits a new one.

    order: 3 for a trigram. discount: above 0, so that no byte is impossible, and at most 1.
    """

    def __init__(self, text: bytes, order: int = 3, discount: float = 0.7) -> None:
        counts = Counter(text[end - order : end] for end in range(order, len(text) + 1))
        self.levels = [_Level(counts, discount)]
        while len(self.levels) < order:
            counts = Counter(sequence[1:] for sequence in counts)
            self.levels.append(_Level(counts, discount))

    def probability(self, byte: int, context: bytes) -> float:
        """Return the probability of `byte` (0 to 255) after `context`, of which the last `order - 1` bytes count."""
        order = len(self.levels)
        chance = 1 / SYMBOLS
        for level, length in zip(reversed(self.levels), range(min(order, len(context) + 1)), strict=False):
            chance = level.probability(byte, context[len(context) - length :], chance)
        return chance

    def bits_per_byte(self, text: bytes) -> float:
        """Return the mean of -log2(probability) over all bytes of `text` except the first."""
        reach = len(self.levels) - 1
        bits = (-math.log2(self.probability(text[at], text[max(0, at - reach) : at])) for at in range(1, len(text)))
        return sum(bits) / (len(text) - 1)


class _Level:
    """One order of the model: its counts, and for each context their sum and their number."""

    def __init__(self, counts: Counter[bytes], discount: float) -> None:
        self.counts, self.discount = counts, discount
        self.totals: Counter[bytes] = Counter()
        for sequence, count in counts.items():
            self.totals[sequence[:-1]] += count
        self.kinds = Counter(sequence[:-1] for sequence in counts)

    def probability(self, byte: int, context: bytes, lower_order: float) -> float:
        """Return the probability of `byte` after `context`, or that of the lower order if the context is new."""
        total = self.totals[context]
        if total == 0:
            return lower_order
        count = self.counts[context + bytes([byte])]
        return (max(count - self.discount, 0) + self.discount * self.kinds[context] * lower_order) / total


def tuned(text: str, order: int = 3, discounts: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9)) -> NGram:
    """Fit the model to the whole text, with the discount that best predicts the last tenth from the rest."""
    data = text.encode()
    cut = len(data) * 9 // 10
    best = min(discounts, key=lambda discount: NGram(data[:cut], order, discount).bits_per_byte(data[cut:]))
    return NGram(data, order, best)
