"""Every learning-rate schedule is bit-identical to transformers' own scheduler on a torch optimizer."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import cattrs
import pytest
import torch
from transformers import get_scheduler
from transformers.trainer_utils import SchedulerType

from hexloop.domain.schedules import ADAPTIVE, SHAPES, build_adaptive, build_shape

ONE_GROUP: tuple[float, ...] = (0.05,)
TWO_GROUPS: tuple[float, ...] = (0.05, 0.002)

LENGTHS = [(0, 50), (1, 50), (7, 50), (13, 200), (50, 50), (60, 50), (49, 50), (0, 1)]

OPTIONS: Mapping[str, list[dict[str, Any]]] = {
    "linear": [{}],
    "cosine": [{}, {"num_cycles": 1.75}, {"num_cycles": 3}, {"num_cycles": 0}],
    "cosine_with_restarts": [{}, {"num_cycles": 3}, {"num_cycles": 7}, {"num_cycles": 2.5}],
    "polynomial": [{}, {"lr_end": 1e-3, "power": 2.0}, {"lr_end": 0.0, "power": 0.5}, {"power": 0}],
    "constant": [{}],
    "constant_with_warmup": [{}],
    "inverse_sqrt": [{}, {"timescale": 3}, {"timescale": 40}, {"timescale": 1000}],
    "cosine_with_min_lr": [{"min_lr": 0.01}, {"min_lr_rate": 0.3, "num_cycles": 1.25}, {"min_lr": 0.0}],
    "cosine_warmup_with_min_lr": [
        {"min_lr": 0.01},
        {"min_lr_rate": 0.3, "num_cycles": 1.25},
        {"min_lr": 0.001, "warmup_lr_rate": 0.2},
        {"min_lr_rate": 0.0, "warmup_lr_rate": 0.0},
    ],
    "warmup_stable_decay": [
        {"num_decay_steps": 20},
        {"num_decay_steps": 20, "warmup_type": "cosine", "decay_type": "linear", "min_lr_ratio": 0.1},
        {"num_decay_steps": 20, "warmup_type": "1-sqrt", "decay_type": "1-sqrt", "min_lr_ratio": 0.25},
        {"num_decay_steps": 15, "num_stable_steps": 9, "num_cycles": 1.5},
        {"num_decay_steps": 0, "min_lr_ratio": 0.5},
        {"num_decay_steps": 45},
    ],
}

# transformers divides by the length of the decay, which is 0 at one step of these.
UNDEFINED_IN_REFERENCE = {("polynomial", 50, 50)}

SHAPE_CASES = [
    pytest.param(name, warmup, total, options, id=f"{name}-{warmup}-{total}-{number}")
    for name, choices in OPTIONS.items()
    for number, options in enumerate(choices)
    for warmup, total in LENGTHS
    if (name, warmup, total) not in UNDEFINED_IN_REFERENCE
]


def make_optimizer(rates: tuple[float, ...]) -> torch.optim.Optimizer:
    """Return an optimizer whose default rate is the first group's."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=rates[0])


