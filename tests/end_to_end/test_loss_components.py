"""The scalars that a model returns beside its loss are logged with it, weighted as the loss is."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop import Trainer
from hexloop.domain.errors import ConfigurationError, DataError
from tests.end_to_end.small.decoders import llama, sentences
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

ROWS, BATCH, ACCUMULATED = 23, 2, 3


def samples(count: int = ROWS) -> list[dict[str, Tensor]]:
    """Return rows with several labels, of which some do not count."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=draw)
    labels = torch.where(torch.rand(count, 5, generator=draw) < 0.4, -100.0, torch.randn(count, 5, generator=draw))
    return [{"x": one, "labels": each} for one, each in zip(x, labels, strict=True)]


def errors(model: Any, x: Tensor, labels: Tensor) -> Tensor:
    """Return the errors of the labels that count, in one dimension."""
    found: Tensor = (model.layer(x) - labels)[labels != -100]
    return found


class Composed(nn.Module):
    """Its loss is a mean over labels, and made of two: the squared errors, and a tenth of the absolute ones."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.layer = nn.Linear(4, 5)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        each = errors(self, x, labels)
        squared, absolute = each.square().mean(), each.abs().mean()
        return {
            "loss": squared + 0.1 * absolute, "squared_loss": squared, "largest": each.abs().max(), "losses": each,
            "loss_dict": {"absolute": absolute, "loss": squared, "names": "all"},
        }  # fmt: skip


class Dividing(Composed):
    """Divides by the number of labels of the window that it is given."""

    def forward(self, x: Tensor, labels: Tensor, num_items_in_batch: Any = None) -> dict[str, Any]:
        each = errors(self, x, labels)
        count = len(each) if num_items_in_batch is None else num_items_in_batch
        squared, absolute = each.square().sum() / count, each.abs().sum() / count
        return {"loss": squared + 0.1 * absolute, "squared_loss": squared, "loss_dict": {"absolute": absolute}}


def composed_trainer(folder: Path, model: nn.Module | None = None, kind: type[Trainer] = Trainer, **given: Any) -> Any:
    accumulation = {"per_device_train_batch_size": BATCH, "gradient_accumulation_steps": ACCUMULATED}
    parts = {"model": model or Composed(), "train_dataset": samples()}
    return small_trainer(
        folder, kind, parts, **{**accumulation, "train_sampling_strategy": "sequential", "optim": "sgd", **given}
    )


def by_hand(every: int) -> list[dict[str, float]]:
    """Return what each log of a run on the samples in order has to say, by plain SGD on whole windows."""
    model, found = Composed(), []
    data, size = samples(), BATCH * ACCUMULATED
    steps: list[dict[str, float]] = []
    for start in range(0, len(data), size):
        window = data[start : start + size]
        x, labels = (torch.stack([row[name] for row in window]) for name in ("x", "labels"))
        each = errors(model, x, labels)
        squared, absolute = each.square().mean(), each.abs().mean()
        loss = squared + 0.1 * absolute
        steps.append({"loss": loss.item(), "squared_loss": squared.item(), "absolute": absolute.item()})
        torch.autograd.backward(loss)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.01 * parameter.grad)
                parameter.grad = None
    for start in range(0, len(steps), every):
        group = steps[start : start + every]
        found.append({name: sum(step[name] for step in group) / len(group) for name in group[0]})
    return found


def logged(trainer: Any, *names: str) -> list[dict[str, float]]:
    return [{name: entry[name] for name in names} for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("kind", [Composed, Dividing])
@pytest.mark.parametrize("every", [1, 2])
def test_components_are_means_over_labels(kind: type[Composed], every: int, tmp_path: Path) -> None:
    """Over three accumulated batches of different numbers of labels, and over the steps of a log."""
    trainer = composed_trainer(tmp_path, kind(), logging_steps=every, lr_scheduler_type="constant", max_grad_norm=0.0)
    trainer.train()
    found = logged(trainer, "loss", "squared_loss", "absolute")
    expected = by_hand(every)
    assert len(found) == math.ceil(4 / every)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_nothing_else_is_logged(tmp_path: Path) -> None:
    """Neither what is no single number, nor outputs without "loss" in their names, nor another "loss"."""
    trainer = composed_trainer(tmp_path)
    trainer.train()
    first = trainer.state.log_history[0]
    assert set(first) == {"loss", "squared_loss", "absolute", "grad_norm", "learning_rate", "epoch", "step"}
    plain = small_trainer(tmp_path / "plain")
    plain.train()
    assert set(plain.state.log_history[0]) == {"loss", "grad_norm", "learning_rate", "epoch", "step"}


def test_wanted_components(tmp_path: Path) -> None:
    """Keys of outputs, and functions of the outputs and inputs, which return means over the batch."""
    trainer = composed_trainer(tmp_path, max_steps=1)
    trainer.log_loss_components = {
        "again": "squared_loss",
        "doubled": lambda outputs: 2 * outputs["squared_loss"],
        "one": lambda outputs, inputs: 1.0,
        "labels": lambda outputs, inputs: (inputs["labels"] != -100).float().sum() / (inputs["labels"] != -100).sum(),
    }
    trainer.train()
    first = trainer.state.log_history[0]
    assert first["again"] == first["squared_loss"]
    assert first["doubled"] == pytest.approx(2 * first["squared_loss"], rel=1e-6)
    assert (first["one"], first["labels"]) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("name", ["loss", "learning_rate", "eval_other", "train_other", "token_accuracy", "", 3])
def test_names_that_mean_something_else_are_refused(name: Any, tmp_path: Path) -> None:
    """Before the first step."""
    trainer = composed_trainer(tmp_path)
    trainer.log_loss_components = {name: "squared_loss"}
    with pytest.raises(ConfigurationError, match="choose another name"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("other", "names the output 'other', but the model returns loss, squared_loss, largest, losses, loss_dict"),
        (lambda outputs: outputs["losses"], r"is a tensor of shape \(\d+,\), and not a single number; return its mean"),
        (lambda outputs: "much", "is a str, and not a single number"),
    ],
)
def test_wanted_components_that_are_not_there(wanted: Any, problem: str, tmp_path: Path) -> None:
    """The message says what there is."""
    trainer = composed_trainer(tmp_path)
    trainer.log_loss_components = {"wanted": wanted}
    with pytest.raises(DataError, match=problem):
        trainer.train()


class Reserved(Composed):
    """Returns a scalar under a name that logs use."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        found = super().forward(x, labels)
        return {**found, "eval_loss": found["loss"], "train_loss": found["loss"]}


