"""Learning rates at every step match transformers', through both libraries' Trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import SchedulerType

from tests.end_to_end.parity.compare import assert_same_log
from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.runs import run_both

EVALUATED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "loss"}

SCHEDULES: dict[str, dict[str, Any]] = {
    "linear": {},
    "cosine": {"lr_scheduler_kwargs": {"num_cycles": 1.5}},
    "cosine_with_restarts": {"lr_scheduler_kwargs": {"num_cycles": 3}},
    "polynomial": {"lr_scheduler_kwargs": {"power": 2.0, "lr_end": 1e-4}},
    "constant": {},
    "constant_with_warmup": {},
    "inverse_sqrt": {"lr_scheduler_kwargs": {"timescale": 9}},
    "cosine_with_min_lr": {"lr_scheduler_kwargs": {"min_lr": 1e-4}},
    "cosine_warmup_with_min_lr": {"lr_scheduler_kwargs": {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}},
    "warmup_stable_decay": {"lr_scheduler_kwargs": {"num_decay_steps": 12, "min_lr_ratio": 0.05}},
    "reduce_lr_on_plateau": {**EVALUATED, "lr_scheduler_kwargs": {"factor": 0.5, "patience": 0, "threshold": 0.1}},
    "greedy": {**EVALUATED, "lr_scheduler_kwargs": {"factor": 0.7, "patience": 1, "min_lr": 1e-5}},
}


def test_every_schedule_is_compared() -> None:
    """The schedules below are all that transformers has."""
    assert set(SCHEDULES) == {member.value for member in SchedulerType}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("accumulation", [1, pytest.param(4, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_of_a_run(name: str, accumulation: int, tmp_path: Path) -> None:
    """Every step logs transformers' learning rate, and trains with it."""
    arguments = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": accumulation,
        "max_steps": 30,
        "learning_rate": 5e-3,
        "weight_decay": 0.01,
        "warmup_steps": 6,
        "lr_scheduler_type": name,
        **SCHEDULES[name],
    }
    train, held_out = samples_for("convolution", 50), samples_for("convolution", 30, seed=1)
    ours, reference = run_both(
        tmp_path, make_model("convolution"), arguments, train_dataset=train, eval_dataset=held_out
    )
    rates = ours.series("learning_rate")
    assert len(rates) == 30
    assert name == "constant" or len(set(rates)) > 2, "the rate never moved"
    assert rates == reference.series("learning_rate")
    assert_same_log(ours.log, reference.log, 1e-6)
