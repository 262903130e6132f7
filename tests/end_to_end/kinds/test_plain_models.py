"""Models that return only logits, batches that are not dictionaries, tied weights, and missing losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hexloop
from hexloop.domain.errors import DataError
from tests.end_to_end.small.trainers import arguments, history, same_weights, weights

CLASSES = 3


def points(count: int = 24) -> tuple[Tensor, Tensor]:
    """Return points (count, 4), and the class of each (count,)."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=source)
    return x, x[:, :CLASSES].argmax(dim=1)


def named_rows() -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": label} for x, label in zip(*points(), strict=True)]


class Backbone(nn.Module):
    """Returns logits (rows, 3) for inputs (rows, 4), and nothing else, like timm's models."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.stem(x)))
        return logits


class Classifier(Backbone):
    """Also returns its loss if it receives labels."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(x)
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


def mean_loss(outputs: Tensor, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    assert isinstance(outputs, Tensor)
    if num_items_in_batch is None:
        return cross_entropy(outputs, labels)
    loss: Tensor = cross_entropy(outputs, labels, reduction="sum") / num_items_in_batch
    return loss


def accuracy(evaluated: hexloop.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((evaluated.predictions.argmax(axis=-1) == evaluated.label_ids).mean())}


class OwnLoss(hexloop.Trainer):
    """Computes a loss for rows that are dictionaries."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs["labels"]
        outputs = model(inputs["x"])
        loss = cross_entropy(outputs, labels)
        return (loss, outputs) if return_outputs else loss


class OwnLossOfPairs(hexloop.Trainer):
    """Computes a loss for batches that are pairs."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        x, labels = inputs
        outputs = model(x)
        loss = cross_entropy(outputs, labels)
        return (loss, outputs) if return_outputs else loss


def outcome(
    folder: Path, model: nn.Module, data: Any, kind: type[hexloop.Trainer] = hexloop.Trainer, **parts: Any
) -> Any:
    """Return the log, the weights, and the predictions."""
    trainer = kind(
        model,
        arguments(folder, eval_strategy="epoch", num_train_epochs=2, train_sampling_strategy="sequential"),
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=accuracy,
        loggers=[],
        **parts,
    )
    trainer.train()
    predicted = trainer.predict(data)
    return trainer, predicted


WAYS: dict[str, Any] = {
    "a loss function": (Backbone, named_rows, {"compute_loss_func": mean_loss}),
    "an overridden loss": (Backbone, named_rows, {"kind": OwnLoss}),
    "pairs": (Classifier, lambda: TensorDataset(*points()), {}),
    "pairs and a loss function": (Backbone, lambda: TensorDataset(*points()), {"compute_loss_func": mean_loss}),
    "pairs and an overridden loss": (Backbone, lambda: TensorDataset(*points()), {"kind": OwnLossOfPairs}),
    "a list of pairs": (Classifier, lambda: list(zip(*points(), strict=True)), {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_compute_a_loss_trains_identically(way: str, tmp_path: Path) -> None:
    """Logs, weights, predictions, labels and metrics match a model with a loss and named inputs."""
    model, data, parts = WAYS[way]
    trainer, predicted = outcome(tmp_path / "way", model(), data(), **parts)
    expected, prediction = outcome(tmp_path / "named", Classifier(), named_rows())
    for one, other in zip(history(trainer), history(expected), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    for name, tensor in weights(trainer).items():
        torch.testing.assert_close(tensor, weights(expected)[name])
    np.testing.assert_allclose(predicted.predictions, prediction.predictions, rtol=1e-5)
    assert (predicted.label_ids == prediction.label_ids).all()
    assert predicted.metrics["test_accuracy"] == prediction.metrics["test_accuracy"]
    assert predicted.metrics["test_loss"] == pytest.approx(prediction.metrics["test_loss"], rel=1e-5)


class Autoencoder(nn.Module):
    """Its loss is the error of inputs that pass through one number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.narrow, self.widen = nn.Linear(4, 1), nn.Linear(1, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        again = self.widen(self.narrow(x))
        return (again - x).square().mean(), again


def test_a_batch_may_be_one_tensor(tmp_path: Path) -> None:
    """Samples that are tensors are stacked and passed to the model, which computes its loss from them alone."""
    trainer = hexloop.Trainer(Autoencoder(), arguments(tmp_path), train_dataset=list(points()[0]), loggers=[])
    assert trainer.train().global_step == 6
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    predicted = trainer.predict(list(points()[0]))
    assert [each.shape for each in predicted.predictions] == [(6,), (24, 4)]


def test_a_loader_of_pairs_is_used_unchanged(tmp_path: Path) -> None:
    """A user's loader may return tuples, which are named by position, too."""

    class Loading(hexloop.Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*points()), batch_size=8)

    trainer = Loading(Classifier(), arguments(tmp_path), train_dataset=TensorDataset(*points()), loggers=[])
    assert trainer.train().global_step == 3


def test_label_smoothing_needs_no_loss_of_the_model(tmp_path: Path) -> None:
    """The loss of smoothed labels needs only logits, for rows with names and for pairs."""
    losses = []
    for name, data in (("named", named_rows()), ("pairs", TensorDataset(*points()))):
        trainer = hexloop.Trainer(
            Backbone(),
            arguments(tmp_path / name, label_smoothing_factor=0.2, train_sampling_strategy="sequential"),
            train_dataset=data,
            loggers=[],
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == losses[1]
    smoothing = nn.CrossEntropyLoss(label_smoothing=0.2)
    x, labels = points()
    assert losses[0][0] == pytest.approx(smoothing(Backbone()(x[:4]), labels[:4]).item(), rel=1e-5)


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embedding(x))
        return {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """Tied weights are one optimizer parameter, are saved once, and stay tied in a resumed run."""
    rows = [{"x": torch.tensor([n, n + 1]), "labels": torch.tensor([n + 1, n + 2])} for n in range(6)]

    def trainer_of(steps: int) -> hexloop.Trainer:
        given = arguments(tmp_path, save_strategy="steps", save_steps=3, max_steps=steps)
        return hexloop.Trainer(Tied(), given, train_dataset=rows, loggers=[])

    whole = trainer_of(6)
    whole.train()
    assert whole.model.head.weight is whole.model.embedding.weight
    assert sum(len(group["params"]) for group in whole.optimizer.param_groups) == 1
    resumed = trainer_of(6)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.model.head.weight is resumed.model.embedding.weight
    assert same_weights(weights(whole), weights(resumed))


def test_frozen_parameters_are_unchanged(tmp_path: Path) -> None:
    """The optimizer contains only the others, in a resumed run, too."""

    def trainer_of() -> hexloop.Trainer:
        model = Classifier()
        model.stem.requires_grad_(False)
        given = arguments(tmp_path, save_strategy="steps", save_steps=3)
        return hexloop.Trainer(model, given, train_dataset=named_rows(), loggers=[])

    whole, before = trainer_of(), Classifier()
    whole.train()
    assert torch.equal(whole.model.stem.weight, before.stem.weight)
    assert not torch.equal(whole.model.head.weight, before.head.weight)
    assert sum(len(group["params"]) for group in whole.optimizer.param_groups) == 2
    resumed = trainer_of()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_weights(weights(whole), weights(resumed))


class Forgetful(Classifier):
    """Never returns a loss."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return {"logits": Backbone.forward(self, x)}


class Bare(Backbone):
    """Returns logits in place of the loss."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return super().forward(x)


def test_a_missing_loss_is_reported(tmp_path: Path) -> None:
    """The error names the outputs, the batch's keys, and the ways to provide a loss."""
    for model, came in (
        (Forgetful(), "the keys logits"),
        (Bare(), r"a Tensor, with a tensor of shape \(4, 3\) as the loss"),
    ):
        trainer = hexloop.Trainer(model, arguments(tmp_path), train_dataset=named_rows(), loggers=[])
        with pytest.raises(
            DataError, match=rf"no loss for the inputs x, labels: it returned {came}\. .*compute_loss_func"
        ):
            trainer.train()


def test_unused_tensors_are_reported(tmp_path: Path) -> None:
    """More tensors than forward has parameters are an error that names both, and the alternatives."""
    trainer = hexloop.Trainer(Autoencoder(), arguments(tmp_path), train_dataset=TensorDataset(*points()), loggers=[])
    with pytest.raises(DataError, match=r"2 tensors .* Autoencoder takes 1 by name \(x\); .* compute_loss_func"):
        trainer.train()
