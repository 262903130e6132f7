"""Building a schedule from its name and options, or reporting all problems."""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import asdict, frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.schedules import (
    ADAPTIVE,
    SHAPES,
    Constant,
    CosineWithMinLr,
    Linear,
    Polynomial,
    Shape,
    WarmupStableDecay,
    build_adaptive,
    build_shape,
    check_schedule,
)
from hexloop.domain.schedules.adaptive import Greedy, ReduceLROnPlateau

NEEDED: dict[str, dict[str, Any]] = {
    "cosine_with_min_lr": {"min_lr": 1e-5},
    "cosine_warmup_with_min_lr": {"min_lr": 1e-5},
    "warmup_stable_decay": {"num_decay_steps": 10},
}


def shape(name: str, total_steps: int | None = 100, warmup_steps: int = 10, **options: Any) -> Shape:
    return build_shape(name, base_rate=1e-3, warmup_steps=warmup_steps, total_steps=total_steps, options=options)


def problems_of(name: str, total_steps: int | None = 100, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        build_adaptive(name, options) if name in ADAPTIVE else shape(name, total_steps, **options)
    return caught.value.problems


@pytest.mark.parametrize("name", SHAPES)
def test_each_name_builds_its_shape(name: str) -> None:
    """Every name of the table builds its schedule."""
    assert type(shape(name, **NEEDED.get(name, {}))) is SHAPES[name]


def test_the_run_provides_warm_up_length_and_rate() -> None:
    """Warm-up, length and base rate come from the run, all else from the options."""
    assert shape("linear") == Linear(10, 100)
    assert shape("constant") == Constant()
    assert shape("polynomial", power=2.0) == Polynomial(10, 100, 1e-3, power=2.0)
    assert shape("cosine_with_min_lr", min_lr=1e-5) == CosineWithMinLr(10, 100, 1e-3, min_lr=1e-5)
    assert shape("warmup_stable_decay", num_decay_steps=20) == WarmupStableDecay(10, 20, 100)


def test_each_adaptive_name_builds_its_schedule() -> None:
    """The two schedules that follow a metric get their options unchanged."""
    assert build_adaptive("reduce_lr_on_plateau", {"min_lr": [0.1, 0.2]}) == ReduceLROnPlateau(min_lr=(0.1, 0.2))
    assert build_adaptive("greedy", {"verbose": True, "factor": 0.5}) == Greedy(verbose=True, factor=0.5)


@pytest.mark.parametrize("name", ["constant", "constant_with_warmup", "inverse_sqrt"])
def test_a_schedule_without_an_end_needs_no_length(name: str) -> None:
    """Only schedules that depend on the run's length need it."""
    assert shape(name, total_steps=None)(10) == 1.0


def test_a_stable_stage_of_known_length_needs_no_run_length() -> None:
    """The stages' own lengths are enough for warmup_stable_decay."""
    built = shape("warmup_stable_decay", None, num_decay_steps=20, num_stable_steps=5)
    assert built == WarmupStableDecay(10, 20, None, 5)


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"constant", "constant_with_warmup", "inverse_sqrt"}))
def test_an_unknown_length_is_refused_where_it_is_needed(name: str) -> None:
    """The message names what needs the length, and what to set."""
    (problem,) = problems_of(name, None, **NEEDED.get(name, {}))
    assert "length of the run" in problem
    assert "Set " in problem
    assert "max_steps" in problem


def test_an_unknown_name_suggests_the_nearest_one() -> None:
    """A misspelt name is answered with the nearest one, any other with the whole list."""
    (near,) = problems_of("cosine_with_restart")
    assert near.startswith("Unknown schedule 'cosine_with_restart': did you mean ")
    assert "'cosine_with_restarts'? Available: linear, " in near
    (far,) = problems_of("zigzag")
    assert "choose one of linear, cosine, " in far
    assert far.endswith("reduce_lr_on_plateau, greedy.")
    with pytest.raises(ConfigurationError, match="did you mean 'greedy'"):
        build_adaptive("greedi", {})


def test_a_name_of_the_other_kind_names_its_builder() -> None:
    """A schedule that follows a metric is not a function of the step, and vice versa."""
    with pytest.raises(ConfigurationError, match=r"follows a metric .* Use build_adaptive"):
        shape("greedy")
    with pytest.raises(ConfigurationError, match=r"function of the step .* Use build_shape"):
        build_adaptive("linear", {})


def test_an_unknown_option_suggests_the_nearest_one() -> None:
    """A misspelt option is answered with the nearest one and all options."""
    (near,) = problems_of("polynomial", pwer=2)
    assert near.startswith("The schedule 'polynomial' has no option 'pwer': ")
    assert near.endswith("did you mean 'power'? Available: lr_end, power.")
    assert problems_of("linear", power=2)[0].endswith("has no options. Remove 'power' from lr_scheduler_kwargs.")


