"""A policy of what is saved of a model, added in one file: only what is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import hexloop
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.saved_weights import POLICIES, SavedWeights
from hexloop.domain.errors import CheckpointError
from hexloop.ports.state import Part
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights


class Half(Net):
    """Its first layer is frozen."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.layers[0].requires_grad_(False)


class TrainedState:
    """The trained tensors of a model."""

    def __init__(self, model: Any) -> None:
        self._whole = ModelState(model)
        self._names = {name for name, each in model.named_parameters() if each.requires_grad}

    def export(self) -> Iterator[Part]:
        return (part for part in self._whole.export() if part.name in self._names)

    def load(self, parts: Iterable[Part]) -> None:
        self._whole.load_present(parts)

    def differences(self, parts: Sequence[Part], types: bool = False) -> list[str]:
        return [f"{name} is not in both" for name in {part.name for part in parts} ^ self._names]


class TrainedOnly(SavedWeights):
    """What is trained, for a model of this class; transformers keeps it in a file of another name."""

    name = "trained only"

    @classmethod
    def fits(cls, model: Any) -> bool:
        return isinstance(model, Half)

    def state(self, parts: TrainerParts) -> TrainedState:
        return TrainedState(parts.unwrapped_model)

    @staticmethod
    def published(paths: Sequence[str]) -> list[str]:
        return [path for path in paths if path == "model.safetensors"]

    @staticmethod
    def exported(paths: Sequence[str]) -> list[str]:
        return [path for path in paths if path != "model.safetensors"]

    @classmethod
    def imported(cls, names: Sequence[str]) -> list[str]:
        return [name for name in names if name == "trained.safetensors"]


@pytest.fixture(autouse=True)
def _policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hexloop.app.assembly.torch.saved_weights.POLICIES", [TrainedOnly, *POLICIES])


SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}


def half_trainer(folder: Path, **given: Any) -> Any:
    """Return a Trainer of a half frozen model, which evaluates and saves twice."""
    return small_trainer(folder, parts={"model": net(kind=Half), "eval_dataset": rows(8)}, **SAVING, **given)


def test_a_checkpoint_has_what_the_policy_saves(tmp_path: Path) -> None:
    """The frozen layer is in no checkpoint, and a run that resumes continues bit-identically."""
    whole = half_trainer(tmp_path)
    whole.train()
    assert load_file(tmp_path / "checkpoint-2" / "model.safetensors").keys() == {"layers.3.weight", "layers.3.bias"}

    again = half_trainer(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_weights(weights(again), weights(whole))
    assert history(again)[-2] == history(whole)[-2]


def test_the_best_model_is_loaded_by_the_policy(tmp_path: Path) -> None:
    """The run ends with the trained tensors of the best checkpoint, and the frozen ones as they are."""
    trainer = half_trainer(tmp_path, load_best_model_at_end=True, learning_rate=10.0)
    trainer.train()
    best = load_file(Path(trainer.state.best_model_checkpoint) / "model.safetensors")

    assert all(torch.equal(weights(trainer)[name], tensor) for name, tensor in best.items())
    assert torch.equal(weights(trainer)["layers.0.weight"], net(kind=Half).get_parameter("layers.0.weight"))


def test_a_checkpoint_of_another_policy_is_refused(tmp_path: Path) -> None:
    """A checkpoint of the whole model does not fit, and the message names a tensor."""
    small_trainer(tmp_path, **{**SAVING, "eval_strategy": "no"}).train()
    with pytest.raises(CheckpointError, match=r"layers\.0\.\w+ is not in both"):
        half_trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_exports_and_imports_ask_the_policy(tmp_path: Path) -> None:
    """The policy says which files transformers gets, and which hold the weights; the import resumes bit-identically."""
    whole = half_trainer(tmp_path)
    whole.train()
    exported = Path(hexloop.export_checkpoint(tmp_path / "checkpoint-2", tmp_path / "exported"))
    assert not (exported / "model.safetensors").exists()
    save_file(load_file(tmp_path / "checkpoint-2" / "model.safetensors"), exported / "trained.safetensors")

    imported = hexloop.import_checkpoint(exported, tmp_path / "imported")
    again = half_trainer(tmp_path)
    again.train(resume_from_checkpoint=imported)
    assert same_weights(weights(again), weights(whole))


def test_a_policy_that_the_program_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export cannot know what the files mean, and says which policy is missing."""
    half_trainer(tmp_path).train()
    monkeypatch.setattr("hexloop.app.assembly.torch.saved_weights.POLICIES", POLICIES)
    with pytest.raises(CheckpointError, match="holds what the policy 'trained only' saves of a model"):
        hexloop.export_checkpoint(tmp_path / "checkpoint-2", tmp_path / "exported")


def test_a_policy_of_its_own_saves_averages(tmp_path: Path) -> None:
    """It knows nothing of them: what it exports is copied while they are in the model. A folder beside is refused."""

    def make(**given: Any) -> Any:
        parts = {"model": net(kind=Half), "train_dataset": rows(32)}
        return small_trainer(tmp_path, parts=parts, max_steps=4, save_strategy="steps", save_steps=2, **given)

    trainer = make(ema_decay=0.5)
    trainer.train()
    saved, whole = load_file(tmp_path / "checkpoint-4/model.safetensors"), weights(trainer)
    assert same_weights(saved, {name: whole[name] for name in saved})
    trained = load_file(tmp_path / "checkpoint-4/averages.safetensors")
    assert not same_weights(saved, {name: trained[f"training.{name}"] for name in saved})
    resumed = make(ema_decay=0.5)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_weights(weights(resumed), whole)
    with pytest.raises(hexloop.ConfigurationError, match="exports the weights of the model in its own way"):
        make(ema_decay=0.5, ema_weights="beside").train()
