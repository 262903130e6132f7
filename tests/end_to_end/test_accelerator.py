"""`trainer.accelerator` as code written for transformers uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hexloop import Trainer
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


class OwnStep(Trainer):
    """Overrides training_step as scripts for transformers do."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        with self.accelerator.autocast():
            loss: torch.Tensor = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.parametrize("arguments", [{}, {"bf16": True}])
def test_a_step_through_the_accelerator_matches_the_standard_step(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Its autocast and backward give the same weights as the standard step."""
    standard = small_trainer(tmp_path / "standard", **arguments)
    overridden = small_trainer(tmp_path / "overridden", OwnStep, **arguments)
    standard.train(), overridden.train()
    assert same_weights(weights(overridden), weights(standard))


def test_the_accelerator_reports_process_and_device(tmp_path: Path) -> None:
    """One process on the CPU: the indices are 0, and prepared objects are returned unchanged."""
    trainer = small_trainer(tmp_path)
    accelerator, ones = trainer.accelerator, torch.ones(2)
    assert (accelerator.process_index, accelerator.num_processes, accelerator.is_main_process) == (0, 1, True)
    assert accelerator.device == torch.device("cpu")
    assert accelerator.sync_gradients
    assert accelerator.unwrap_model(trainer.model) is trainer.model
    assert accelerator.prepare(trainer.model) is trainer.model
    assert accelerator.prepare(1, 2) == (1, 2)
    assert torch.equal(accelerator.gather_for_metrics(ones), ones)
    assert torch.equal(accelerator.reduce(ones, scale=3.0), 3 * ones)
    accelerator.wait_for_everyone()
