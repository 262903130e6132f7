"""The schedule factories match transformers', in a hand-written loop."""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from transformers import optimization

import hexloop
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

STEPS = 60

CALLS: Mapping[str, list[dict[str, Any]]] = {
    "get_constant_schedule": [{}],
    "get_constant_schedule_with_warmup": [{"num_warmup_steps": 7}, {"num_warmup_steps": 7.3}],
    "get_linear_schedule_with_warmup": [
        {"num_warmup_steps": 7, "num_training_steps": 50},
        {"num_warmup_steps": 0.1 * 47, "num_training_steps": 47.5},
        {"num_warmup_steps": 0, "num_training_steps": 1},
    ],
    "get_cosine_schedule_with_warmup": [
        {"num_warmup_steps": 7, "num_training_steps": 50, "num_cycles": 1.5},
        {"num_warmup_steps": 0.3, "num_training_steps": 40},
    ],
    "get_cosine_with_hard_restarts_schedule_with_warmup": [
        {"num_warmup_steps": 7, "num_training_steps": 50, "num_cycles": 3}
    ],
    "get_polynomial_decay_schedule_with_warmup": [
        {"num_warmup_steps": 7, "num_training_steps": 50},
        {"num_warmup_steps": 4.7, "num_training_steps": 50, "lr_end": 1e-3, "power": 2.0},
    ],
    "get_inverse_sqrt_schedule": [{"num_warmup_steps": 7}, {"num_warmup_steps": 0, "timescale": 12}],
    "get_cosine_with_min_lr_schedule_with_warmup": [
        {"num_warmup_steps": 7, "num_training_steps": 50, "min_lr": 1e-3},
        {"num_warmup_steps": 7, "num_training_steps": 50, "min_lr_rate": 0.2, "num_cycles": 1.0},
    ],
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate": [
        {"num_warmup_steps": 7, "num_training_steps": 50, "min_lr": 1e-3},
        {"num_warmup_steps": 0.4, "num_training_steps": 50, "min_lr_rate": 0.1},
        {"num_warmup_steps": 7, "num_training_steps": 50, "min_lr_rate": 0.1, "warmup_lr_rate": 0.3},
    ],
    "get_wsd_schedule": [
        {"num_warmup_steps": 7, "num_decay_steps": 20, "num_training_steps": 50},
        {"num_warmup_steps": 7, "num_stable_steps": 20, "num_decay_steps": 10, "min_lr_ratio": 0.1},
        {"num_warmup_steps": 7, "num_decay_steps": 20, "num_training_steps": 50, "decay_type": "1-sqrt"},
    ],
}
"""Each factory with its calls; those that take a metric are below."""


def optimizer_of(*rates: float) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, lr=rates[0])


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def series(library: Any, name: str, options: Mapping[str, Any], steps: int = STEPS) -> list[list[float]]:
    """Return the groups' rates before every update of a hand-written loop."""
    optimizer = optimizer_of(0.05, 0.002)
    scheduler: Any = getattr(library, name)(optimizer, **options)
    assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
    seen = []
    for _ in range(steps):
        assert scheduler.get_last_lr() == rates_of(optimizer)
        seen.append(rates_of(optimizer))
        optimizer.step()
        scheduler.step()
    return seen


def assert_equal(ours: list[list[float]], reference: list[list[float]]) -> None:
    for step, (one, other) in enumerate(zip(ours, reference, strict=True)):
        assert one == other, (step, one, other)


@pytest.mark.parametrize(
    ("name", "options"), [pytest.param(name, each, id=name) for name, calls in CALLS.items() for each in calls]
)
def test_rates_at_every_step(name: str, options: dict[str, Any]) -> None:
    """The scheduler sets transformers' rates at every step, in each group, for integer and fractional step counts."""
    assert_equal(series(hexloop, name, options), series(optimization, name, options))


@pytest.mark.parametrize("name", [*CALLS, "get_scheduler", "get_adafactor_schedule"])
def test_signatures_match_transformers(name: str) -> None:
    """Arguments have the same names, order and defaults, so that calls by position mean the same."""
    ours, reference = (inspect.signature(getattr(library, name)).parameters for library in (hexloop, optimization))
    assert [(each, of.default) for each, of in ours.items()] == [(each, of.default) for each, of in reference.items()]


