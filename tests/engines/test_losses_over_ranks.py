"""Losses, their components, and evaluations are the same over several processes as in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hexloop import Trainer, TrainerCallback
from tests.end_to_end.small.decoders import llama, sentences
from tests.engines.several.training import Reader, Trained, Training, distance, run

UNALIKE = ("_runtime", "_per_second", "epoch", "total_flos", "_samples")


class Composed(Reader):
    """Returns parts of its loss, which are means over labels, beside it."""

    def forward(self, words: Any, labels: Any = None) -> dict[str, Any]:
        """See `Reader`."""
        found: dict[str, Any] = super().forward(words, labels)
        if labels is None:
            return found
        chosen = found["logits"][labels != -100]
        spread = chosen.logsumexp(-1).square().mean()
        return {**found, "loss": found["loss"] + 1e-3 * spread, "z_loss": spread, "loss_dict": {"first": found["loss"]}}


class OfComposed(Trainer):
    """Trains `Composed`, and logs components of its own and the accuracy of tokens."""

    def __init__(self, model: Any, *values: Any, **given: Any) -> None:
        super().__init__(Composed(2), *values, **given)
        self.log_loss_components = {"doubled": lambda outputs: 2 * outputs["z_loss"]}


class OfDecoder(Trainer):
    """Trains a decoder of transformers on rows with different numbers of labels."""

    def __init__(self, model: Any, args: Any, *values: Any, **given: Any) -> None:
        del given["compute_metrics"]
        super().__init__(llama(), args, train_dataset=sentences(24), eval_dataset=sentences(13), **given)


def logged(trained: Trained) -> list[dict[str, float]]:
    return [{name: value for name, value in entry.items() if not name.endswith(UNALIKE)} for entry in trained.history]


def assert_alike(one: Trained, other: Trained, tolerance: float = 1e-6) -> None:
    """Assert that two runs logged the same and ended with the same weights, but for rounding."""
    assert len(logged(one)) == len(logged(other))
    for found, expected in zip(logged(one), logged(other), strict=True):
        assert found == pytest.approx(expected, rel=tolerance, abs=1e-7)
    assert distance(one.weights, other.weights) < 1e-5


def test_components_over_ranks_and_accumulation(tmp_path: Path) -> None:
    """Two processes with three accumulated batches log what one process with the whole batches does."""
    given: dict[str, Any] = {"num_train_epochs": 1, "logging_steps": 2, "log_token_accuracy": True, "optim": "sgd"}
    whole = Training(1, rows=45, size=12, batch=12, kind=OfWhole, arguments=given)
    alone = run(whole, tmp_path / "alone")
    several = run(whole.of(2, batch=2, kind=OfComposed), tmp_path / "several")
    names = {"loss", "z_loss", "first", "doubled", "token_accuracy"}
    assert names <= logged(several)[0].keys()
    assert_alike(several, alone)
    for entry in logged(alone)[:-1]:
        if "loss" in entry:
            assert entry["loss"] == pytest.approx(entry["first"] + 1e-3 * entry["z_loss"], rel=1e-6)


class OfWhole(OfComposed):
    """The same, under another name for a run of one process."""


@pytest.mark.matrix
@pytest.mark.parametrize("given", [{"chunked_loss": True, "label_smoothing_factor": 0.1}, {"chunked_loss": True}, {}])
def test_decoders_over_ranks(given: dict[str, Any], tmp_path: Path) -> None:
    """Training, with and without chunks, and evaluations of batches of other sizes, in two processes as in one."""
    usual = {"num_train_epochs": 2, "eval_strategy": "epoch", "optim": "sgd", "log_token_accuracy": True, **given}
    training = Training(1, size=6, batch=3, kind=OfDecoder, engine="DistributedDataParallel", arguments=usual)
    alone = run(training, tmp_path / "alone")
    several = run(training.of(2), tmp_path / "several")
    assert_alike(several, alone)
    if given:
        without = {name: value for name, value in usual.items() if name != "chunked_loss"}
        assert_alike(several, run(training.of(2, arguments=without), tmp_path / "whole"))
    assert any("eval_loss" in entry for entry in logged(several))


class Keeping(TrainerCallback):
    """Keeps the interpreter from warning of a Trainer without callbacks."""


@pytest.mark.matrix
def test_parameters_that_are_not_used_with_a_loss_outside_of_the_model(tmp_path: Path) -> None:
    """DDP finds the weights of the output layer in logits that are pending, although the loss is computed outside."""
    given = {
        "chunked_loss": True,
        "label_smoothing_factor": 0.1,
        "ddp_find_unused_parameters": True,
        "num_train_epochs": 1,
    }
    training = Training(2, size=6, batch=3, kind=OfDecoder, arguments=given, callbacks=(Keeping,))
    found = run(training, tmp_path / "found")
    assert_alike(found, run(training.of(1), tmp_path / "alone"))
    assert all(bool(torch.isfinite(value).all()) for value in found.weights.values())


@pytest.mark.matrix
def test_zero_2(tmp_path: Path) -> None:
    """DeepSpeed with whole weights trains in chunks as without."""
    pytest.importorskip("deepspeed")
    given: dict[str, Any] = {"deepspeed": {"zero_optimization": {"stage": 2}}, "num_train_epochs": 1}
    training = Training(2, size=6, batch=3, kind=OfDecoder, engine="DeepSpeedEngine", arguments=given)
    plain = run(training, tmp_path / "plain")
    assert_alike(run(training.of(2, arguments={**given, "chunked_loss": True}), tmp_path / "chunked"), plain, 1e-5)
