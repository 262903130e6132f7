"""Patience counts consecutive evaluations without improvement."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.evaluation import patience_after

fixed = settings(derandomize=True, deadline=None)
metrics = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(
    ("metric", "best", "greater_is_better", "threshold", "expected"),
    [
        (1.0, None, False, 0.0, 0),
        (0.9, 1.0, False, 0.0, 0),
        (1.0, 1.0, False, 0.0, 4),
        (1.1, 1.0, False, 0.0, 4),
        (1.1, 1.0, True, 0.0, 0),
        (0.9, 1.0, True, 0.0, 4),
        (1.25, 1.0, True, 0.25, 4),
        (1.26, 1.0, True, 0.25, 0),
        (0.75, 1.0, False, 0.25, 4),
        (0.74, 1.0, False, 0.25, 0),
        (math.nan, 1.0, False, 0.0, 4),
        (1.0, math.inf, False, 0.0, 0),
        (math.inf, math.inf, True, 0.0, 4),
    ],
)
def test_only_an_improvement_above_the_threshold_resets_the_count(
    metric: float, best: float | None, greater_is_better: bool, threshold: float, expected: int
) -> None:
    """The first evaluation, or one better by more than the threshold, resets the count."""
    assert patience_after(metric, best, 3, greater_is_better=greater_is_better, threshold=threshold) == expected


@fixed
@given(st.lists(st.floats(-10, 10), max_size=30), st.booleans(), st.sampled_from([0.0, 0.5, 3.0]))
def test_count_equals_evaluations_since_the_last_improvement(
    values: list[float], greater_is_better: bool, threshold: float
) -> None:
    """For any sequence, the count equals the evaluations since the last improvement above the threshold."""
    sign = 1 if greater_is_better else -1
    counter = 0
    for position, value in enumerate(values):
        best = sign * max((sign * earlier for earlier in values[:position]), default=0.0) if position else None
        counter = patience_after(value, best, counter, greater_is_better=greater_is_better, threshold=threshold)
        improvements = [
            index
            for index in range(position + 1)
            if all(
                sign * values[index] > sign * other and abs(values[index] - _best(values[:index], sign)) > threshold
                for other in values[:index]
            )
        ]
        assert counter == position - improvements[-1]


@fixed
@given(metrics, metrics, st.integers(0, 5), st.floats(0, 10))
def test_both_directions_are_symmetric(metric: float, best: float, counter: int, threshold: float) -> None:
    """Negating all values and the direction gives the same count."""
    smaller = patience_after(metric, best, counter, greater_is_better=False, threshold=threshold)
    assert smaller == patience_after(-metric, -best, counter, greater_is_better=True, threshold=threshold)


def _best(values: list[float], sign: int) -> float:
    return sign * max(sign * value for value in values)