def test_every_factory_is_compared() -> None:
    """All factories of transformers are exported, and each is compared here."""
    reference = {name for name in vars(optimization) if name.startswith("get_")}
    followers = {"get_scheduler", "get_greedy_schedule", "get_reduce_on_plateau_schedule", "get_adafactor_schedule"}
    exported = {name for name in dir(hexloop) if name.startswith("get_")} - {"get_last_checkpoint"}
    assert exported == reference == CALLS.keys() | followers


def test_by_name() -> None:
    """get_scheduler accepts transformers' enumeration, hexloop's, and strings."""
    for name in (transformers.SchedulerType.COSINE, hexloop.SchedulerType.COSINE, "cosine"):
        made = hexloop.get_scheduler(name, optimizer_of(0.1), 5, 40, {"num_cycles": 2})
        assert made.lr_lambdas[0](5) == 1.0
        assert made.lr_lambdas[0](40) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["get_reduce_on_plateau_schedule", "get_greedy_schedule"])
def test_schedulers_that_take_a_metric(name: str) -> None:
    """After every metric the groups have transformers' rates, also after a JSON round trip of the state dict."""
    options = {"factor": 0.7, "patience": 1, "min_lr": 1e-5}
    ours, reference = optimizer_of(0.05, 0.002), optimizer_of(0.05, 0.002)
    scheduler: Any = getattr(hexloop, name)(ours, **options)
    theirs: Any = getattr(optimization, name)(reference, **options)
    for number in range(60):
        metric = abs(math.sin(number)) / (1 + number / 20)
        scheduler.step(metric)
        theirs.step(metric)
        assert rates_of(ours) == rates_of(reference) == scheduler.get_last_lr()
        if number == 30:
            kept = json.loads(json.dumps(scheduler.state_dict()))
            ours = optimizer_of(*rates_of(ours))
            scheduler = getattr(hexloop, name)(ours, **options)
            scheduler.load_state_dict(kept)
    assert not {*rates_of(ours)} & {0.05, 0.002}


def test_rates_of_adafactor() -> None:
    """The scheduler reports transformers' rates after each step, and the initial one before."""
    shown, adafactor = [], cast(Any, transformers.Adafactor)
    for library in (hexloop, optimization):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer: Any = adafactor(model.parameters(), scale_parameter=True, relative_step=True, lr=None)
        scheduler = library.get_adafactor_schedule(optimizer, initial_lr=0.3)
        seen = [scheduler.get_last_lr()]
        for _ in range(5):
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            seen.append([float(rate) for rate in scheduler.get_last_lr()])
        shown.append(seen)
    assert shown[0] == shown[1]
    assert shown[0][0] == [0.3]
    assert len({rates[0] for rates in shown[0]}) == 6


def test_starting_at_a_step() -> None:
    """With `last_epoch` a scheduler starts at another one's step."""
    whole = series(hexloop, "get_linear_schedule_with_warmup", {"num_warmup_steps": 5, "num_training_steps": 40})
    optimizer = optimizer_of(0.05, 0.002)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    hexloop.get_linear_schedule_with_warmup(optimizer, 5, 40, last_epoch=11)
    assert rates_of(optimizer) == whole[12]


def test_state_dicts_cross_over() -> None:
    """A scheduler's state loads into transformers' of the same kind, and back."""
    states = []
    for one, other in ((hexloop, optimization), (optimization, hexloop)):
        first, second = optimizer_of(0.1), optimizer_of(0.1)
        scheduler = one.get_linear_schedule_with_warmup(first, 3, 20)
        for _ in range(7):
            first.step()
            scheduler.step()
        again = other.get_linear_schedule_with_warmup(second, 3, 20)
        again.load_state_dict(scheduler.state_dict())
        second.step()
        again.step()
        states.append(rates_of(second))
    assert states[0] == states[1] == [pytest.approx(0.1 * 12 / 17)]


