"""hexloop and transformers under torchrun with two processes: logs, weights and gradients match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.parity.compare import Tolerance, assert_same_run
from tests.end_to_end.parity.runs import Outcome
from tests.engines.several.libraries import LIMIT, train

STEPS = 54
"""Two epochs of single batches, four with accumulation over two; the last window of each epoch has one batch."""

BOTH: dict[str, Any] = {
    "model": "plain GPT",
    "per_device_train_batch_size": 4,
    "max_steps": STEPS,
    "learning_rate": 3e-3,
    "weight_decay": 0.05,
    "warmup_steps": 5,
}
WINDOWS = {"gradient_accumulation_steps": 2}
OWN_COUNTS = {"average_tokens_across_devices": False}
EACH_BATCH = {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}
GPT2 = {"model": "GPT-2"}

OF_DDP: dict[str, dict[str, Any]] = {
    "means": {"model": "convolution", "optim": "sgd", "learning_rate": 0.1},
    "means of windows": {**WINDOWS, "eval_strategy": "steps", "eval_steps": 18},
    "smoothed means of windows": {**WINDOWS, **EACH_BATCH, "label_smoothing_factor": 0.1, "logging_steps": 7},
    "counts of all": {**GPT2, "max_grad_norm": 0.3},
    "counts of all, windows": {**GPT2, **WINDOWS, "eval_strategy": "epoch"},
    "own counts, windows": {**GPT2, **OWN_COUNTS, **WINDOWS},
    "smoothed, counts of all": {**GPT2, **WINDOWS, "label_smoothing_factor": 0.1},
    "smoothed, own counts": {**GPT2, **OWN_COUNTS, "label_smoothing_factor": 0.1},
    "a function's, own counts": {**WINDOWS, **OWN_COUNTS, "own_loss": True},
}
SHARDED: dict[str, dict[str, Any]] = {
    "means of windows": {**WINDOWS, "eval_strategy": "steps", "eval_steps": 18},
    "a function's, own counts": {**OWN_COUNTS, "own_loss": True, "max_grad_norm": 0.3},
}
OF_DEEPSPEED: dict[str, dict[str, Any]] = {
    **{f"stage {stage}": {**WINDOWS, "stage": stage} for stage in (0, 1, 2)},
    "stage 3": {**OWN_COUNTS, "own_loss": True, "max_grad_norm": 0.3, "stage": 3},
}

DIFFERENT = {
    "counts of all, windows": "eval_loss",
    "smoothed means of windows": "train_loss",
    "stage 0": "grad_norm",
}
"""Logged values that differ as described in docs/differences.md."""


def set_apart(name: str, *both: Outcome) -> None:
    """Remove values that both log under one name with different meanings, after checking that they differ."""
    ours, reference = (outcome.series(name) for outcome in both)
    assert ours != pytest.approx(reference, rel=1e-5)
    for outcome in both:
        for entry in outcome.log:
            entry.pop(name, None)
        if name == "train_loss":
            outcome.output.training_loss = 0.0


@pytest.mark.matrix
@pytest.mark.timeout(3 * LIMIT)
@pytest.mark.parametrize(
    ("engine", "cases"), [("ddp", OF_DDP), ("fsdp1", SHARDED), ("fsdp2", SHARDED), ("zero", OF_DEEPSPEED)]
)
def test_both_libraries_train_identically(engine: str, cases: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """More than 50 updates: logs, final weights and first gradients match."""
    if engine == "zero":
        pytest.importorskip("deepspeed")
    given = {name: {**BOTH, **case} for name, case in cases.items()}
    ours = train("hexloop", engine, given, tmp_path / "hexloop")
    reference = train("transformers", engine, given, tmp_path / "reference")
    for name in cases:
        if name in DIFFERENT:
            set_apart(DIFFERENT[name], ours[name], reference[name])
        assert_same_run(ours[name], reference[name], Tolerance(logged=1e-5), min_steps=STEPS)