def test_outputs_with_names_that_mean_something_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are not logged, and one warning says so."""
    trainer = composed_trainer(tmp_path, Reserved())
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer.train()
    said = [record.getMessage() for record in caplog.records if "is not logged" in record.getMessage()]
    assert said == [
        "The model returns eval_loss, train_loss beside its loss, which is not logged: the name means something else."
    ]
    assert not any("eval_loss" in entry for entry in trainer.state.log_history)


@pytest.mark.parametrize("given", [{}, {"chunked_loss": True}])
def test_a_resumed_run_logs_the_same(given: dict[str, Any], tmp_path: Path) -> None:
    """A run that was saved between two logs, and resumed, logs the same numbers, and so does its accuracy of tokens."""

    def make(folder: Path) -> Any:
        return small_trainer(
            folder, parts={"model": llama(), "train_dataset": sentences(40)}, logging_steps=4, save_strategy="steps",
            save_steps=3, max_steps=8, log_token_accuracy=True, gradient_accumulation_steps=2, **given,
        )  # fmt: skip

    whole = make(tmp_path / "whole")
    whole.log_loss_components = {"half": lambda outputs: outputs["loss"].detach() / 2}
    whole.train()
    resumed = make(tmp_path / "resumed")
    resumed.log_loss_components = {"half": lambda outputs: outputs["loss"].detach() / 2}
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert history(resumed) == history(whole)
    assert {"token_accuracy", "half"} <= history(whole)[0].keys()
    assert same_weights(weights(resumed), weights(whole))


def accuracy_by_hand(model: Any, rows: list[dict[str, Tensor]]) -> float:
    right = count = 0
    with torch.no_grad():
        for row in rows:
            best = model(row["input_ids"][None], row["attention_mask"][None]).logits[0, :-1].argmax(-1)
            labels = row["labels"][1:]
            right += int((best == labels).sum())
            count += int((labels != -100).sum())
    return right / count


@pytest.mark.parametrize("given", [{}, {"chunked_loss": True}, {"loss_type": "dft"}, {"label_smoothing_factor": 0.1}])
def test_accuracy_of_tokens(given: dict[str, Any], tmp_path: Path) -> None:
    """It is the share of all labels of a step that were the most probable token."""
    rows = sentences(12)
    expected = accuracy_by_hand(llama(), rows)
    parts = {"model": llama(), "train_dataset": rows}
    trainer = small_trainer(
        tmp_path, parts=parts, gradient_accumulation_steps=3, max_steps=1, log_token_accuracy=True, **given
    )
    trainer.train()
    assert 0 < expected < 1
    assert trainer.state.log_history[0]["token_accuracy"] == pytest.approx(expected, rel=1e-6)


def test_no_accuracy_without_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning says what is missing."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer = small_trainer(tmp_path, log_token_accuracy=True)
        trainer.train()
    assert sum("log_token_accuracy=True logs nothing" in record.getMessage() for record in caplog.records) == 1
    assert "token_accuracy" not in trainer.state.log_history[0]


class Undefined(Composed):
    """Its second batch has a component that is not finite."""

    calls = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        found = super().forward(x, labels)
        self.calls += 1
        factor = math.nan if self.calls == 2 else 1.0
        return {**found, "odd_loss": found["squared_loss"].detach() * 0 + factor}


def test_components_that_are_not_finite(tmp_path: Path) -> None:
    """They count as the mean of the others, as losses do; without the filter the log is nan."""
    for filters in (True, False):
        trainer = composed_trainer(
            tmp_path,
            Undefined(),
            gradient_accumulation_steps=1,
            logging_steps=4,
            max_steps=4,
            logging_nan_inf_filter=filters,
        )
        trainer.train()
        assert trainer.state.log_history[0]["odd_loss"] == pytest.approx(1.0 if filters else math.nan, nan_ok=True)


class Pair(Trainer):
    """Returns its outputs beside the loss."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *given: Any, **named: Any) -> Any:
        outputs = model(**inputs)
        return outputs["loss"], {"own_loss": 2 * outputs["loss"].detach()}


