"""A run that failed leaves nothing for the next run of the same Trainer, and no gradient stays after a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from hexloop import TrainerCallback
from hexloop.adapters.precision.autocast import Fp16Precision
from hexloop.domain.errors import RunStateError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


class FailsOnce(TrainerCallback):
    """Raises at the first of one kind of events."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self._fail)
        self.failed = False

    def _fail(self, *args: Any, **kwargs: Any) -> None:
        if not self.failed:
            self.failed = True
            raise ZeroDivisionError


@pytest.mark.parametrize("event", ["on_substep_end", "on_pre_optimizer_step"])
@pytest.mark.parametrize("fp16", [False, True])
def test_a_run_after_one_that_failed_equals_a_first_run(tmp_path: Path, event: str, fp16: bool) -> None:
    """Neither gradients nor an unscaling without its step are left, also with an optimizer of the user's."""

    def trainer(*callbacks: TrainerCallback) -> Any:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parts = {"model": model, "optimizers": (optimizer, None), "callbacks": callbacks}
        return small_trainer(tmp_path, parts=parts, gradient_accumulation_steps=2, fp16=fp16)

    first, second = trainer(), trainer(FailsOnce(event))
    with pytest.raises(ZeroDivisionError):
        second.train()
    first.train(), second.train()
    assert same_weights(weights(first), weights(second))


def test_gradients_are_not_scaled_between_unscaling_and_the_step() -> None:
    """A further backward pass would add scaled gradients to those that are unscaled already."""
    weight = torch.nn.Parameter(torch.ones(1))
    precision, optimizer = Fp16Precision("cpu"), torch.optim.SGD([weight], lr=0.1)
    weight.grad = precision.scale(torch.ones(1))
    precision.unscale(optimizer)
    with pytest.raises(RunStateError, match="unscaled"):
        precision.scale(weight.sum())
    precision.step(optimizer)
    assert float(precision.scale(weight.sum().detach())) > 1


def test_gradients_of_parameters_outside_of_the_model_are_cleared(tmp_path: Path) -> None:
    """Those of a loss function, which the optimizer updates: each step uses its own gradient only."""

    def trained_factor(by_trainer: bool) -> float:
        model, factor = net(), torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([factor], lr=0.01)

        def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Tensor:
            return mse_loss(outputs["logits"] * factor, labels, reduction="sum") / 4

        if by_trainer:
            parts = {"model": model, "optimizers": (optimizer, None), "compute_loss_func": loss}
            schedule: dict[str, Any] = {
                "lr_scheduler_type": "constant",
                "max_grad_norm": 0.0,
                "train_sampling_strategy": "sequential",
            }
            small_trainer(tmp_path, parts=parts, **schedule).train()
            return factor.item()
        for first in range(0, 16, 4):
            batch = rows(16)[first : first + 4]
            x, labels = (torch.stack([row[name] for row in batch]) for name in ("x", "labels"))
            optimizer.zero_grad()
            (factor.grad,) = torch.autograd.grad(loss(model(x), labels), factor)
            optimizer.step()
        return factor.item()

    assert trained_factor(by_trainer=True) == trained_factor(by_trainer=False)
