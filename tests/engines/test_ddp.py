"""Training in several real processes under torch's DistributedDataParallel matches one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.several.training import Trained, Training, distance, fresh, run

EVERY_EPOCH = {"eval_strategy": "epoch"}


def same(one: Trained, other: Trained) -> None:
    """Compare logged values to 1e-5 relative, and weights to 1e-5 of their norm.

    Epochs counted in batches, and the operation count of the first batch, differ and are excluded.
    """
    assert len(one.logged) == len(other.logged)
    for first, second in zip(one.logged, other.logged, strict=True):
        assert first.keys() == second.keys()
        for name in first.keys() - {"epoch", "total_flos"}:
            assert second[name] == pytest.approx(first[name], rel=1e-5, abs=1e-9), (name, first, second)
    assert distance(one.weights, other.weights) < 1e-5


def steps_of(trained: Trained, training: Training) -> list[set[int]]:
    """Return the samples of each whole step of the first epoch, over all processes."""
    share = training.size // len(trained.read)
    starts = range(0, training.rows // training.size * share, share)
    return [{index for read in trained.read for index in read[start : start + share]} for start in starts]


def test_training_in_two_processes_matches_one(tmp_path: Path) -> None:
    """Samples of each step, logs, evaluation and weights match, partial batches and padding included.

    A run of two processes resumed in the middle of an epoch is bitwise equal to an uninterrupted one.
    """
    training = Training(arguments={**EVERY_EPOCH, "save_strategy": "steps", "save_steps": 4})
    alone = run(training, fresh(tmp_path / "1"))
    both = run(training.of(2), fresh(tmp_path / "2"))
    same(alone, both)
    assert steps_of(alone, training) == steps_of(both, training)
    resumed = run(training.of(2, resume=str(tmp_path / "2" / "checkpoint-4")), fresh(tmp_path / "3"))
    assert resumed.logged == both.logged
    assert distance(resumed.weights, both.weights) == 0.0


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"ddp_find_unused_parameters": False, "max_grad_norm": 0.1},
    "workers": {"dataloader_num_workers": 1},
    "momentum": {"lr_scheduler_type": "cosine", "optim": "sgd", "optim_args": "momentum=0.9"},
}


@pytest.mark.matrix
@pytest.mark.parametrize("rows", [48, 45, 41])
@pytest.mark.parametrize("options", OPTIONS)
def test_training_in_any_number_of_processes_matches_one(tmp_path: Path, rows: int, options: str) -> None:
    """One, two and four processes with one global batch log and learn the same, for every size of the last batch."""
    training = Training(rows=rows, arguments={**EVERY_EPOCH, **OPTIONS[options]})
    alone = run(training, fresh(tmp_path / "1"))
    for processes in (2, 4):
        same(alone, run(training.of(processes), fresh(tmp_path / str(processes))))


@pytest.mark.matrix
def test_four_processes_resume_bitwise_with_several_buckets(tmp_path: Path) -> None:
    """The result is the same although sums of four depend on order and buckets are rebuilt after the first step."""
    training = Training(
        processes=4,
        depth=1200,
        dropout=0.1,
        arguments={"save_strategy": "steps", "save_steps": 5, "ddp_bucket_cap_mb": 1,
                   "ddp_find_unused_parameters": False, "num_train_epochs": 2},
    )  # fmt: skip
    whole = run(training, fresh(tmp_path / "whole"))
    for step in (5, 10):
        resumed = run(
            training.of(4, resume=str(tmp_path / "whole" / f"checkpoint-{step}")), fresh(tmp_path / f"from {step}")
        )
        assert resumed.logged == whole.logged
        assert distance(resumed.weights, whole.weights) == 0.0


@pytest.mark.matrix
@pytest.mark.parametrize(("saved", "resumed_by"), [(1, 2), (2, 1), (2, 4), (4, 2)])
def test_a_checkpoint_resumes_in_another_number_of_processes(tmp_path: Path, saved: int, resumed_by: int) -> None:
    """From the middle of an epoch, the same samples follow and training matches."""
    training = Training(arguments={**EVERY_EPOCH, "save_strategy": "steps", "save_steps": 4, "logging_steps": 3})
    whole = run(training.of(saved), fresh(tmp_path / "whole"))
    resumed = run(training.of(resumed_by, resume=str(tmp_path / "whole" / "checkpoint-4")), fresh(tmp_path / "resumed"))
    same(whole, resumed)