@pytest.mark.parametrize("stages", [(10, 80, 20), (10, 20, 30, 0.1, 0.5), (5, 20, 30, 0.25)])
def test_stages_in_the_order_of_older_releases(stages: tuple[Any, ...]) -> None:
    """Positional calls in the order of older releases are refused with the fix."""
    with pytest.raises(ConfigurationError, match=r"Older releases .* in another order; pass them by name"):
        hexloop.get_wsd_schedule(optimizer_of(0.1), *stages)


def test_two_lengths_for_the_stable_stage() -> None:
    """As in transformers, the stage's own length counts, with a warning."""
    with pytest.warns(UserWarning, match="num_training_steps=90 is ignored"):
        made = hexloop.get_wsd_schedule(optimizer_of(0.1), 2, 10, num_training_steps=90, num_stable_steps=5)
    assert made.lr_lambdas[0](17) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = optimization.get_wsd_schedule(optimizer_of(0.1), 2, 10, num_training_steps=90, num_stable_steps=5)
    assert [made.lr_lambdas[0](step) for step in range(20)] == [theirs.lr_lambdas[0](step) for step in range(20)]


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: hexloop.get_scheduler("linaer", optimizer_of(0.1), 1, 2), "did you mean 'linear'"),
        (lambda: hexloop.get_scheduler("linear", optimizer_of(0.1)), "set num_warmup_steps"),
        (lambda: hexloop.get_scheduler("linear", optimizer_of(0.1), 3), "num_training_steps|length"),
        (lambda: hexloop.get_scheduler("cosine", optimizer_of(0.1), 1, 9, {"cycles": 2}), "'cycles'"),
        (lambda: hexloop.get_polynomial_decay_schedule_with_warmup(optimizer_of(0.1), 1, 9, lr_end=0.2), "lr_end=0.2"),
        (lambda: hexloop.get_linear_schedule_with_warmup(optimizer_of(0.1), -1, 9), "num_warmup_steps=-1"),
        (lambda: hexloop.get_greedy_schedule(optimizer_of(0.1), factor=2), "factor=2"),
    ],
)
def test_invalid_schedules_are_refused(call: Any, wanted: str) -> None:
    """The error names the argument and how to fix it."""
    with pytest.raises(ConfigurationError, match=wanted):
        call()


def test_greedy_needs_an_optimizer() -> None:
    """Any other type is refused at once."""
    with pytest.raises(TypeError, match="dict is not a torch optimizer"):
        hexloop.get_greedy_schedule(cast(Any, {}))


SUPPLIED: Mapping[str, Callable[[torch.optim.Optimizer], Any]] = {
    "by the step": lambda optimizer: hexloop.get_linear_schedule_with_warmup(optimizer, 2, 8),
    "by a metric": lambda optimizer: hexloop.get_greedy_schedule(optimizer, patience=0, min_lr=1e-5),
    "torch's, by a metric": lambda optimizer: hexloop.get_reduce_on_plateau_schedule(
        optimizer, patience=0, threshold=0.9
    ),
    "transformers', by a metric": lambda optimizer: optimization.get_greedy_schedule(
        optimizer, patience=0, min_lr=1e-5
    ),
    "torch's, of two": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)],
        [3],
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", SUPPLIED)
def test_a_run_with_a_user_s_scheduler_resumes_exactly(kind: str, tmp_path: Path) -> None:
    """A Trainer steps it, and resumes it exactly from before and after the first metric."""

    def trainer(folder: str) -> Any:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        parts = {"model": model, "optimizers": (optimizer, SUPPLIED[kind](optimizer)), "eval_dataset": rows(6, seed=1)}
        given: dict[str, Any] = {
            "save_strategy": "steps",
            "save_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 3,
            "max_steps": 8,
        }
        return small_trainer(tmp_path / folder, parts=parts, **given)

    whole = trainer("whole")
    whole.train()
    assert len({entry["learning_rate"] for entry in whole.state.log_history if "learning_rate" in entry}) > 1
    for step in (1, 4):
        rest = trainer(f"from {step}")
        rest.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert same_weights(weights(whole), weights(rest))
        assert history(whole) == history(rest)
