"""Accumulating over four batches equals training on one batch four times as large, whichever labels are ignored."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.end_to_end.parity.compare import ADAM, BF16, SGD, Tolerance, assert_same_run
from tests.end_to_end.parity.data import IGNORED, Samples, samples_for
from tests.end_to_end.parity.models import MAKERS, make_model, summed
from tests.end_to_end.parity.runs import Outcome, run_both, run_hexloop, run_reference

SAMPLES = 230
"""14 full windows of 16 samples per epoch, and one of 6: a batch of 4 and one of 2."""

RATES = {"adamw_torch_fused": 3e-3, "sgd": 0.1}

IN_DOUBLE = ("sgd", "convolution")
"""With SGD each tensor is compared; in float32 some that start at zero remain mostly rounding. The convolutional net
has rectifiers, which rounding may switch: on some processors within the steps that are compared.
"""


LOSSES: dict[str, dict[str, Any]] = {
    "the model's": {},
    "smoothed": {"label_smoothing_factor": 0.1},
    "a function's": {"compute_loss_func": summed},
}

QUICK = {
    ("plain GPT", "the model's", "sgd"),
    ("GPT-2", "the model's", "adamw_torch_fused"),
    ("plain GPT", "smoothed", "adamw_torch_fused"),
    ("convolution", "a function's", "sgd"),
}


def train_both_ways(folder: Path, model: str, weighting: str, **arguments: Any) -> tuple[Outcome, Outcome]:
    """Train with four batches of 4 samples, and with one of 16."""
    parts = {name: arguments.pop(name) for name in ("compute_loss_func",) if name in arguments}
    common = {"num_train_epochs": 4, "warmup_steps": 5, "weight_decay": 0.05, "loss_weighting": weighting, **arguments}
    small = {**common, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    large = {**common, "per_device_train_batch_size": 16}
    kind = torch.float64 if {model, arguments["optim"]} & set(IN_DOUBLE) else torch.float32
    start, data = make_model(model).to(kind), samples_for(model, SAMPLES).to(kind)
    accumulated = run_hexloop(folder / "small", start, small, train_dataset=data, **parts)
    at_once = run_hexloop(folder / "large", start, large, train_dataset=data, **parts)
    for entry in (*accumulated.log, *at_once.log):
        entry.pop("epoch")  # counts batches, whose numbers differ
    return accumulated, at_once


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("model", "loss", "optim"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.matrix)
        for case in product(MAKERS, LOSSES, RATES)
        if case[:2] != ("GPT-2", "a function's")  # GPT-2 needs shifted labels, which `summed` does not support
    ],
)
def test_accumulation_is_a_larger_batch(model: str, loss: str, optim: str, tmp_path: Path) -> None:
    """Four batches with different counts of labels give the losses, norms and weights of one."""
    arguments = {"optim": optim, "learning_rate": RATES[optim], **LOSSES[loss]}
    accumulated, at_once = train_both_ways(tmp_path, model, "exact", **arguments)
    assert_same_run(accumulated, at_once, SGD if optim == "sgd" else ADAM)


def test_means_of_means_differ(tmp_path: Path) -> None:
    """The comparison above detects wrong weighting: with transformers', the two runs have different losses."""
    accumulated, at_once = train_both_ways(tmp_path, "plain GPT", "reference", optim="sgd", learning_rate=0.1)
    with pytest.raises(AssertionError, match="loss at 1:"):
        assert_same_run(accumulated, at_once, Tolerance(logged=1e-3))


def test_labels_without_predictions_are_not_counted(tmp_path: Path) -> None:
    """GPT-2's loss of one batch is the mean over the labels that it compares, which excludes each row's first."""
    data = samples_for("GPT-2", SAMPLES)
    once = {"max_steps": 1, "per_device_train_batch_size": 16, "learning_rate": 0.0}
    ours = run_hexloop(tmp_path, make_model("GPT-2"), once, train_dataset=data)
    batch = Samples(**{name: column[:16] for name, column in data.columns.items()}).columns
    with torch.no_grad():
        mean = make_model("GPT-2")(**batch).loss
    assert (batch["labels"][:, 0] != IGNORED).any()
    assert ours.series("loss")[0] == pytest.approx(float(mean), rel=1e-6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_a_users_loss_matches_transformers(bf16: bool, tmp_path: Path) -> None:
    """A loss function receives the same outputs, labels and counts as in transformers, in evaluation, too."""
    seen: dict[str, list[Any]] = {}

    def watched(library: str) -> Any:
        seen[library] = []

        def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
            logits = outputs["logits"]
            seen[library].append((logits.dtype, tuple(labels.shape), int(num_items_in_batch)))
            chosen = torch.log_softmax(logits, dim=-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            mean: Tensor = -chosen[labels != IGNORED].sum() / num_items_in_batch
            return mean

        return loss

    arguments: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "max_steps": 62,
        "learning_rate": 1e-2,
        "optim": "sgd",
        "bf16": bf16,
        "eval_strategy": "epoch",
    }
    data = {"train_dataset": samples_for("plain GPT", SAMPLES), "eval_dataset": samples_for("plain GPT", 20, seed=1)}
    model = make_model("plain GPT")
    ours = run_hexloop(
        tmp_path, model, {**arguments, "loss_weighting": "reference"}, compute_loss_func=watched("hexloop"), **data
    )
    reference = run_reference(tmp_path, model, arguments, compute_loss_func=watched("reference"), **data)
    assert seen["hexloop"] == seen["reference"]
    assert_same_run(ours, reference, Tolerance(gradient=None) if bf16 else SGD)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("arguments", [{}, {"bf16": True}, {"gradient_accumulation_steps": 4}], ids=str)
def test_an_overridden_loss_matches_transformers(arguments: dict[str, Any], tmp_path: Path) -> None:
    """A `compute_loss` written for transformers trains identically with hexloop's base class."""

    def derive(base: Any) -> Any:
        class Weighted(base):  # type: ignore[misc]  # either library's Trainer
            def compute_loss(
                self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
            ) -> Any:
                labels = inputs.pop("labels")
                outputs = model(**inputs)
                logits = outputs["logits"]
                assert logits.dtype is torch.float32
                chosen = torch.log_softmax(logits, dim=-1)[torch.arange(len(labels)), labels]
                loss = -(chosen * (1.0 + labels)).mean()
                return (loss, outputs) if return_outputs else loss

        return Weighted

    common = {"per_device_train_batch_size": 4, "max_steps": 62, "learning_rate": 1e-2, "eval_strategy": "epoch"}
    ours, reference = run_both(
        tmp_path,
        make_model("convolution"),
        {**common, **arguments},
        train_dataset=samples_for("convolution", SAMPLES),
        eval_dataset=samples_for("convolution", 30, seed=1),
        derive=derive,
    )
    assert_same_run(ours, reference, BF16 if "bf16" in arguments else ADAM)
    assert len(ours.series("eval_loss")) > 0