class Calling(Trainer):
    """Calls the method that it overrides."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *given: Any, **named: Any) -> Any:
        return super().compute_loss(model, inputs, return_outputs, *given, **named)


def test_overridden_losses(tmp_path: Path) -> None:
    """Components are found in the outputs that `compute_loss` returns, and in those that the standard one sees."""
    pair = composed_trainer(tmp_path, kind=Pair)
    pair.train()
    for entry in logged(pair, "loss", "own_loss"):
        assert entry["own_loss"] == pytest.approx(2 * entry["loss"], rel=1e-6)
    calling, plain = composed_trainer(tmp_path, kind=Calling), composed_trainer(tmp_path)
    for trainer in (calling, plain):
        trainer.train()
    assert logged(calling, "squared_loss", "absolute") == logged(plain, "squared_loss", "absolute")


def test_windows_that_are_left_out(tmp_path: Path) -> None:
    """A run that leaves out a window logs what a run without its samples does."""

    class Failing(Composed):
        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
            found = super().forward(x, labels)
            bad = bool((x == samples()[7]["x"]).all(-1).any())
            return {**found, "loss": found["loss"] * (math.nan if bad else 1.0)}

    trainer = composed_trainer(tmp_path, Failing(), on_nonfinite="skip", logging_steps=3, gradient_accumulation_steps=1)
    trainer.train()
    found = [entry for entry in trainer.state.log_history if "squared_loss" in entry]
    assert found
    assert all(math.isfinite(entry["squared_loss"]) for entry in found)


def test_with_reproduce_the_loss_alone_is_logged(tmp_path: Path) -> None:
    """As transformers does; asking for more is refused."""
    trainer = composed_trainer(tmp_path, reproduce="transformers", train_sampling_strategy="random")
    trainer.train()
    assert "squared_loss" not in trainer.state.log_history[0]
    trainer.log_loss_components = {"other": "squared_loss"}
    with pytest.raises(ConfigurationError, match="log_loss_components has no effect with reproduce"):
        trainer.train()