def rates_of(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    return tuple(group["lr"] for group in optimizer.param_groups)


def assert_equal(ours: Iterable[float], theirs: Iterable[float], where: str) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one == other, f"{where}: {one!r}, transformers {other!r}"


def test_the_names_match_transformers() -> None:
    """The two tables together contain all of transformers' schedules, and these tests cover all."""
    assert {*SHAPES, *ADAPTIVE} == {member.value for member in SchedulerType}
    assert set(OPTIONS) == set(SHAPES)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("rates", [ONE_GROUP, TWO_GROUPS], ids=["one group", "two groups"])
@pytest.mark.parametrize(("name", "warmup", "total", "options"), SHAPE_CASES)
def test_rates_at_every_step(
    name: str, warmup: int, total: int, options: dict[str, Any], rates: tuple[float, ...]
) -> None:
    """Each group's rate is transformers' at every step of the run and for some steps after it."""
    optimizer = make_optimizer(rates)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Both num_training_steps and num_stable_steps are specified")
        scheduler: Any = get_scheduler(name, optimizer, warmup, total, scheduler_specific_kwargs=options)
    shape = build_shape(name, base_rate=rates[0], warmup_steps=warmup, total_steps=total, options=options)
    for step in range(max(warmup, total) + 25):
        factor = shape(step)
        assert_equal((rate * factor for rate in rates), rates_of(optimizer), f"step {step}")
        optimizer.step()
        scheduler.step()


def test_stages_of_known_length_do_not_need_the_run_s_length() -> None:
    """warmup_stable_decay without num_training_steps matches transformers, too."""
    options = {"num_decay_steps": 20, "num_stable_steps": 30}
    optimizer = make_optimizer(TWO_GROUPS)
    scheduler: Any = get_scheduler("warmup_stable_decay", optimizer, 10, None, scheduler_specific_kwargs=options)
    shape = build_shape("warmup_stable_decay", base_rate=0.05, warmup_steps=10, total_steps=None, options=options)
    for step in range(80):
        factor = shape(step)
        assert_equal((rate * factor for rate in TWO_GROUPS), rates_of(optimizer), f"step {step}")
        optimizer.step()
        scheduler.step()


def noise(seed: int) -> list[float]:
    source = random.Random(seed)
    return [source.uniform(0.5, 1.5) for _ in range(150)]


def descent(seed: int) -> list[float]:
    source = random.Random(seed)
    return [3.0 * 0.97**k + source.gauss(0.0, 0.02) for k in range(200)]


def stairs(seed: int) -> list[float]:
    source = random.Random(seed)
    return [level for level in (4.0, 2.0, 1.0, 1.0, 3.0, 0.5) for _ in range(source.randint(1, 30))]


def crossing_zero(seed: int) -> list[float]:
    source = random.Random(seed)
    return [1.0 - 0.02 * k + source.gauss(0.0, 0.05) for k in range(150)]


def broken(seed: int) -> list[float]:
    """NaN and infinities, at the start and in between."""
    values = [math.nan, math.inf, *descent(seed), -math.inf, *noise(seed)]
    source = random.Random(seed)
    for where in source.sample(range(3, len(values)), 12):
        values[where] = source.choice([math.nan, math.inf])
    return values


METRICS: dict[str, Callable[[int], list[float]]] = {
    made.__name__: made for made in (noise, descent, stairs, crossing_zero, broken)
}

THRESHOLDS: list[dict[str, Any]] = [
    {"mode": mode, "threshold_mode": kind, "threshold": size, "patience": patience}
    for mode in ("min", "max")
    for kind in ("rel", "abs")
    for size, patience in ((0.0, 1), (0.01, 3), (1.5, 0))
]

PLATEAU_OPTIONS: list[dict[str, Any]] = [
    {},
    {"factor": 0.5, "patience": 2, "cooldown": 3, "min_lr": 1e-4},
    {"factor": 0.3, "patience": 0, "eps": 1e-3},
    {"factor": 0.0, "patience": 1, "min_lr": 1e-3},
    *({"factor": 0.7, **options} for options in THRESHOLDS),
]

GREEDY_OPTIONS: list[dict[str, Any]] = [
    {},
    {"factor": 0.5, "patience": 2, "cooldown": 3, "warmup": 2, "min_lr": 1e-4},
    {"factor": 0.8, "patience": 0, "eps": 1e-3, "max_lr": 0.1, "reset_start": 3},
    {"factor": 0.3, "patience": 1, "min_lr": 0.01, "reset_start": 1, "cooldown": 2},
    {"factor": 0.3, "patience": 0, "min_lr": 0.01, "reset_start": 0},
    {"factor": 0.6, "patience": 1, "smooth": True, "window_size": 5, "min_lr": 1e-3, "reset_start": 2},
    {"factor": 0.9, "patience": 2, "smooth": True, "max_lr": math.inf},
    *({"factor": 0.7, "min_lr": 1e-3, "reset_start": 4, **options} for options in THRESHOLDS),
]

EACH_GROUP: Mapping[str, list[dict[str, Any]]] = {
    "reduce_lr_on_plateau": [{"factor": 0.5, "patience": 1, "min_lr": [0.01, 1e-5]}],
    "greedy": [
        {"factor": 0.5, "patience": 1, "min_lr": [0.01, 1e-5], "max_lr": [0.2, 0.3], "reset_start": 2},
        {"factor": 0.5, "patience": 0, "min_lr": [0.06, 1e-3], "max_lr": 0.3, "reset_start": 2, "warmup": 1},
    ],
}

ADAPTIVE_CASES = [
    pytest.param(name, rates, options, id=f"{name}-{number}-{len(rates)}")
    for name, choices in (("reduce_lr_on_plateau", PLATEAU_OPTIONS), ("greedy", GREEDY_OPTIONS))
    for rates, suited in ((ONE_GROUP, choices), (TWO_GROUPS, choices + EACH_GROUP[name]))
    for number, options in enumerate(suited)
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("metrics", METRICS)
@pytest.mark.parametrize(("name", "rates", "options"), ADAPTIVE_CASES)
def test_rates_after_every_metric(name: str, rates: tuple[float, ...], options: dict[str, Any], metrics: str) -> None:
    """Each group's rate is transformers' after every metric, with a JSON round trip of the state each time."""
    for seed in range(3):
        optimizer = make_optimizer(rates)
        scheduler: Any = get_scheduler(name, optimizer, scheduler_specific_kwargs=options)
        schedule = build_adaptive(name, options)
        state, current = schedule.start(rates), rates
        for count, metric in enumerate(METRICS[metrics](seed)):
            scheduler.step(metric)
            state, current = schedule(state, metric, current)
            assert_equal(current, rates_of(optimizer), f"metric {count} of seed {seed}")
            state = cattrs.structure(json.loads(json.dumps(cattrs.unstructure(state))), type(state))


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_rate_set_by_hand_is_continued(name: str) -> None:
    """After a group's rate is set by hand, both continue from it."""
    options = {"factor": 0.5, "patience": 1, "min_lr": 1e-4}
    optimizer = make_optimizer(TWO_GROUPS)
    scheduler: Any = get_scheduler(name, optimizer, scheduler_specific_kwargs=options)
    schedule = build_adaptive(name, options)
    state, current = schedule.start(TWO_GROUPS), TWO_GROUPS
    for count, metric in enumerate(noise(0)):
        if count % 20 == 10:
            optimizer.param_groups[1]["lr"] = 0.03
            current = (current[0], 0.03)
        scheduler.step(metric)
        state, current = schedule(state, metric, current)
        assert_equal(current, rates_of(optimizer), f"metric {count}")


def test_the_recorded_metrics_cover_every_change() -> None:
    """The sequences compared above cover every kind of change."""
    moves = set()
    for options in GREEDY_OPTIONS:
        for made in METRICS.values():
            schedule = build_adaptive("greedy", options)
            state, current = schedule.start(TWO_GROUPS), TWO_GROUPS
            for metric in made(0):
                before, (state, current) = current, schedule(state, metric, current)
                moves.add(
                    "reset" if state.best is None and current != before else (current > before) - (current < before)
                )
    assert moves == {"reset", 1, 0, -1}
