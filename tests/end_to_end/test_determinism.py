"""full_determinism and seeds: what a run sets, and restores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.end_to_end.small.models import net
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights


def switches() -> list[Any]:
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        os.environ.get("FLASH_ATTENTION_DETERMINISTIC"),
    ]


def test_full_determinism_is_set_and_restored(tmp_path: Path) -> None:
    """Flags of torch and environment variables are set during the run only."""
    before = switches()
    events = small_trainer(tmp_path, full_determinism=True).stream()
    next(events)
    within = switches()
    events.close()

    assert within == [True, True, False, ":16:8", "1"]
    assert switches() == before


def formats() -> list[Any]:
    cudnn: Any = torch.backends.cudnn
    return [torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision]


FP32 = ["ieee", "ieee", "ieee"]


@pytest.fixture
def script() -> Iterator[Callable[[str], None]]:
    """Return a function that sets the format of fp32 products and convolutions as a script does."""

    def set_format(how: str) -> None:
        cudnn: Any = torch.backends.cudnn
        if how == "for all":
            torch.backends.fp32_precision = "tf32"  # type: ignore[attr-defined]
        elif how == "for each":
            torch.backends.cuda.matmul.fp32_precision = cudnn.conv.fp32_precision = "tf32"
            cudnn.rnn.fp32_precision = "ieee"
        elif how == "by the older names":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    yield set_format
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize("how", ["not at all", "for all", "for each", "by the older names"])
def test_tf32_is_set_and_restored(how: str, script: Callable[[str], None], tmp_path: Path) -> None:
    """tf32=False turns TF32 off during the run only, however the script has set it; without it, nothing changes."""
    script(how)
    before = formats()
    for tf32, wanted in ((False, FP32), (None, before)):
        events = small_trainer(tmp_path, tf32=tf32).stream()
        next(events)
        within = formats()
        events.close()
        assert within == wanted
        assert formats() == before
    if how in ("not at all", "by the older names"):
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32 == (how == "by the older names")


@pytest.mark.parametrize(
    ("other", "same"), [({"seed": 1}, False), ({"data_seed": 1}, False), ({"data_seed": 42}, True)]
)
def test_seeds_determine_the_run(tmp_path: Path, other: dict[str, Any], same: bool) -> None:
    """data_seed sets the order of samples; its default is seed."""
    one, another = small_trainer(tmp_path), small_trainer(tmp_path, **other)
    one.train()
    another.train()

    assert same_weights(weights(one), weights(another)) is same


def test_each_train_of_a_model_init_is_fresh(tmp_path: Path) -> None:
    """Two runs of a Trainer give the same result, each with a new model."""
    made: list[Any] = []

    def model_init() -> Any:
        made.append(net(dropout=0.2))
        return made[-1]

    trainer = small_trainer(tmp_path, parts={"model_init": model_init})
    trainer.train()
    first, told = weights(trainer), history(trainer)
    trainer.train()

    assert same_weights(weights(trainer), first)
    assert history(trainer) == told
    assert len(made) == 2
    assert trainer.model is made[-1]
