"""Division of the samples of an optimizer step into micro-batches of nearly equal cost."""

from __future__ import annotations

from collections.abc import Sequence

QUADRATIC_SHARE = 1000
"""The length at which the part of the cost that grows with the square of the length equals the linear part."""


def batch_cost(samples: int, longest: int) -> int:
    """Return the relative cost of a batch of samples that are padded to the longest one.

    It is linear in the padded tokens, and quadratic in the length for attention, as in transformers'
    BatchRebalanceSampler, multiplied by 1000 so that it is a whole number.
    """
    return samples * longest * (QUADRATIC_SHARE + longest)


def balanced_sizes(lengths: Sequence[int], batches: int) -> list[int]:
    """Return how many samples each batch gets, in order, so that the most expensive batch is as cheap as possible.

    lengths: of all samples, in descending order; a batch holds neighbors. Raises ValueError if there are fewer samples
    than batches.
    """
    if not 1 <= batches <= len(lengths):
        raise ValueError(f"{len(lengths)} samples cannot be divided into {batches} batches of at least one sample.")
    unit = [batch_cost(1, length) for length in lengths]
    least, most = unit[0], unit[0] * len(lengths)
    while least < most:  # finds the smallest bound at which batches, filled one after another, hold all samples
        middle = (least + most) // 2
        if _filled(unit, batches, middle) is None:
            least = middle + 1
        else:
            most = middle
    sizes = _filled(unit, batches, most)
    assert sizes is not None
    return sizes


def _filled(unit: Sequence[int], batches: int, bound: int) -> list[int] | None:
    """Return the sizes of batches that cost at most `bound`, the first ones filled up; None if samples are left."""
    sizes, first = list[int](), 0
    for later in reversed(range(batches)):
        left = len(unit) - first - later  # each later batch needs a sample
        sizes.append(size := min(left, bound // unit[first]) if unit[first] else left)
        first += size
    return sizes if first == len(unit) else None
