"""Number formats on a GPU: products of 8 bits, and weights of 16 bits alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hexloop import Trainer
from hexloop.testing import assert_resume_exact
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import arguments
from tests.end_to_end.test_bfloat16_alone import OPTIONS, trainer_of
from tests.unit.precision.models import wide

GIVEN: dict[str, Any] = {"use_cpu": False, "num_train_epochs": 4, "per_device_train_batch_size": 16}

has_fp8 = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no products of 8 bits"
)


def in_8_bits(folder: str, **fp8: Any) -> Trainer:
    """Return a Trainer in fp8 on the GPU."""
    pytest.importorskip("torchao")
    given = arguments(Path(folder), **GIVEN, fp8={"backend": "torchao", **fp8}, save_strategy="steps", save_steps=4)
    return Trainer(wide(dropout=0.1), given, train_dataset=rows(64), loggers=[])


@has_fp8
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_products_of_8_bits_are_those_of_the_emulation(recipe: str, tmp_path: Path) -> None:
    """Losses are the same but for the order of sums."""
    losses = []
    for emulate in (False, True):
        trainer = in_8_bits(str(tmp_path / str(emulate)), recipe=recipe, emulate=emulate)
        trainer.train()
        assert trainer.model.inner[0].config.emulate == emulate
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=0.03, abs=0.01)


@has_fp8
def test_a_run_in_8_bits_resumes_exactly() -> None:
    """Bitwise, in a new process."""
    assert_resume_exact(in_8_bits, stops=[6], fresh_process=True)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_weights_of_16_bits_resume_exactly(options: str) -> None:
    """The random bits of the GPU follow from the step, too."""

    def job(folder: str) -> Trainer:
        return trainer_of(folder, options, **GIVEN)

    assert_resume_exact(job, stops=[5], fresh_process=False)
