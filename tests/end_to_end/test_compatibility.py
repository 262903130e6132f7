"""A checkpoint of a run with another setup is refused with all differences, or accepted by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hexloop.domain.errors import CheckpointError, ConfigurationError
from tests.end_to_end.small.documents import document_of
from tests.end_to_end.small.models import FEATURES, Net, net, rows
from tests.end_to_end.small.trainers import arguments, same_weights, small_trainer, weights

pytestmark = pytest.mark.filterwarnings("ignore:The run that resumes from:UserWarning")

SAVED: dict[str, Any] = {"max_steps": 3, "save_strategy": "steps", "save_steps": 3}


class Watched(Net):
    """A model that records its inputs."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.seen: list[tuple[float, ...]] = []

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        self.seen += [tuple(row.tolist()) for row in x]
        return super().forward(x, labels)


class Wider(Net):
    """Another shape, another type, an additional tensor, and a missing one."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.layers[0] = torch.nn.Linear(FEATURES, 9, bias=False)
        self.layers[3] = torch.nn.Linear(8, 1, dtype=torch.float64)
        self.register_buffer("more", torch.zeros(2))


def refusal(folder: Path, parts: dict[str, Any] | None = None, **given: Any) -> str:
    """Return the error raised when the run cannot resume from the folder's checkpoint; nothing has changed."""
    trainer = small_trainer(folder, parts=parts, **{"max_steps": 5, **given})
    before = weights(trainer)
    with pytest.raises(CheckpointError) as raised:
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    assert same_weights(weights(trainer), before)
    assert not trainer.is_in_train
    return str(raised.value)


