"""An evaluation without a loss or metrics says why, or fails where the best model depends on it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from hexloop import ConfigurationError, DataError, Trainer, TrainingArguments

NOTHING = "its data yielded no batches"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: Tensor, target: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.linear(x).squeeze(-1)
        return {"logits": logits} | ({} if labels is None else {"loss": ((logits - labels) ** 2).mean()})


class Once(IterableDataset[Any]):
    """Rows that can be read only once."""

    def __init__(self) -> None:
        self.rows = iter(rows("labels"))

    def __iter__(self) -> Iterator[Any]:
        return self.rows


def rows(label: str) -> list[dict[str, Any]]:
    return [{"x": torch.ones(2) * number, label: torch.tensor(float(number))} for number in range(4)]


def accuracy(_found: Any) -> dict[str, float]:
    return {"accuracy": 1.0}


def trainer(folder: Path, evaluation: Any, metrics: Any = None, **arguments: Any) -> Trainer:
    args = TrainingArguments(
        str(folder), report_to=[], disable_tqdm=True, use_cpu=True, num_train_epochs=1, **arguments
    )
    return Trainer(Model(), args, train_dataset=rows("labels"), eval_dataset=evaluation, compute_metrics=metrics)


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.message.startswith("The evaluation has no")]


@pytest.mark.parametrize("metrics", [None, accuracy])
@pytest.mark.parametrize("by_batch", [False, True])
def test_the_reason_is_logged(tmp_path: Path, metrics: Any, by_batch: bool, caplog: pytest.LogCaptureFixture) -> None:
    """No rows, or labels of another name; with and without compute_metrics. What was measured has no such line."""
    if by_batch and metrics is not None:
        metrics = lambda _found, compute_result: {"accuracy": 1.0}  # noqa: E731
    lost = "no eval_loss" + (" and no result of compute_metrics" if metrics else "")

    def made(data: Any) -> Trainer:
        return trainer(tmp_path, data, metrics, batch_eval_metrics=by_batch, label_names=["labels"])

    with caplog.at_level(logging.WARNING, "hexloop"):
        assert "eval_loss" in made(rows("labels")).evaluate()
        assert reasons(caplog) == []
        assert "eval_loss" not in made(rows("target")).evaluate()
        (named,) = reasons(caplog)
        assert named.startswith(f"The evaluation has {lost}: the batches lack labels, and have ")
        assert "target" in named
        made([]).evaluate()
        assert reasons(caplog)[1].startswith(f"The evaluation has {lost}: {NOTHING}")


def test_a_stream_that_is_used_up_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second evaluation of a one-shot stream has no rows."""
    once = trainer(tmp_path, Once())
    with caplog.at_level(logging.WARNING, "hexloop"):
        assert "eval_loss" in once.evaluate()
        assert reasons(caplog) == []
        assert "eval_loss" not in once.evaluate()
        assert "only once" in reasons(caplog)[0]


def test_a_prediction_needs_no_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Predicting unlabelled rows is no failure."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer(tmp_path, None, accuracy).predict([{"x": torch.ones(2)}])
        assert reasons(caplog) == []


@pytest.mark.parametrize(
    "depends",
    [
        {"load_best_model_at_end": True},
        {"save_strategy": "best", "metric_for_best_model": "loss"},
        {"lr_scheduler_type": "reduce_lr_on_plateau"},
    ],
)
def test_a_run_that_depends_on_the_result_fails(tmp_path: Path, depends: dict[str, Any]) -> None:
    """The error says that nothing was measured, at the first evaluation."""
    strategies = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    with pytest.raises(ConfigurationError, match="It measured nothing: its data yielded no batches, or no labels"):
        trainer(tmp_path, rows("target"), label_names=["labels"], **strategies, **depends).train()


@pytest.mark.parametrize("batch", [None, {}])
def test_an_empty_batch_is_refused(tmp_path: Path, batch: Any) -> None:
    """A collator that returns nothing is named."""
    nothing = trainer(tmp_path, rows("labels"))
    nothing.data_collator = lambda _rows: batch
    with pytest.raises(DataError, match=r"The data_collator returned (None|an empty batch); let it return"):
        nothing.evaluate()


@pytest.mark.parametrize("reproduce", [None, "transformers"])
def test_a_transform_gets_the_columns_that_it_reads(tmp_path: Path, reproduce: str | None) -> None:
    """The model takes none of the stored columns, but what the transform makes from them."""
    datasets = pytest.importorskip("datasets")

    def transform(found: dict[str, Any]) -> dict[str, Any]:
        numbers = [float(text) for text in found["text"]]
        return {"x": [[number] * 2 for number in numbers], "labels": numbers, "unused": found["text"]}

    data = datasets.Dataset.from_dict({"text": ["1", "2", "3", "4"]}).with_transform(transform)
    given = trainer(tmp_path, data, reproduce=reproduce)
    assert "eval_loss" in given.evaluate()
    given.train_dataset = data
    assert given.train().global_step == 1
