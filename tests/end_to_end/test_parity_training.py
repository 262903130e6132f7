"""Training with hexloop and with transformers: logs, weights and gradients match."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.parity.compare import ADAM, BF16, SGD, assert_same_run
from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import MAKERS, make_model
from tests.end_to_end.parity.runs import run_both

SAMPLES = 230
"""58 batches of 4, the last with 2 samples; 15 windows of 4 batches, the last with 2 batches."""

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW": {"optim": "adamw_torch_fused", "learning_rate": 3e-3},
    "SGD": {"optim": "sgd", "learning_rate": 0.1},
}

ONE_BATCH = {"max_steps": 62}
FOUR_BATCHES = {"max_steps": 62, "gradient_accumulation_steps": 4}

SINGLE: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped hard": {"max_grad_norm": 0.3},
    "not clipped": {"max_grad_norm": 0},
    "warm-up": {"warmup_steps": 11},
    "warm-up by ratio and cosine": {"warmup_steps": 0.15, "lr_scheduler_type": "cosine"},
    "weight decay": {"weight_decay": 0.1},
    "logged every 7": {"logging_steps": 7, "logging_first_step": True},
}
COMBINED: dict[str, dict[str, Any]] = {
    "smoothing": {"label_smoothing_factor": 0.1},
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True},
}


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each argument by itself, and every combination of those that change a forward pass."""
    yield from SINGLE.items()
    for chosen in product((False, True), repeat=len(COMBINED)):
        names = [name for name, is_chosen in zip(COMBINED, chosen, strict=True) if is_chosen]
        if names:
            merged = {key: value for name in names for key, value in COMBINED[name].items()}
            yield " ".join(names), {**merged, "weight_decay": 0.05, "warmup_steps": 5}


QUICK = {
    ("convolution", "SGD", 1, "warm-up"),
    ("convolution", "AdamW", 4, "smoothing"),
    ("convolution", "AdamW", 1, "checkpointing"),
    ("plain GPT", "AdamW", 4, "weight decay"),
    ("plain GPT", "SGD", 4, "clipped hard"),
    ("plain GPT", "AdamW", 1, "bf16"),
    ("GPT-2", "AdamW", 4, "plain"),
    ("GPT-2", "SGD", 1, "smoothing checkpointing"),
}
"""Every model, optimizer, argument and accumulation at least once."""

CASES = [
    pytest.param(
        model,
        optimizer,
        {**(ONE_BATCH if batches == 1 else FOUR_BATCHES), **OPTIMIZERS[optimizer], **arguments},
        id=f"{model}-{optimizer}-{batches}-{name}",
        marks=() if (model, optimizer, batches, name) in QUICK else pytest.mark.matrix,
    )
    for model, optimizer, batches, (name, arguments) in product(MAKERS, OPTIMIZERS, (1, 4), settings())
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("model", "optimizer", "arguments"), CASES)
def test_both_train_identically(model: str, optimizer: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """Over more than 60 updates the libraries log the same numbers and end with the same weights."""
    arguments = {"per_device_train_batch_size": 4, **arguments}
    ours, reference = run_both(tmp_path, make_model(model), arguments, train_dataset=samples_for(model, SAMPLES))
    tolerance = BF16 if arguments.get("bf16") else SGD if optimizer == "SGD" else ADAM
    assert_same_run(ours, reference, tolerance)
    assert ours.events == reference.events


def test_the_quick_cases_exist() -> None:
    """Each case of the quick run is part of the matrix."""
    assert sum(not case.marks for case in CASES) == len(QUICK)