def resumed(folder: Path, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    trainer = small_trainer(folder, parts=parts, **given)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    return trainer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run of three steps of four samples, with AdamW and weight decay."""
    small_trainer(tmp_path, weight_decay=0.1, **SAVED).train()
    return tmp_path


def test_a_checkpoint_contains_the_setup_of_its_run(folder: Path) -> None:
    """It is a JSON document of its own, with a schema version."""
    document = document_of(folder / "checkpoint-3", "run_setup")
    optimizer = document.pop("optimizer")
    assert document == {
        "schema_version": 1,
        "model": "Net",
        "precision": "fp32",
        "samples_per_epoch": 16,
        "global_batch_size": 4,
        "batch_size": 4,
        "asked_accumulation": 1,
        "reproduce": None,
    }
    assert [group["weight_decay"] for group in optimizer["groups"]] == [0.1, 0.0]
    assert (optimizer["class"], optimizer["by_arguments"]) == ("AdamW", True)


def test_an_optimizer_created_before_the_run_uses_the_arguments(tmp_path: Path) -> None:
    """`create_optimizer` returns the optimizer that the run would have created."""
    trainer = small_trainer(tmp_path, **SAVED)
    trainer.create_optimizer()
    trainer.train()
    setup = document_of(tmp_path / "checkpoint-3", "run_setup")

    assert setup["optimizer"]["by_arguments"] is True


def test_all_differences_of_a_model_are_listed(folder: Path) -> None:
    """Missing and unknown tensors, other shapes and types are listed in one sentence."""
    told = refusal(folder, {"model": net(kind=Wider)}, weight_decay=0.1)
    for words in (
        "its model, a Net, differs",
        "more is not in the checkpoint",
        "layers.0.bias is not in the model",
        "layers.0.weight has shape (8, 4) in the checkpoint and (9, 4) in the model",
        "layers.3.weight has type F32 in the checkpoint and F64 in the model",
        "Resume with the model",
    ):
        assert words in told


def test_all_differences_are_reported_at_once(folder: Path) -> None:
    """Precision, optimizer, data and batch size are one error with four parts, each with the name that accepts it."""
    told = refusal(folder, {"train_dataset": rows(20)}, bf16=True, optim="sgd", per_device_train_batch_size=8)
    assert "in 4 ways" in told
    for words, name in (
        ("written with the precision fp32, and this run has bf16", "precision"),
        ("its optimizer is AdamW, and that of this run is SGD", "optimizer"),
        ("its data had 16 samples in an epoch, and the data of this run has 20 samples", "data_length"),
        ("its optimizer steps had 4 samples, and those of this run have 8", "batch_size"),
    ):
        assert words in told
        assert f"resume_despite=['{name}']" in told


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weight_decay": 0.0}, "weight_decay of group 0 was 0.1 and is 0.0"),
        ({"weight_decay": 0.2}, "weight_decay of group 0 was 0.1 and is 0.2"),
        ({"weight_decay": 0.1, "adam_beta2": 0.9}, "betas of group 1 was [0.9, 0.999] and is [0.9, 0.9]"),
        ({"weight_decay": 0.1, "optim": "rmsprop"}, "its optimizer is AdamW, and that of this run is RMSprop"),
    ],
)
def test_another_optimizer_is_refused(folder: Path, given: dict[str, Any], words: str) -> None:
    """Another class, or other options."""
    assert words in refusal(folder, **given)


@pytest.mark.parametrize(
    "given", [{"learning_rate": 0.5}, {"optim": "adamw_torch"}, {"lr_scheduler_type": "constant"}, {"max_steps": 6}]
)
def test_allowed_changes_are_not_refused(folder: Path, given: dict[str, Any]) -> None:
    """Learning rate, schedule, length of the run, and an equivalent implementation of the optimizer."""
    trainer = resumed(folder, **{"weight_decay": 0.1, "max_steps": 4, **given})
    assert trainer.state.global_step == given.get("max_steps", 4)


def test_an_accepted_change_of_optimizer_starts_fresh(folder: Path) -> None:
    """A warning is given; weights and step come from the checkpoint."""
    with pytest.warns(UserWarning, match="optimizer starts without moments"):
        trainer = resumed(folder, optim="sgd", optim_args="momentum=0.9", max_steps=5, resume_despite=["optimizer"])
    assert trainer.state.global_step == 5
    assert type(trainer.optimizer).__name__ == "SGD"


def test_accepted_changes_of_options_apply(folder: Path) -> None:
    """Moments are kept, and the options come from the arguments."""
    trainer = resumed(
        folder, weight_decay=0.2, adam_beta1=0.5, max_steps=4, resume_despite=["optimizer"]
    )  # fmt: skip
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.2, 0.0]
    assert {group["betas"] for group in trainer.optimizer.param_groups} == {(0.5, 0.999)}
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {4}


def test_an_accepted_change_of_precision_applies(folder: Path) -> None:
    """A switch from float32 to fp16 starts with a fresh loss scale."""
    trainer = resumed(folder, weight_decay=0.1, fp16=True, max_steps=5, resume_despite=["precision"])
    assert trainer.state.global_step == 5


@pytest.mark.parametrize(("size", "accumulation"), [(2, 1), (8, 1), (2, 3), (5, 1)])
def test_another_batch_size_resumes_at_the_same_sample(tmp_path: Path, size: int, accumulation: int) -> None:
    """Every sample of both epochs is trained on once per epoch, for any combination of batch sizes."""
    given: dict[str, Any] = {"num_train_epochs": 2, "train_sampling_strategy": "sequential", "weight_decay": 0.1}
    data = rows(30)
    first = small_trainer(
        tmp_path,
        parts={"model": net(kind=Watched), "train_dataset": data},
        save_strategy="steps",
        save_steps=3,
        **given,
    )
    for event in first.stream():
        if type(event).__name__ == "CheckpointPublished" and event.step == 3:
            break
    model = net(kind=Watched)
    trainer = resumed(
        tmp_path, {"model": model, "train_dataset": data}, per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation, resume_despite=["batch_size"], **given,
    )  # fmt: skip

    in_order = [tuple(row["x"].tolist()) for row in data]
    assert model.seen == in_order[12:] + in_order
    assert trainer.state.epoch == 2.0
    assert trainer.state.max_steps >= trainer.state.global_step
    left = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert left[-1] < left[3] / 2


def test_an_accepted_change_of_the_data_length_applies(folder: Path) -> None:
    """The position counts samples, and the epoch has the new length."""
    trainer = resumed(
        folder, {"train_dataset": rows(32)}, weight_decay=0.1, max_steps=10, resume_despite=["data_length"]
    )
    assert trainer.state.global_step == 10
    assert trainer.state.epoch == pytest.approx(10 / 8)


def test_an_unknown_name_of_a_difference_is_refused(tmp_path: Path) -> None:
    """The error lists the valid names."""
    with pytest.raises(ConfigurationError, match="batch_size"):
        arguments(tmp_path, resume_despite=["batchsize"])
