"""Training of weights in bfloat16, by an optimizer that keeps small updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hexloop import Trainer
from hexloop.testing import assert_resume_exact
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import arguments, history
from tests.unit.precision.models import Wide, wide

OPTIONS = {"Kahan": "use_kahan_summation=True", "stochastic": "rounding=stochastic,seed=3"}


class InBfloat16(Wide):
    """Takes inputs in float32."""

    def forward(self, x: Any, labels: Any = None) -> Any:
        """Return what the model returns for inputs of its own type."""
        return super().forward(x.bfloat16(), None if labels is None else labels.bfloat16())


def losses_of(trainer: Any) -> list[float]:
    """Return the logged losses."""
    return [float(entry["loss"]) for entry in history(trainer) if "loss" in entry]


def trainer_of(folder: str, options: str, **given: Any) -> Trainer:
    """Return a Trainer of weights in bfloat16."""
    model = InBfloat16(dropout=0.1)
    model.load_state_dict(wide().state_dict())
    settings = {
        "optim": "adamw_anyprecision", "optim_args": options, "learning_rate": 2e-3, "weight_decay": 0.1,
        "num_train_epochs": 3, "save_strategy": "steps", "save_steps": 2, **given,
    }  # fmt: skip
    return Trainer(model.to(torch.bfloat16), arguments(Path(folder), **settings), train_dataset=rows(16), loggers=[])


def compensated_job(folder: str) -> Trainer:
    """Return a Trainer that a new process makes as well."""
    return trainer_of(folder, OPTIONS["Kahan"])


def rounded_job(folder: str) -> Trainer:
    """Return a Trainer that a new process makes as well."""
    return trainer_of(folder, OPTIONS["stochastic"])


@pytest.mark.matrix
@pytest.mark.parametrize("job", [compensated_job, rounded_job], ids=list(OPTIONS))
def test_a_run_resumes_exactly(job: Any) -> None:
    """Bitwise, in a new process: the second numbers are saved, and the random bits follow from the step."""
    assert_resume_exact(job, stops=[5], fresh_process=True)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_learns_as_in_float32(options: str, tmp_path: Path) -> None:
    """Losses are those of a run in float32, within the rounding of bfloat16."""
    ours = trainer_of(str(tmp_path / "ours"), options, num_train_epochs=8, learning_rate=0.01)
    model = wide(dropout=0.1)
    settings = {"learning_rate": 0.01, "weight_decay": 0.1, "num_train_epochs": 8, "optim": "adamw_torch"}
    theirs = Trainer(model, arguments(tmp_path / "theirs", **settings), train_dataset=rows(16), loggers=[])
    losses = []
    for each in (ours, theirs):
        each.train()
        losses.append(losses_of(each))
    assert losses[0] == pytest.approx(losses[1], rel=0.1, abs=0.03)
    assert sum(losses[0][-4:]) < sum(losses[0][:4]) / 2, "it learned nothing, so nothing was compared"


def test_a_checkpoint_holds_the_state_as_tensors(tmp_path: Path) -> None:
    """Moments in float32 and second numbers in bfloat16, by the names of the parameters, without a pickle."""
    trainer = trainer_of(str(tmp_path), OPTIONS["Kahan"], max_steps=2)
    trainer.train()
    held = load_file(tmp_path / "checkpoint-2" / "optimizer.safetensors")
    kinds = {"exp_avg": torch.float32, "exp_avg_sq": torch.float32, "compensation": torch.bfloat16}
    expected = {f"{name}.{kind}": dtype for name, _ in wide().named_parameters() for kind, dtype in kinds.items()}
    assert {name: tensor.dtype for name, tensor in held.items()} == expected
    assert any(bool(tensor.any()) for name, tensor in held.items() if name.endswith("compensation"))
