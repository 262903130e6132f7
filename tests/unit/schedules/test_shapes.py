"""The ten schedules that are functions of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from attrs import frozen
from attrs.exceptions import FrozenInstanceError
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.schedules import (
    SHAPES,
    Constant,
    ConstantWithWarmup,
    Cosine,
    CosineWarmupWithMinLr,
    CosineWithMinLr,
    CosineWithRestarts,
    InverseSqrt,
    Linear,
    Polynomial,
    Shape,
    WarmupStableDecay,
    build_shape,
)

BASE_RATE = 0.02

TYPES = st.sampled_from(["linear", "cosine", "1-sqrt"])
SHARES = st.floats(0, 1)
CYCLES = st.floats(0, 5)
RATES = st.floats(0, BASE_RATE)
FLOORS = st.one_of(st.fixed_dictionaries({"min_lr": RATES}), st.fixed_dictionaries({"min_lr_rate": SHARES}))


def with_floor(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(FLOORS, st.fixed_dictionaries({}, optional=optional)).map(lambda pair: {**pair[0], **pair[1]})


OPTIONS: Mapping[str, st.SearchStrategy[dict[str, Any]]] = {
    "linear": st.just({}),
    "cosine": st.fixed_dictionaries({}, optional={"num_cycles": CYCLES}),
    "cosine_with_restarts": st.fixed_dictionaries({}, optional={"num_cycles": st.integers(0, 5)}),
    "polynomial": st.fixed_dictionaries(
        {}, optional={"lr_end": st.floats(0, BASE_RATE, exclude_max=True), "power": st.floats(0, 4)}
    ),
    "constant": st.just({}),
    "constant_with_warmup": st.just({}),
    "inverse_sqrt": st.fixed_dictionaries({}, optional={"timescale": st.none() | st.integers(1, 500)}),
    "cosine_with_min_lr": with_floor(num_cycles=CYCLES),
    "cosine_warmup_with_min_lr": with_floor(num_cycles=CYCLES, warmup_lr_rate=st.none() | SHARES),
    "warmup_stable_decay": st.fixed_dictionaries(
        {"num_decay_steps": st.integers(0, 60)},
        optional={
            "num_stable_steps": st.none() | st.integers(0, 60),
            "warmup_type": TYPES,
            "decay_type": TYPES,
            "min_lr_ratio": SHARES,
            "num_cycles": CYCLES,
        },
    ),
}


@frozen
class Case:
    name: str
    warmup: int
    total: int
    options: Mapping[str, Any]

    @property
    def shape(self) -> Shape:
        return build_shape(
            self.name, base_rate=BASE_RATE, warmup_steps=self.warmup, total_steps=self.total, options=self.options
        )

    def values(self, beyond: int = 20) -> list[float]:
        shape = self.shape
        return [shape(step) for step in range(max(self.warmup, self.total) + beyond)]


@st.composite
def cases(draw: st.DrawFn, *names: str, room: int = 0) -> Case:
    """Return a schedule with valid options, and at least `room` steps of the run after its warm-up."""
    name = draw(st.sampled_from(names or tuple(SHAPES)))
    warmup = draw(st.integers(0, 40))
    return Case(name, warmup, warmup + draw(st.integers(room, 120)), draw(OPTIONS[name]))


def test_every_schedule_of_the_table_is_tested_here() -> None:
    """The cases of this module cover the table of schedules."""
    assert set(OPTIONS) == set(SHAPES)


@given(cases())
def test_a_factor_is_between_0_and_1(case: Case) -> None:
    """No schedule leaves the range from 0 to 1, before, during or after the run."""
    assert all(0.0 <= value <= 1.0 + 1e-15 for value in case.values())


@given(cases())
def test_every_factor_is_a_float(case: Case) -> None:
    """A factor is a float, even if the formula gives an integer."""
    assert {type(value) for value in case.values()} == {float}


LINEAR_WARMUPS = sorted(set(SHAPES) - {"constant", "cosine_warmup_with_min_lr", "warmup_stable_decay"})


@given(cases(*LINEAR_WARMUPS, room=1))
def test_linear_warm_up_rises_from_0_to_1(case: Case) -> None:
    """A linear warm-up is step / num_warmup_steps, and the first step after it has the full rate."""
    values = case.values()
    assert values[: case.warmup] == [step / case.warmup for step in range(case.warmup)]
    if case.options.get("power", 1) > 0:
        assert math.isclose(values[case.warmup], 1.0, rel_tol=1e-15)


@given(cases("cosine_warmup_with_min_lr"))
def test_offset_warm_up_rises_from_above_0_to_1(case: Case) -> None:
    """The first step has warmup_lr_rate, or one equal increment of the rate; the last has the full rate."""
    values, start = case.values(), case.options.get("warmup_lr_rate")
    if case.warmup > 1:
        assert values[0] == (1 / case.warmup if start is None else start)
        assert math.isclose(values[case.warmup - 1], 1.0, rel_tol=1e-15)
        rises = [later - earlier for earlier, later in pairwise(values[: case.warmup])]
        assert all(math.isclose(rise, rises[0], abs_tol=1e-14) for rise in rises)


@given(cases("warmup_stable_decay"))
def test_the_stages_are_continuous(case: Case) -> None:
    """Warm-up rises from the floor, the stable stage has the full rate, and the floor holds after the decay."""
    values, floor = case.values(), case.options.get("min_lr_ratio", 0.0)
    decay = case.options["num_decay_steps"]
    stable = case.options.get("num_stable_steps")
    level = case.total - case.warmup - decay if stable is None else stable
    if case.warmup:
        assert math.isclose(values[0], floor, abs_tol=1e-15)
        assert values[: case.warmup] == sorted(values[: case.warmup])
    assert all(value == 1.0 for value in values[case.warmup : case.warmup + max(0, level)])
    assert all(value == floor for value in values[max(case.warmup, case.warmup + level + decay) :])
    if decay and level >= 0 and case.warmup + level < len(values):
        assert math.isclose(values[case.warmup + level], 1.0, rel_tol=1e-15)


@given(cases(room=1))
def test_the_rate_never_rises_between_the_warm_up_and_the_end(case: Case) -> None:
    """With the default number of cycles a schedule falls or stays constant after its warm-up."""
    options = {key: value for key, value in case.options.items() if key != "num_cycles"}
    run = Case(case.name, case.warmup, case.total, options).values(beyond=0)[case.warmup :]
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(run))


@given(st.integers(0, 40), st.integers(1, 120))
def test_decays_end_at_their_floor(warmup: int, room: int) -> None:
    """At the run's end each schedule has reached zero, or the requested floor."""
    total = warmup + room
    assert Linear(warmup, total)(total) == 0.0
    assert Cosine(warmup, total)(total) == 0.0
    assert CosineWithRestarts(warmup, total, num_cycles=3)(total) == 0.0
    assert CosineWithRestarts(warmup, total, num_cycles=3)(total + 7) == 0.0
    assert Polynomial(warmup, total, BASE_RATE, lr_end=0.005)(total) == 0.25
    assert Polynomial(warmup, total, BASE_RATE, lr_end=0.005)(total + 7) == 0.25
    assert CosineWithMinLr(warmup, total, BASE_RATE, min_lr=0.005)(total) == 0.25
    assert CosineWarmupWithMinLr(warmup, total, BASE_RATE, min_lr_rate=0.25)(total - 1) == 0.25
    assert WarmupStableDecay(warmup, room, total, min_lr_ratio=0.25)(total) == 0.25


