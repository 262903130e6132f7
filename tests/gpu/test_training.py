"""Training on a GPU: the same numbers as transformers, no waiting for the GPU, and memory that runs out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop import Trainer, TrainerCallback
from tests.end_to_end.parity.compare import ADAM, SGD, Tolerance, assert_same_run
from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.runs import run_both
from tests.end_to_end.small.models import Noisy, net, rows
from tests.end_to_end.small.trainers import small_trainer

ON_GPU: dict[str, Any] = {"use_cpu": False, "per_device_train_batch_size": 4, "max_steps": 62}
LOW = Tolerance(logged=2e-3, model=2e-2, gradient=None)
"""For number formats of 16 bits."""

CASES: dict[str, tuple[str, dict[str, Any], Tolerance]] = {
    "AdamW": ("plain GPT", {"learning_rate": 3e-3}, ADAM),
    "AdamW with accumulation": ("GPT-2", {"learning_rate": 3e-3, "gradient_accumulation_steps": 4}, ADAM),
    "AdamW that is not fused": ("plain GPT", {"learning_rate": 3e-3, "optim": "adamw_torch"}, ADAM),
    "SGD": ("convolution", {"learning_rate": 0.1, "optim": "sgd"}, SGD),
    "Adafactor": ("plain GPT", {"learning_rate": 3e-3, "optim": "adafactor"}, ADAM),
    "checkpointing": ("plain GPT", {"learning_rate": 3e-3, "gradient_checkpointing": True}, ADAM),
    "smoothing": ("GPT-2", {"learning_rate": 3e-3, "label_smoothing_factor": 0.1}, ADAM),
    "bf16": ("plain GPT", {"learning_rate": 3e-3, "bf16": True}, LOW),
    "fp16": ("plain GPT", {"learning_rate": 3e-3, "fp16": True}, LOW),
    "fp16 with accumulation": ("GPT-2", {"learning_rate": 3e-3, "fp16": True, "gradient_accumulation_steps": 4}, LOW),
    "tf32": ("plain GPT", {"learning_rate": 3e-3, "tf32": True}, LOW),
    "workers": ("convolution", {"learning_rate": 3e-3, "dataloader_num_workers": 2}, ADAM),
}


@pytest.mark.parametrize("case", CASES)
def test_both_train_identically(case: str, tmp_path: Path) -> None:
    """Over more than 60 updates, hexloop and transformers log the same numbers and end with the same weights."""
    model, arguments, tolerance = CASES[case]
    ours, reference = run_both(
        tmp_path, make_model(model), {**ON_GPU, **arguments}, train_dataset=samples_for(model, 230)
    )
    assert {each.device.type for each in ours.weights.values()} == {"cuda"}
    assert_same_run(ours, reference, tolerance)
    assert ours.events == reference.events


class Formats(TrainerCallback):
    """Notes the format of fp32 products during the run."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.found.add(torch.backends.cuda.matmul.fp32_precision)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize(("tf32", "used"), [(None, "tf32"), (False, "ieee")])
def test_a_compiled_model_trains_as_the_model_itself(tf32: bool | None, used: str, tmp_path: Path) -> None:
    """torch.compile changes the losses by rounding, uses TF32 unless told otherwise, and saves the same tensors."""
    losses, formats = [], Formats()
    given: dict[str, Any] = {"use_cpu": False, "num_train_epochs": 3, "save_strategy": "epoch"}
    for compiled in (False, True):
        trainer = small_trainer(
            tmp_path / str(compiled),
            parts={"callbacks": [formats] if compiled else []},
            torch_compile=compiled,
            tf32=tf32 if compiled else None,
            **given,
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert formats.found == {used}
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if tf32 is False else 1e-2)
    trainer = small_trainer(tmp_path / "True", use_cpu=False, num_train_epochs=4, save_strategy="no")
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 16


