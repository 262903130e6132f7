"""The curve of a logged value, and the points of it that are drawn."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.series import Series, SeriesSummary, reduced

VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=300)


@given(VALUES, st.integers(4, 50))
def test_reduced_curves_keep_the_ends_and_the_extremes(values: list[float], most: int) -> None:
    """Whatever the values: at most as many points as allowed, all of them points of the curve, in their order."""
    steps = list(range(0, 3 * len(values), 3))
    kept_steps, kept = reduced(steps, values, most)

    assert len(kept) == len(kept_steps) <= max(most, 4)
    assert [values[step // 3] for step in kept_steps] == kept
    assert all(one < other for one, other in pairwise(kept_steps))
    assert (kept_steps[0], kept_steps[-1]) == (steps[0], steps[-1])
    assert (min(kept), max(kept)) == (min(values), max(values))


@given(VALUES)
def test_short_curves_are_not_reduced(values: list[float]) -> None:
    """All points are drawn if there are few."""
    assert reduced(range(len(values)), values, 300) == (list(range(len(values))), values)


def test_a_peak_of_a_single_step_is_drawn() -> None:
    """One in a hundred thousand steps, which every n-th point would miss."""
    values = [1.0] * 100_000
    values[77_777] = 50.0
    steps, kept = reduced(range(100_000), values)
    assert (77_777, 50.0) in zip(steps, kept, strict=True)
    assert len(kept) <= 2_000


@given(st.lists(st.tuples(st.integers(0, 40), st.floats())))
def test_points_are_in_order_however_steps_repeat(added: list[tuple[int, float]]) -> None:
    """A step that comes again replaces what followed it; values that are not finite are kept apart."""
    series, expected = Series(), dict[int, float]()
    for step, value in added:
        series.add(step, value)
        expected = {each: kept for each, kept in expected.items() if each < step} | {step: value}
    finite = {step: value for step, value in expected.items() if math.isfinite(value)}
    assert dict(zip(series.steps, series.values, strict=True)) == finite
    assert list(series.steps) == sorted(finite)
    assert list(series.gaps) == sorted(expected.keys() - finite.keys())


def test_a_summary_has_the_ends_and_extremes() -> None:
    """As steps with values, and how many values were not finite; None if there is no point."""
    series = Series()
    assert series.summary() is None
    for step, value in ((1, 3.0), (2, 9.0), (3, math.nan), (4, -1.0), (5, 2.0)):
        series.add(step, value)
    assert series.summary() == SeriesSummary((1, 3.0), (5, 2.0), (4, -1.0), (2, 9.0), count=4, gaps=1)


def test_a_series_whose_last_value_is_not_finite_says_so() -> None:
    """So that its last finite value is not shown as its last one."""
    series = Series()
    assert not series.ends_in_gap
    series.add(1, math.nan)
    assert series.ends_in_gap
    series.add(2, 1.0)
    assert not series.ends_in_gap
    series.add(3, math.inf)
    assert series.ends_in_gap