@pytest.mark.parametrize("option", ["num_warmup_steps", "num_training_steps", "base_rate"])
def test_values_of_the_run_are_not_options(option: str) -> None:
    """Values that the run provides are refused as options."""
    (problem,) = problems_of("warmup_stable_decay", num_decay_steps=5, **{option: 3})
    assert problem.endswith("is set by the run. Remove it from lr_scheduler_kwargs.")


def test_all_problems_are_reported_at_once() -> None:
    """Unknown, missing and invalid options and an unknown length are all named in one error."""
    problems = problems_of("warmup_stable_decay", None, warmup_typ="linear", decay_type="root", min_lr_ratio=2)
    assert len(problems) == 5
    for part, problem in zip(
        ["'warmup_typ'", "'num_decay_steps'", "decay_type='root'", "min_lr_ratio=2", "length of the run"],
        problems,
        strict=True,
    ):
        assert part in problem
    assert len(problems_of("polynomial", None, power=-1, lr_end=-1)) == 3


def test_a_missing_option_is_named() -> None:
    """A required option is requested, also if it is None."""
    expected = "The schedule 'warmup_stable_decay' needs 'num_decay_steps'. Set it in "
    assert problems_of("warmup_stable_decay") == (f"{expected}lr_scheduler_kwargs.",)
    assert problems_of("warmup_stable_decay", num_decay_steps=None) == (f"{expected}lr_scheduler_kwargs.",)


@pytest.mark.parametrize("name", ["cosine_with_min_lr", "cosine_warmup_with_min_lr"])
def test_exactly_one_floor_is_required(name: str) -> None:
    """Neither or both of min_lr and min_lr_rate is an error, besides any other problems."""
    assert "Set min_lr or min_lr_rate" in problems_of(name)[0]
    assert "Remove one of them" in problems_of(name, min_lr=0.0, min_lr_rate=0.0)[0]
    assert len(problems_of(name, num_cycles=-1)) == 2


BAD_VALUES: list[tuple[str, str, Any, str]] = [
    ("cosine", "num_cycles", -0.5, "a non-negative number"),
    ("cosine", "num_cycles", math.inf, "a non-negative number"),
    ("cosine_with_restarts", "num_cycles", "2", "a non-negative number"),
    ("polynomial", "power", math.nan, "a non-negative number"),
    ("polynomial", "power", True, "a non-negative number"),
    ("polynomial", "power", None, "a non-negative number"),
    ("polynomial", "lr_end", 1e-3, "below the base rate 0.001"),
    ("polynomial", "lr_end", -1e-9, "a non-negative number below"),
    ("inverse_sqrt", "timescale", 0, "a positive number, or None"),
    ("inverse_sqrt", "timescale", math.inf, "a positive number, or None"),
    ("cosine_with_min_lr", "min_lr", 2e-3, "a number from 0 to the base rate 0.001, or None"),
    ("cosine_with_min_lr", "min_lr", -2e-3, "a number from 0 to the base rate 0.001, or None"),
    ("cosine_with_min_lr", "min_lr_rate", 1.5, "a number from 0 to 1, or None"),
    ("cosine_warmup_with_min_lr", "warmup_lr_rate", 1.5, "a number from 0 to 1, or None"),
    ("warmup_stable_decay", "num_decay_steps", -2.5, "a non-negative number"),
    ("warmup_stable_decay", "num_decay_steps", math.inf, "a non-negative number"),
    ("warmup_stable_decay", "num_stable_steps", -1, "a non-negative number, or None"),
    ("warmup_stable_decay", "warmup_type", "exp", "one of 'linear', 'cosine', '1-sqrt'"),
    ("warmup_stable_decay", "decay_type", 3, "one of 'linear', 'cosine', '1-sqrt'"),
    ("warmup_stable_decay", "min_lr_ratio", -0.1, "a number from 0 to 1"),
    ("warmup_stable_decay", "num_cycles", -1, "a non-negative number"),
    ("reduce_lr_on_plateau", "mode", "lower", "one of 'min', 'max'"),
    ("reduce_lr_on_plateau", "factor", 1.0, "a non-negative number below 1"),
    ("reduce_lr_on_plateau", "factor", -0.1, "a non-negative number below 1"),
    ("reduce_lr_on_plateau", "patience", -1, "a non-negative whole number"),
    ("reduce_lr_on_plateau", "threshold", math.nan, "a finite number"),
    ("reduce_lr_on_plateau", "threshold_mode", "both", "one of 'rel', 'abs'"),
    ("reduce_lr_on_plateau", "cooldown", 0.5, "a non-negative whole number"),
    ("reduce_lr_on_plateau", "min_lr", [0.1, "x"], "a non-negative number, or a list"),
    ("reduce_lr_on_plateau", "min_lr", -0.1, "a non-negative number, or a list"),
    ("reduce_lr_on_plateau", "eps", -1, "a non-negative number"),
    ("greedy", "mode", "", "one of 'min', 'max'"),
    ("greedy", "factor", 0.0, "a positive number below 1"),
    ("greedy", "factor", 1, "a positive number below 1"),
    ("greedy", "patience", None, "a non-negative whole number"),
    ("greedy", "threshold", math.inf, "a finite number"),
    ("greedy", "threshold_mode", "x", "one of 'rel', 'abs'"),
    ("greedy", "cooldown", -1, "a non-negative whole number"),
    ("greedy", "warmup", -1, "a non-negative whole number"),
    ("greedy", "min_lr", math.inf, "a non-negative number, or a list"),
    ("greedy", "max_lr", 0, "a positive number, or a list"),
    ("greedy", "max_lr", math.nan, "a positive number, or a list"),
    ("greedy", "eps", math.nan, "a non-negative number"),
    ("greedy", "verbose", 1, "True or False"),
    ("greedy", "smooth", "yes", "True or False"),
    ("greedy", "window_size", 0, "a positive whole number"),
    ("greedy", "window_size", 1.5, "a positive whole number"),
    ("greedy", "reset_start", -1, "a non-negative whole number"),
]


