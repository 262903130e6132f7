"""The loss of an evaluation is the mean over all labels of the data, whatever the size of its batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hexloop import Trainer
from tests.end_to_end.small.decoders import llama, sentences
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import DEFAULTS, small_trainer

ROWS = sentences(19)


def mean_over_labels(model: Any, data: list[dict[str, Tensor]]) -> float:
    """Return the mean negative log-likelihood of all labels, computed one row at a time."""
    total, count = 0.0, 0
    with torch.no_grad():
        for row in data:
            logits = model.eval()(row["input_ids"][None], row["attention_mask"][None]).logits[0, :-1]
            labels = row["labels"][1:]
            total += float(cross_entropy(logits, labels, reduction="sum"))
            count += int((labels != -100).sum())
    return total / count


def evaluated(folder: Path, kind: type[Trainer] = Trainer, model: Any = None, **given: Any) -> dict[str, float]:
    parts = {"model": model or llama(), "eval_dataset": ROWS}
    found: dict[str, float] = small_trainer(folder, kind, parts, **given).evaluate()
    return found


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize(
    "given", [{}, {"prediction_loss_only": True}, {"chunked_loss": True}, {"eval_accumulation_steps": 1}]
)
def test_the_loss_does_not_depend_on_the_batch_size(size: int, given: dict[str, Any], tmp_path: Path) -> None:
    """It equals the mean that is computed row by row, and the perplexity is its exponential."""
    metrics = evaluated(tmp_path, per_device_eval_batch_size=size, **given)
    assert metrics["eval_loss"] == pytest.approx(mean_over_labels(llama(), ROWS), rel=1e-6)
    assert metrics["eval_perplexity"] == math.exp(metrics["eval_loss"])


def test_evaluations_during_training_and_predictions_are_the_same(tmp_path: Path) -> None:
    """With the weights that they find."""
    parts = {"model": llama(), "train_dataset": ROWS, "eval_dataset": ROWS}
    trainer = small_trainer(tmp_path, parts=parts, eval_strategy="epoch", per_device_eval_batch_size=5)
    trainer.train()
    (logged,) = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    predicted = trainer.predict(ROWS).metrics
    expected = mean_over_labels(trainer.model, ROWS)
    assert logged["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert (predicted["test_loss"], predicted["test_perplexity"]) == (logged["eval_loss"], logged["eval_perplexity"])


@pytest.mark.parametrize("size", [1, 3, 8])
def test_with_reproduce_it_is_that_of_transformers(size: int, tmp_path: Path) -> None:
    """Each batch's mean counts by its rows, and there is no perplexity."""
    data = ROWS[:-1]  # the mean of a row without labels is nan there
    ours = evaluated_on(data, tmp_path / "ours", per_device_eval_batch_size=size, reproduce="transformers")
    given = {**DEFAULTS, "per_device_eval_batch_size": size}
    args = transformers.TrainingArguments(str(tmp_path / "theirs"), **given)
    theirs = transformers.Trainer(llama(), args, eval_dataset=data).evaluate()
    assert ours["eval_loss"] == theirs["eval_loss"]
    assert "eval_perplexity" not in ours


def evaluated_on(data: list[dict[str, Tensor]], folder: Path, **given: Any) -> dict[str, float]:
    found: dict[str, float] = small_trainer(folder, parts={"model": llama(), "eval_dataset": data}, **given).evaluate()
    return found


class OwnLoss(Trainer):
    """Computes the loss itself."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *given: Any, **named: Any) -> Any:
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class OwnPrediction(Trainer):
    """Predicts itself."""

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)


@pytest.mark.parametrize("kind", [OwnLoss, OwnPrediction])
def test_methods_of_the_users_are_weighted_as_well(kind: type[Trainer], tmp_path: Path) -> None:
    """What they return is a mean over labels; it may be another loss than that of tokens, so there is no perplexity."""
    metrics = evaluated(tmp_path, kind, per_device_eval_batch_size=3)
    assert metrics["eval_loss"] == pytest.approx(mean_over_labels(llama(), ROWS), rel=1e-6)
    assert "eval_perplexity" not in metrics


class TwiceAsMany(Trainer):
    """Counts each label twice."""

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        return 2 * sum((each["labels"][:, 1:] != -100).sum() for each in batch_samples)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_an_own_count_divides_and_weights(size: int, tmp_path: Path) -> None:
    """Losses are sums over such a count, and weighted by it."""
    metrics = evaluated(tmp_path, TwiceAsMany, per_device_eval_batch_size=size)
    assert metrics["eval_loss"] == pytest.approx(mean_over_labels(llama(), ROWS) / 2, rel=1e-6)


def test_losses_of_other_things_have_no_perplexity(tmp_path: Path) -> None:
    """Those of a classifier and of a regression, of smoothed labels, and of weighted tokens."""
    sizes: dict[str, Any] = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    classifier = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, intermediate_size=8))
    texts = [{**row, "labels": number % 2} for number, row in enumerate(ROWS)]
    for each in (
        small_trainer(tmp_path, parts={"model": classifier, "eval_dataset": texts}).evaluate(),
        small_trainer(tmp_path, parts={"eval_dataset": rows(5)}).evaluate(),
        evaluated(tmp_path, label_smoothing_factor=0.1),
        evaluated(tmp_path, loss_type="dft"),
    ):
        assert "eval_loss" in each
        assert "eval_perplexity" not in each


class Constant(nn.Module):
    """Its loss is a given number for each batch."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.weight, self.losses = nn.Parameter(torch.ones(())), iter(losses)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.weight * next(self.losses)}


def test_losses_that_are_not_finite(tmp_path: Path) -> None:
    """They are left out of the mean, unless the filter is off; batches without labels are left out always."""
    data = [{"x": torch.ones(4), "labels": torch.tensor([-100, 1, each, each])} for each in (1, -100, -100, 1)]
    for losses, filters, expected in (
        ([1.0, math.nan, 3.0, 2.0], True, (3 * 1.0 + 1 * 3.0 + 3 * 2.0) / 7),
        ([1.0, math.nan, 3.0, 2.0], False, math.nan),
        ([math.nan] * 4, True, math.nan),
    ):
        trainer = small_trainer(
            tmp_path,
            parts={"model": Constant(losses), "eval_dataset": data},
            per_device_eval_batch_size=1,
            logging_nan_inf_filter=filters,
        )
        assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, nan_ok=True)
    data[1]["labels"] = torch.full((4,), -100)
    trainer = small_trainer(
        tmp_path, parts={"model": Constant([1.0, math.nan, 3.0, 2.0]), "eval_dataset": data},
        per_device_eval_batch_size=1, logging_nan_inf_filter=False,
    )  # fmt: skip
    assert trainer.evaluate()["eval_loss"] == pytest.approx((3 * 1.0 + 1 * 3.0 + 3 * 2.0) / 7)


def test_a_perplexity_that_is_too_large(tmp_path: Path) -> None:
    """It is infinite, and no error."""
    model = llama()
    with torch.no_grad():
        model.lm_head.weight.mul_(1e5)
    assert evaluated(tmp_path, model=model)["eval_perplexity"] == math.inf