@given(st.integers(0, 40), st.integers(1, 120))
def test_special_cases_equal_other_schedules(warmup: int, room: int) -> None:
    """Power 1 is linear, one restart and a floor of 0 are a cosine, and a stage without decay is constant."""
    total = warmup + room
    pairs: list[tuple[Shape, Shape]] = [
        (Polynomial(warmup, total, BASE_RATE, lr_end=0.0), Linear(warmup, total)),
        (CosineWithRestarts(warmup, total), Cosine(warmup, total)),
        (CosineWithMinLr(warmup, total, BASE_RATE, min_lr=0.0), Cosine(warmup, total)),
        (CosineWithMinLr(warmup, total, BASE_RATE, min_lr_rate=1.0), ConstantWithWarmup(warmup)),
        (WarmupStableDecay(warmup, room, num_stable_steps=0), Cosine(warmup, total)),
        (WarmupStableDecay(warmup, room, total, decay_type="linear"), Linear(warmup, total)),
        (WarmupStableDecay(warmup, 0, total), ConstantWithWarmup(warmup)),
    ]
    for one, other in pairs:
        assert all(math.isclose(one(step), other(step), abs_tol=1e-14) for step in range(total))


@pytest.mark.parametrize(
    ("shape", "step", "factor"),
    [
        (Constant(), 0, 1.0),
        (ConstantWithWarmup(4), 1, 0.25),
        (Linear(10, 110), 35, 0.75),
        (Linear(10, 5), 10, 0.0),
        (Cosine(0, 90), 30, 0.75),
        (Cosine(0, 90, num_cycles=1), 45, 0.0),
        (Cosine(0, 90), 180, 1.0),
        (Cosine(5, 5), 5, 1.0),
        (CosineWithRestarts(0, 90, num_cycles=3), 30, 1.0),
        (CosineWithRestarts(0, 90, num_cycles=3), 40, 0.75),
        (CosineWithRestarts(5, 5), 5, 1.0),
        (CosineWithRestarts(5, 5), 6, 0.0),
        (Polynomial(0, 100, 0.02, lr_end=0.004, power=2), 50, 0.4),
        (Polynomial(0, 100, 0.02, lr_end=0.004, power=0), 100, 1.0),
        (Polynomial(0, 100, 0.02, lr_end=0.004, power=0), 101, 0.2),
        (Polynomial(100, 100, 0.02, lr_end=0.004), 100, 0.2),
        (Polynomial(100, 50, 0.02, lr_end=0.004), 75, 0.75),
        (InverseSqrt(100), 400, 0.5),
        (InverseSqrt(0), 30_000, 0.5),
        (InverseSqrt(10, timescale=100), 310, 0.5),
        (CosineWithMinLr(0, 90, 0.02, min_lr=0.004), 30, 0.8),
        (CosineWithMinLr(0, 90, 0.02, min_lr_rate=0.6), 30, 0.9),
        (CosineWarmupWithMinLr(4, 94, 0.02, min_lr=0.004), 2, 0.75),
        (CosineWarmupWithMinLr(5, 95, 0.02, min_lr=0.004, warmup_lr_rate=0.2), 2, 0.6),
        (CosineWarmupWithMinLr(1, 91, 0.02, min_lr=0.004, warmup_lr_rate=0.2), 0, 0.2),
        (CosineWarmupWithMinLr(5, 95, 0.02, min_lr=0.004), 34, 0.8),
        (WarmupStableDecay(8, 10, 100), 2, 0.25),
        (WarmupStableDecay(9, 10, 100, warmup_type="cosine"), 3, 0.25),
        (WarmupStableDecay(8, 10, 100, warmup_type="1-sqrt"), 6, 0.5),
        (WarmupStableDecay(8, 10, 100, min_lr_ratio=0.2), 2, 0.4),
        (WarmupStableDecay(8, 90, 200), 140, 0.75),
        (WarmupStableDecay(8, 90, 200, num_cycles=1), 155, 0.0),
        (WarmupStableDecay(8, 80, 200, decay_type="linear"), 140, 0.75),
        (WarmupStableDecay(8, 80, 200, decay_type="1-sqrt"), 140, 0.5),
        (WarmupStableDecay(8, 80, 200, decay_type="1-sqrt", min_lr_ratio=0.2), 140, 0.6),
        (WarmupStableDecay(8, 80, 200, num_stable_steps=0), 48, 0.5),
        (WarmupStableDecay(8, 80, 48), 8, 0.5),
    ],
)
def test_a_factor_matches_its_formula(shape: Shape, step: int, factor: float) -> None:
    """Each formula is checked against a hand calculation at one step."""
    assert shape(step) == pytest.approx(factor, rel=1e-14, abs=1e-16)


def test_a_schedule_is_a_value() -> None:
    """Schedules with the same numbers are equal, and immutable."""
    assert Linear(1, 2) == Linear(1, 2) != Linear(1, 3)
    with pytest.raises(FrozenInstanceError):
        Linear(1, 2).num_warmup_steps = 3  # type: ignore[misc]
