"""The greedy schedule raises the rates while a metric improves, and lowers them while it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules.adaptive import Greedy, GreedyState
from tests.unit.schedules.metrics import METRICS, follow, through_json

FALLING = (9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)
FLAT = (1.0,) * 8

SCHEDULES = st.builds(
    Greedy,
    mode=st.sampled_from(["min", "max"]),
    factor=st.floats(0.01, 0.99),
    patience=st.integers(0, 2),
    threshold=st.floats(0, 0.5),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    cooldown=st.integers(0, 2),
    warmup=st.integers(0, 2),
    min_lr=st.floats(0, 0.05) | st.lists(st.floats(0, 0.05), min_size=2, max_size=2),
    max_lr=st.floats(0.5, 2) | st.just(math.inf) | st.lists(st.floats(0.5, 2), min_size=2, max_size=2),
    smooth=st.booleans(),
    window_size=st.integers(1, 5),
    reset_start=st.integers(0, 3),
)


def first_group(schedule: Greedy, metrics: Sequence[float], rate: float = 0.5) -> list[float]:
    return [rates[0] for rates in follow(schedule, metrics, (rate,))[1]]


def test_rates_rise_after_more_than_patience_improvements_in_a_row() -> None:
    """With a patience of 1 the second improvement raises the rates, and the count restarts."""
    assert first_group(Greedy(factor=0.5, patience=1, max_lr=8), FALLING[:5]) == [0.5, 1.0, 1.0, 2.0, 2.0]


def test_rates_fall_after_more_than_patience_evaluations_without_improvement() -> None:
    """The first metric is an improvement; with a patience of 1 the second evaluation without one lowers the rates."""
    assert first_group(Greedy(factor=0.5, patience=1), FLAT[:6]) == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_good_and_bad_evaluations_reset_each_others_counts() -> None:
    """Alternating improvements change no rate."""
    state, seen = follow(Greedy(patience=1), [3.0, 3.0, 2.0, 2.0, 1.0, 1.0], (0.5,))
    assert seen == [(0.5,)] * 6
    assert state == GreedyState((0.5,), 500, best=1.0, num_bad_epochs=1)


def test_evaluations_after_a_fall_are_skipped_in_the_cooldown() -> None:
    """Two evaluations after each fall are ignored, even as the best."""
    schedule = Greedy(factor=0.5, patience=0, cooldown=2, max_lr=0.5)
    assert first_group(schedule, FLAT[:7]) == [0.5, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125]
    state, _ = follow(schedule, [1.0, 1.0, 0.1], (0.5,))
    assert state == GreedyState((0.5,), 500, best=1.0, cooldown_counter=1)


def test_evaluations_after_a_rise_are_skipped_in_the_warm_up() -> None:
    """Two evaluations after each rise are ignored, even as the best."""
    schedule = Greedy(factor=0.5, patience=0, warmup=2, max_lr=8)
    assert first_group(schedule, FALLING[:7]) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 4.0]
    state, _ = follow(schedule, FALLING[:2], (0.5,))
    assert state == GreedyState((0.5,), 500, best=9.0, warmup_counter=1)


def test_a_skipped_evaluation_resets_both_counts() -> None:
    """Counts before a skipped evaluation are reset, and the cooldown takes precedence."""
    counted = GreedyState((0.5,), 7, num_good_epochs=1, num_bad_epochs=1, cooldown_counter=1, warmup_counter=1)
    after_one, _ = Greedy()(counted, 1.0, (0.5,))
    after_two, _ = Greedy()(after_one, 1.0, (0.5,))
    assert after_one == GreedyState((0.5,), 7, warmup_counter=1)
    assert after_two == GreedyState((0.5,), 7)


def test_each_group_moves_within_its_own_bounds() -> None:
    """A group at a bound stays there while the others continue."""
    schedule = Greedy(factor=0.5, patience=0, min_lr=[0.2, 0.1], max_lr=[1.0, 1.5])
    _, seen = follow(schedule, [3.0, 2.0, 2.0, 2.0, 2.0, 2.0], (0.5, 0.5))
    assert seen == [(1.0, 1.0), (1.0, 1.5), (0.5, 0.75), (0.25, 0.375), (0.2, 0.1875), (0.2, 0.1)]


def test_a_change_of_at_most_eps_is_skipped() -> None:
    """A rate of a group that would hardly change stays the same, up or down."""
    schedule = Greedy(factor=0.5, patience=0, eps=0.25, max_lr=8)
    assert follow(schedule, FALLING[:1], (0.25, 0.5))[1] == [(0.25, 1.0)]
    assert schedule(GreedyState((0.5, 1.0), 9, best=0.0), 1.0, (0.5, 1.0))[1] == (0.5, 0.5)


def test_a_rate_below_its_floor_is_not_lifted_to_it() -> None:
    """Lowering does not raise a rate to min_lr, nor does raising lower one to max_lr."""
    assert first_group(Greedy(patience=0, min_lr=0.1), FLAT, rate=0.05)[1:] == [0.05 / 0.95] * 7
    assert first_group(Greedy(patience=0, max_lr=0.1), FALLING, rate=0.5) == [0.5] * 8


def test_the_schedule_resets_when_every_group_has_stayed_at_its_floor() -> None:
    """The second lowering at the floor resets rates, best and counts, and counting continues from its cooldown."""
    schedule = Greedy(factor=0.5, patience=0, min_lr=0.25, max_lr=0.5, reset_start=2)
    state, seen = follow(schedule, [1.0, 1.0, 1.0], (0.5,))
    assert seen == [(0.5,), (0.25,), (0.5,)]
    assert state == GreedyState((0.5,), 2)
    cooled = Greedy(factor=0.5, patience=0, min_lr=0.25, max_lr=0.5, reset_start=1, cooldown=3)
    assert follow(cooled, [1.0, 1.0], (0.5,))[0] == GreedyState((0.5,), 1, cooldown_counter=3)


def test_a_reset_start_of_zero_resets_at_once() -> None:
    """Without a wait, the first lowering at the floor is a reset."""
    assert first_group(Greedy(factor=0.5, patience=0, min_lr=0.25, max_lr=0.5, reset_start=0), FLAT[:2]) == [0.5, 0.5]


def test_one_group_above_its_floor_prevents_a_reset() -> None:
    """A lowering counts towards a reset only if no group is above its floor."""
    schedule = Greedy(factor=0.5, patience=0, min_lr=[0.5, 0.1], max_lr=0.5, reset_start=2)
    state, _ = follow(schedule, FLAT[:3], (0.5, 0.5))
    assert state.reset_counter == 2


def test_a_rise_restarts_the_count_towards_a_reset() -> None:
    """After a rise, the lowerings at the floor are counted from zero."""
    schedule = Greedy(factor=0.5, patience=0, min_lr=0.25, max_lr=0.5, reset_start=3)
    state, _ = follow(schedule, [1.0, 1.0, 0.5], (0.5,))
    assert state.reset_counter == 3
    assert follow(schedule, [1.0, 1.0], (0.5,))[0].reset_counter == 2


def test_smoothing_uses_the_mean_of_the_last_metrics() -> None:
    """The mean of the last window_size metrics is compared, and becomes the best."""
    schedule = Greedy(smooth=True, window_size=2)
    state, _ = follow(schedule, [4.0, 2.0, 3.0], (0.5,))
    assert (state.best, state.window, state.window_sum) == (2.5, (2.0, 3.0), 5.0)
    assert follow(schedule, [4.0], (0.5,))[0].best == 4.0


def test_without_smoothing_no_metrics_are_stored() -> None:
    """The window stays empty without smoothing."""
    assert follow(Greedy(), FALLING, (0.5,))[0].window == ()


def test_smoothing_continues_while_evaluations_are_skipped() -> None:
    """A metric in a cooldown is still part of the mean."""
    state, _ = follow(Greedy(factor=0.5, patience=0, cooldown=2, max_lr=0.5, smooth=True), [1.0, 1.0, 7.0], (0.5,))
    assert state.window == (1.0, 1.0, 7.0)


def test_a_reset_empties_the_window() -> None:
    """Metrics before a reset are not part of later means."""
    schedule = Greedy(factor=0.5, patience=0, min_lr=0.5, max_lr=0.5, reset_start=1, smooth=True)
    assert follow(schedule, [1.0, 1.0], (0.5,))[0] == GreedyState((0.5,), 1)


def test_nan_counts_as_no_improvement() -> None:
    """NaN lowers the rates like a bad metric, and never becomes the best."""
    schedule = Greedy(factor=0.5, patience=0, max_lr=0.5)
    state, seen = follow(schedule, [1.0, math.nan, 0.5], (0.5,))
    assert seen == [(0.5,), (0.25,), (0.5,)]
    assert state.best == 0.5


def test_mode_max_prefers_higher_values() -> None:
    """In mode max a rising metric raises the rates."""
    schedule = Greedy(mode="max", factor=0.5, patience=1, max_lr=8)
    assert first_group(schedule, [-3.0, -2.0, -1.0, 0.0]) == [0.5, 1.0, 1.0, 2.0]


def test_bounds_must_match_the_groups() -> None:
    """Every list with another length than the groups is named, before the first metric."""
    with pytest.raises(ConfigurationError) as caught:
        Greedy(min_lr=[0.1], max_lr=[1.0, 1.0, 1.0]).start((0.5, 0.5))
    assert [problem.split(",")[0] for problem in caught.value.problems] == [
        "min_lr=[0.1] has 1 values",
        "max_lr=[1.0",
    ]


def test_a_floor_above_its_ceiling_is_refused() -> None:
    """Bounds that leave a group no rate are refused; equal bounds are accepted."""
    with pytest.raises(ConfigurationError, match="Set min_lr to at most max_lr"):
        Greedy(max_lr=[1.0, 1e-4]).start((0.5, 0.5))
    assert Greedy(min_lr=0.5, max_lr=0.5).start((0.5,)) == GreedyState((0.5,), 500)


@given(SCHEDULES, METRICS)
def test_rates_stay_within_their_bounds(schedule: Greedy, metrics: list[float]) -> None:
    """For any metrics, including NaN and infinities, a rate within its bounds stays within them."""
    _, seen = follow(schedule, metrics, (0.5, 0.05))
    floors = schedule.min_lr if isinstance(schedule.min_lr, tuple) else (schedule.min_lr,) * 2
    ceilings = schedule.max_lr if isinstance(schedule.max_lr, tuple) else (schedule.max_lr,) * 2
    for rates in seen:
        assert all(low <= rate <= high for low, rate, high in zip(floors, rates, ceilings, strict=True))


@given(SCHEDULES, METRICS, METRICS)
def test_a_state_restored_from_json_continues_the_same(
    schedule: Greedy, before: list[float], after: list[float]
) -> None:
    """A state that was written and read as JSON is equal, and gives the same rates."""
    state, seen = follow(schedule, before, (0.5, 0.05))
    rates = restored_rates = seen[-1] if seen else (0.5, 0.05)
    restored = through_json(state)
    assert repr(restored) == repr(state)  # NaN, which a window may hold, differs from itself
    for metric in after:
        state, rates = schedule(state, metric, rates)
        restored, restored_rates = schedule(restored, metric, restored_rates)
        assert (repr(restored), restored_rates) == (repr(state), rates)
