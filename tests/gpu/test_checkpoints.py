"""Checkpoints of runs on a GPU: they contain the step that they name, and runs resume from them exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hexloop
from hexloop import Trainer, TrainerCallback
from hexloop.testing import assert_resume_exact
from tests.end_to_end.small.models import FEATURES, Noisy, net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


def job(folder: str, **given: Any) -> Trainer:
    """Return a run with dropout on the GPU and noise from all other generators."""
    trainer: Trainer = small_trainer(
        Path(folder),
        parts={"model": net(0.3), "train_dataset": Noisy(14)},
        use_cpu=False,
        **{"num_train_epochs": 2, **given},
    )
    return trainer


def in_fp32(folder: str) -> Trainer:
    return job(folder)


def in_bf16(folder: str) -> Trainer:
    return job(folder, bf16=True, optim="adamw_torch")


def in_fp16(folder: str) -> Trainer:
    return job(folder, fp16=True)


def with_workers(folder: str) -> Trainer:
    return job(folder, dataloader_num_workers=2)


def with_sgd_and_accumulation(folder: str) -> Trainer:
    return job(folder, optim="sgd", optim_args="momentum=0.9", gradient_accumulation_steps=2, num_train_epochs=4)


@pytest.mark.parametrize("run", [in_fp32, in_bf16, in_fp16, with_workers, with_sgd_and_accumulation])
def test_an_interrupted_run_is_bitwise_equal(run: Any) -> None:
    """Stopped at several steps and resumed in a new process, the run has every number of one that was not stopped."""
    assert_resume_exact(run, stops=[1, (3, 5)])


class Wide(nn.Module):
    """(batch, 4) -> (batch, 1) through weights of 64 MB, so that the copy of a save takes longer than a step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 4096), nn.Tanh(), nn.Linear(4096, 4096), nn.Linear(4096, 1))
        self.norm = nn.BatchNorm1d(FEATURES)

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.layers(self.norm(x))
        return {"loss": (logits - labels).square().mean(), "logits": logits}


class Keeping(TrainerCallback):
    """Keeps the weights after every step."""

    def __init__(self) -> None:
        self.found: dict[int, dict[str, torch.Tensor]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        tensors = kwargs["model"].state_dict()
        self.found[state.global_step] = {name: each.to("cpu", copy=True) for name, each in tensors.items()}


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "sgd"])
def test_checkpoints_have_the_weights_of_their_step(optim: str, tmp_path: Path) -> None:
    """Copies are made beside the following steps, and yet hold the weights and statistics of the step of the save."""
    keeping = Keeping()
    trainer = small_trainer(
        tmp_path,
        parts={"model": Wide(), "train_dataset": rows(64), "callbacks": [keeping]},
        use_cpu=False,
        optim=optim,
        learning_rate=1e-4,
        max_steps=12,
        save_strategy="steps",
        save_steps=2,
    )
    trainer.train()
    for step in range(2, 13, 2):
        saved = load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        assert same_weights(saved, keeping.found[step]), f"checkpoint-{step} has other weights than step {step}"


@pytest.mark.parametrize(("saved_on", "resumed_on"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_a_run_moves_between_cpu_and_gpu(saved_on: str, resumed_on: str, tmp_path: Path) -> None:
    """A run that is stopped on one device goes on with the same weights and moments on the other."""
    whole = small_trainer(tmp_path / "whole", use_cpu=True, max_steps=8)
    whole.train()
    first = small_trainer(
        tmp_path / "moved", use_cpu=saved_on == "cpu", max_steps=8, save_strategy="steps", save_steps=4
    )
    first.train()
    second = small_trainer(tmp_path / "moved", use_cpu=resumed_on == "cpu", max_steps=8)
    with pytest.warns(UserWarning, match="may differ in its last bits"):
        second.train(resume_from_checkpoint=str(tmp_path / "moved" / "checkpoint-4"))
    assert {each.device.type for each in second.model.parameters()} == {"cpu" if resumed_on == "cpu" else "cuda"}
    for name, tensor in weights(second).items():
        torch.testing.assert_close(tensor.cpu(), whole.model.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_checkpoints_of_transformers_resume_on_the_gpu(tmp_path: Path) -> None:
    """A checkpoint that transformers saved on the GPU, with its generators, is imported and goes on as its run did."""
    import transformers

    given: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 8,
        "save_steps": 4,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "train_sampling_strategy": "sequential",
    }
    data: Any = rows(32)
    reference = transformers.Trainer(
        model=net(0.3),
        args=transformers.TrainingArguments(output_dir=str(tmp_path), report_to="none", disable_tqdm=True, **given),
        train_dataset=data,
    )
    reference.remove_callback(transformers.PrinterCallback)
    reference.train()
    with pytest.warns(UserWarning, match=r"training_args\.bin is not loaded"):
        imported = hexloop.import_checkpoint(str(tmp_path / "checkpoint-4"), str(tmp_path / "ours"), seed=42)
    trainer = small_trainer(tmp_path / "ours", parts={"model": net(0.3), "train_dataset": data}, use_cpu=False, **given)
    trainer.train(resume_from_checkpoint=str(imported))
    expected = [entry["loss"] for entry in reference.state.log_history if "loss" in entry]
    found = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert found == pytest.approx(expected, rel=1e-5)
