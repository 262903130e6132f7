"""The plateau schedule lowers the rates when a metric stops improving."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules.adaptive import PlateauState, ReduceLROnPlateau
from tests.unit.schedules.metrics import METRICS, follow, through_json

SCHEDULES = st.builds(
    ReduceLROnPlateau,
    mode=st.sampled_from(["min", "max"]),
    factor=st.floats(0, 0.99),
    patience=st.integers(0, 3),
    threshold=st.floats(0, 0.5),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    cooldown=st.integers(0, 3),
    min_lr=st.floats(0, 0.1) | st.lists(st.floats(0, 0.1), min_size=2, max_size=2),
)


def test_rates_fall_after_more_than_patience_evaluations_without_improvement() -> None:
    """With a patience of 2 the third evaluation after the best lowers the rates, and the count restarts."""
    _, seen = follow(ReduceLROnPlateau(factor=0.5, patience=2), [1.0] * 7, (0.8, 0.4))
    assert seen == [(0.8, 0.4)] * 3 + [(0.4, 0.2)] * 3 + [(0.2, 0.1)]


def test_an_improvement_resets_the_count() -> None:
    """A better metric becomes the new best, and earlier bad evaluations do not count."""
    state, seen = follow(ReduceLROnPlateau(factor=0.5, patience=1), [1.0, 1.0, 0.5, 0.7], (0.8,))
    assert seen == [(0.8,)] * 4
    assert state == PlateauState(best=0.5, num_bad_epochs=1)


def test_evaluations_in_a_cooldown_do_not_count_as_bad() -> None:
    """After a fall, evaluations in the cooldown are ignored, and counting starts after it."""
    _, seen = follow(ReduceLROnPlateau(factor=0.5, patience=0, cooldown=2), [1.0] * 6, (0.8,))
    assert seen == [(0.8,), (0.4,), (0.4,), (0.4,), (0.2,), (0.2,)]


def test_an_improvement_in_a_cooldown_counts_as_the_best() -> None:
    """A cooldown ignores bad evaluations, not good ones."""
    state, _ = follow(ReduceLROnPlateau(patience=0, cooldown=2), [1.0, 1.0, 0.5], (0.8,))
    assert state == PlateauState(best=0.5, cooldown_counter=1)


@pytest.mark.parametrize(
    ("options", "first", "second", "better"),
    [
        ({"mode": "min", "threshold_mode": "rel", "threshold": 0.25}, 2.0, 1.5, False),
        ({"mode": "min", "threshold_mode": "rel", "threshold": 0.25}, 2.0, 1.4, True),
        ({"mode": "min", "threshold_mode": "abs", "threshold": 0.25}, 2.0, 1.75, False),
        ({"mode": "min", "threshold_mode": "abs", "threshold": 0.25}, 2.0, 1.7, True),
        ({"mode": "max", "threshold_mode": "rel", "threshold": 0.25}, 2.0, 2.5, False),
        ({"mode": "max", "threshold_mode": "rel", "threshold": 0.25}, 2.0, 2.6, True),
        ({"mode": "max", "threshold_mode": "abs", "threshold": 0.25}, 2.0, 2.25, False),
        ({"mode": "max", "threshold_mode": "abs", "threshold": 0.25}, 2.0, 2.3, True),
        ({"mode": "min"}, math.nan, 2.0, True),
        ({"mode": "max"}, 2.0, math.nan, False),
    ],
)
def test_an_improvement_beats_the_best_by_more_than_the_threshold(
    options: dict[str, Any], first: float, second: float, better: bool
) -> None:
    """The threshold is relative or absolute; NaN is never better, and any number is better than NaN."""
    state, _ = follow(ReduceLROnPlateau(**options), [first, second], (0.8,))
    assert state.best == (second if better else first)


def test_each_group_stops_at_its_own_floor() -> None:
    """A group at its floor stays there while the others continue to fall."""
    _, seen = follow(ReduceLROnPlateau(factor=0.5, patience=0, min_lr=[0.3, 0.05]), [1.0] * 4, (0.8, 0.4))
    assert seen == [(0.8, 0.4), (0.4, 0.2), (0.3, 0.1), (0.3, 0.05)]


def test_a_change_of_at_most_eps_is_skipped() -> None:
    """A rate of a group that would hardly change stays the same."""
    _, seen = follow(ReduceLROnPlateau(factor=0.5, patience=0, eps=0.25), [1.0, 1.0], (0.5, 1.0))
    assert seen[-1] == (0.5, 0.5)


def test_a_rate_that_was_set_elsewhere_is_lowered() -> None:
    """The current rates are scaled, whatever they were before."""
    schedule = ReduceLROnPlateau(factor=0.5, patience=0)
    state, _ = schedule(schedule.start((0.8,)), 1.0, (0.8,))
    assert schedule(state, 1.0, (0.1,))[1] == (0.05,)


def test_one_floor_applies_to_groups_added_later() -> None:
    """A single min_lr applies to any number of groups."""
    schedule = ReduceLROnPlateau(factor=0.5, patience=0, min_lr=0.3)
    state, _ = schedule(schedule.start((0.8,)), 1.0, (0.8,))
    assert schedule(state, 1.0, (0.8, 0.4))[1] == (0.4, 0.3)


def test_a_list_of_floors_must_match_the_groups() -> None:
    """A list with another length than the groups is refused at the start, and after groups were added."""
    schedule = ReduceLROnPlateau(patience=0, min_lr=[0.1, 0.2])
    with pytest.raises(ConfigurationError, match=r"min_lr=\[0.1, 0.2\] has 2 values, .* 3 parameter groups"):
        schedule.start((1.0, 1.0, 1.0))
    with pytest.raises(ConfigurationError, match=r"has 2 values, .* 1 parameter group"):
        schedule(PlateauState(best=0.0), 1.0, (1.0,))


@given(SCHEDULES, METRICS)
def test_rates_only_fall_to_their_floors(schedule: ReduceLROnPlateau, metrics: list[float]) -> None:
    """For any metrics, including NaN and infinities, a rate only falls, at most to its floor."""
    rates = (0.5, 0.05)
    _, seen = follow(schedule, metrics, rates)
    floors = schedule.min_lr if isinstance(schedule.min_lr, tuple) else (schedule.min_lr,) * 2
    for after in seen:
        for before, rate, floor in zip(rates, after, floors, strict=True):
            assert min(before, floor) <= rate <= before
        rates = (after[0], after[1])


@given(SCHEDULES, METRICS, METRICS)
def test_a_state_restored_from_json_continues_the_same(
    schedule: ReduceLROnPlateau, before: list[float], after: list[float]
) -> None:
    """A state that was written and read as JSON is equal, and gives the same rates."""
    state, _ = follow(schedule, before, (0.5, 0.05))
    restored = through_json(state)
    assert restored == state
    for metric in after:
        state, rates = schedule(state, metric, (0.5, 0.05))
        restored, restored_rates = schedule(restored, metric, (0.5, 0.05))
        assert (restored, restored_rates) == (state, rates)