@pytest.mark.parametrize(
    "given",
    [{}, {"optim": "adamw_torch"}, {"optim": "sgd"}, {"bf16": True}, {"gradient_accumulation_steps": 2},
     {"torch_compile": True, "tf32": False}, {"torch_compile": True, "tf32": False, "optim": "adamw_torch"}],
    ids=str,
)  # fmt: skip
def test_captured_steps_train_as_others(given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses differ by the rounding of learning rates at most; passes, clipping and updates are replayed."""
    replays = 0
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        nonlocal replays
        replays += 1
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    losses = []
    for captured in (False, True):
        trainer = small_trainer(
            tmp_path / str(captured), use_cpu=False, num_train_epochs=6, capture_step=captured, **given
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        assert (replays > 0) == captured
    assert replays > trainer.state.global_step
    tolerance = 1e-2 if "bf16" in given else 1e-4 if "torch_compile" in given else 1e-5
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)


def test_captured_steps_resume_exactly(tmp_path: Path) -> None:
    """With dropout, a run that resumes at step 7 ends with the weights of one that was not interrupted."""
    found = []
    given: dict[str, Any] = {"use_cpu": False, "num_train_epochs": 5, "save_strategy": "steps", "save_steps": 7}
    for resume in (None, str(tmp_path / "checkpoint-7")):
        trainer = small_trainer(tmp_path, parts={"model": net(0.3)}, capture_step=True, **given)
        trainer.train(resume_from_checkpoint=resume)
        found.append({name: each.detach().cpu() for name, each in trainer.model.state_dict().items()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


class Counting(TrainerCallback):
    """Counts operations that make the process wait for the GPU, from one step to another."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.found: list[str] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.first:
            torch.cuda.set_sync_debug_mode("warn")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.last:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("precision", "each_step"), [("fp32", 0), ("bf16", 0), ("fp16", 1)])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_does_not_wait_for_the_gpu(precision: str, each_step: int, accumulation: int, tmp_path: Path) -> None:
    """Between logs, fp32 and bf16 never wait; fp16 waits once a step, to know whether its gradients overflowed."""
    given: dict[str, Any] = {} if precision == "fp32" else {precision: True}
    counting = Counting(4, 14)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            small_trainer(
                tmp_path,
                parts={"train_dataset": rows(16 * 4 * accumulation), "callbacks": [counting]},
                use_cpu=False,
                logging_steps=100,
                gradient_accumulation_steps=accumulation,
                **given,
            ).train()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [f"{each.filename}:{each.lineno}" for each in caught if "called a synchronizing" in str(each.message)]
    assert len(waits) <= 10 * each_step, waits


class Hungry(nn.Module):
    """Uses 1 GiB of the GPU's memory for every sample of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        room = torch.empty(len(x), 1 << 30, dtype=torch.uint8, device=x.device)
        logits = self.layer(x) + 0 * room[:, :1]
        return {"loss": (logits - labels).square().mean(), "logits": logits}


def test_the_batch_size_is_lowered_until_the_batch_fits(tmp_path: Path) -> None:
    """`auto_find_batch_size` makes the batch smaller until it fits."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(5.5 * 2**30 / total)
    try:
        trainer = small_trainer(
            tmp_path,
            parts={"model": Hungry()},
            use_cpu=False,
            auto_find_batch_size=True,
            per_device_train_batch_size=16,
        )
        trainer.train()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert trainer.state.train_batch_size == 5
    assert trainer.state.global_step == 4


def test_memory_is_reported_for_cpu_and_gpu(tmp_path: Path) -> None:
    """With `skip_memory_metrics=False`, the results have the GPU's figures under transformers' names."""
    trainer = small_trainer(tmp_path, use_cpu=False, skip_memory_metrics=False)
    metrics = trainer.train().metrics
    names = {name for name in metrics if "_mem_gpu_" in name}
    assert {"init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta"} <= names
    assert all(isinstance(metrics[name], int) for name in names)


def test_predictions_are_those_of_the_cpu(tmp_path: Path) -> None:
    """Evaluation and prediction on the GPU return the CPU's numbers but for rounding, as numpy arrays."""
    found = []
    for use_cpu in (True, False):
        trainer = small_trainer(tmp_path, parts={"eval_dataset": rows(10, seed=1)}, use_cpu=use_cpu, seed=3)
        found.append((trainer.evaluate()["eval_loss"], trainer.predict(rows(10, seed=1)).predictions))
    (loss, predictions), (other_loss, other_predictions) = found
    assert loss == pytest.approx(other_loss, rel=1e-5)
    assert predictions == pytest.approx(other_predictions, abs=1e-5)


@pytest.mark.filterwarnings("ignore:Requested unified CUBLASLT workspace size")
def test_full_determinism_repeats_a_run(tmp_path: Path) -> None:
    """With `full_determinism`, two runs log the same losses."""
    logs = []
    for name in ("one", "other"):
        trainer = small_trainer(
            tmp_path / name,
            parts={"model": net(0.3), "train_dataset": Noisy(32)},
            use_cpu=False,
            full_determinism=True,
            num_train_epochs=2,
        )
        trainer.train()
        logs.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert logs[0] == logs[1]


def test_the_default_device_is_the_gpu(tmp_path: Path) -> None:
    """Without `use_cpu`, the model and its batches are on the first GPU."""
    trainer = small_trainer(tmp_path, use_cpu=False)
    trainer.train()
    assert isinstance(trainer, Trainer)
    assert trainer.args.device == torch.device("cuda", 0)
    assert {each.device for each in trainer.model.parameters()} == {torch.device("cuda", 0)}