@pytest.mark.parametrize(("name", "option", "value", "wanted"), BAD_VALUES)
def test_an_invalid_value_is_named_with_the_valid_range(name: str, option: str, value: Any, wanted: str) -> None:
    """The message has the option, the value and the valid range."""
    needed = {} if option in ("min_lr", "min_lr_rate") else NEEDED.get(name, {})
    (problem,) = problems_of(name, **{**needed, option: value})
    shown = tuple(value) if isinstance(value, list) else value
    assert problem.startswith(f"{option}={shown!r} is invalid: {option} must be ")
    assert wanted in problem


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"constant"}))
def test_negative_step_counts_are_refused(name: str) -> None:
    """An invalid warm-up or length is refused by every schedule that uses it."""
    with pytest.raises(ConfigurationError, match=r"num_warmup_steps=-1 .* a non-negative number"):
        shape(name, warmup_steps=-1, **NEEDED.get(name, {}))
    if name not in ("constant_with_warmup", "inverse_sqrt"):
        assert any("num_training_steps=-5" in problem for problem in problems_of(name, -5, **NEEDED.get(name, {})))


@pytest.mark.parametrize("base_rate", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["polynomial", "cosine_with_min_lr", "cosine_warmup_with_min_lr"])
def test_a_relative_rate_needs_a_base_rate(name: str, base_rate: float) -> None:
    """If a rate is a fraction of the base rate, the base rate must be above 0 and finite."""
    with pytest.raises(ConfigurationError, match=r"base_rate=.* a positive number"):
        build_shape(name, base_rate=base_rate, warmup_steps=1, total_steps=9, options=NEEDED.get(name, {}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cosine", {"num_cycles": 0}),
        ("polynomial", {"lr_end": 0, "power": 0}),
        ("cosine_with_min_lr", {"min_lr": 1e-3}),
        ("cosine_with_min_lr", {"min_lr_rate": 1}),
        ("cosine_warmup_with_min_lr", {"min_lr": 0, "warmup_lr_rate": 0}),
        ("warmup_stable_decay", {"num_decay_steps": 20.0, "num_stable_steps": 0, "min_lr_ratio": 1}),
        ("inverse_sqrt", {"timescale": 0.5}),
        ("reduce_lr_on_plateau", {"factor": 0, "patience": 0, "threshold": -1, "min_lr": (0, 1), "eps": 0}),
        ("greedy", {"max_lr": math.inf, "min_lr": 0, "window_size": 1, "reset_start": 0}),
    ],
)
def test_values_at_the_edge_are_accepted(name: str, options: dict[str, Any]) -> None:
    """The edges of a range are valid if the formula is defined there."""
    built: Any = build_adaptive(name, options) if name in ADAPTIVE else shape(name, **options)
    assert options.items() <= asdict(built).items()


@frozen
class Chosen:
    """Arguments that name a schedule."""

    lr_scheduler_type: str
    lr_scheduler_kwargs: dict[str, Any]
    learning_rate: float = 1e-3

    def get_warmup_steps(self, num_training_steps: int) -> float:
        return num_training_steps // 10


@pytest.mark.parametrize(
    ("name", "wrong"), [("linear", {"power": 2.0}), ("reduce_lr_on_plateau", {"patience": -1}), ("greedy", {"x": 1})]
)
def test_schedules_are_checked_before_a_run(name: str, wrong: dict[str, Any]) -> None:
    """The default options pass, and wrong ones are refused by name."""
    check_schedule(Chosen(name, {}), 100)
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        check_schedule(Chosen(name, wrong), 100)
