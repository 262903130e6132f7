"""Data loading, sample order, and evaluation results of a Trainer."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset as HubDataset
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from hexloop import DataCollatorWithPadding, EarlyStoppingCallback, EvalPrediction, Trainer, default_data_collator
from hexloop.adapters.clock import ManualClock
from hexloop.adapters.logger import RecordingLogger
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.adapters.storage.memory import MemoryStorage
from tests.end_to_end.small.models import Net, Noisy, net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


class Recorder:
    """Collates as usual, and records its input."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []

    def __call__(self, features: list[Any]) -> dict[str, Any]:
        batch: dict[str, Any] = default_data_collator(features)
        self.batches.append(dict(batch))
        return batch


def seen_in_training(trainer: Trainer) -> list[Tensor]:
    """Return the inputs of the model, batch by batch."""
    seen: list[Tensor] = []

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(kwargs["x"].clone())

    trainer.model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train()
    return seen


# Order and randomness


def test_keyed_samples_do_not_depend_on_workers(tmp_path: Path) -> None:
    """With `keyed_data_randomness=True`, no workers and two give the same augmented samples, over two epochs."""
    runs = [
        seen_in_training(
            small_trainer(
                tmp_path, parts={"train_dataset": Noisy(10)}, num_train_epochs=2, keyed_data_randomness=True,
                dataloader_num_workers=workers,
            )
        )
        for workers in (0, 2)
    ]  # fmt: skip

    assert len(runs[0]) == 6
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    assert not torch.equal(runs[0][0], runs[0][3])


def test_every_sample_occurs_once_per_epoch(tmp_path: Path) -> None:
    """Each epoch contains all samples once, in its own order."""
    data = [{"x": torch.full((4,), float(number)), "labels": torch.zeros(1)} for number in range(10)]
    seen = seen_in_training(small_trainer(tmp_path, parts={"train_dataset": data}, num_train_epochs=2))
    epochs = [[int(value) for batch in seen[start : start + 3] for value in batch[:, 0]] for start in (0, 3)]

    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])


@pytest.mark.parametrize("further", [{}, {"length_column_name": "long"}])
def test_group_by_length_batches_similar_lengths(tmp_path: Path, further: dict[str, Any]) -> None:
    """Grouped by length, lengths within a batch vary less than in random order; the longest batch comes first."""

    class Lengths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            spreads.append(int(labels.max() - labels.min()))
            return {"loss": (self.weight * labels.float().mean()) ** 2}

    lengths = [int(length) for length in np.random.default_rng(0).integers(1, 60, 200)]
    data = [{"input_ids": [1] * length, "labels": length, "long": length} for length in lengths]

    def collate(features: list[dict[str, Any]]) -> dict[str, Tensor]:
        labels = torch.tensor([len(feature["input_ids"]) for feature in features])
        return {"input_ids": torch.zeros(len(features), int(labels.max())).long(), "labels": labels}

    total = []
    for strategy in ("group_by_length", "random"):
        spreads: list[int] = []
        small_trainer(
            tmp_path,
            parts={"model": Lengths(), "train_dataset": data, "data_collator": collate},
            train_sampling_strategy=strategy,
            remove_unused_columns=False,
            **further,
        ).train()
        total.append(sum(spreads))

    assert total[0] < total[1] / 4


# Columns and collators


def test_unused_columns_are_removed(tmp_path: Path) -> None:
    """A `datasets.Dataset` with text and additional numbers trains like one with only the model's columns."""
    plain = {"x": [row["x"].tolist() for row in rows(8)], "labels": [row["labels"].tolist() for row in rows(8)]}
    data = HubDataset.from_dict({**plain, "text": ["words"] * 8, "number": list(range(8))})
    trainer = small_trainer(tmp_path, parts={"train_dataset": data, "eval_dataset": data}, eval_strategy="epoch")
    trainer.train()
    other = small_trainer(tmp_path, parts={"train_dataset": rows(8)})
    other.train()

    assert same_weights(weights(trainer), weights(other))


def test_unused_columns_can_be_kept(tmp_path: Path) -> None:
    """With `remove_unused_columns=False` the collator receives all columns."""
    recorder = Recorder()
    data = [{**row, "further": 1} for row in rows(4)]

    class Dropping(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            inputs.pop("further")
            return super().compute_loss(model, inputs, *args, **kwargs)

    small_trainer(
        tmp_path, Dropping, {"train_dataset": data, "data_collator": recorder}, remove_unused_columns=False
    ).train()

    assert set(recorder.batches[0]) == {"x", "labels", "further"}


class PadsToLongest:
    """The part of a tokenizer that padding needs."""

    def pad(self, features: list[dict[str, Any]], **options: Any) -> dict[str, Tensor]:
        longest = max(len(feature["input_ids"]) for feature in features)
        ids = [feature["input_ids"] + [0] * (longest - len(feature["input_ids"])) for feature in features]
        mask = [[int(position < len(each["input_ids"])) for position in range(longest)] for each in features]
        batch = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        return {**batch, "label": torch.tensor([feature["label"] for feature in features])}

    def save_pretrained(self, folder: str) -> None:
        Path(folder, "tokenizer.json").write_text("{}")


def tiny_bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    return BertForSequenceClassification(config)


def token_samples(count: int) -> list[dict[str, Any]]:
    source = np.random.default_rng(1)
    return [
        {"input_ids": source.integers(1, 20, source.integers(2, 7)).tolist(), "label": index % 2}
        for index in range(count)
    ]


def test_a_transformers_classifier_trains_and_loads_again(tmp_path: Path) -> None:
    """It trains with its tokenizer's padding, and `from_pretrained` loads its checkpoint with the same logits."""
    model = tiny_bert()
    trainer = small_trainer(
        tmp_path,
        parts={
            "model": model,
            "train_dataset": token_samples(12),
            "eval_dataset": token_samples(6),
            "processing_class": PadsToLongest(),
            "compute_metrics": lambda found: {"right": float((found[0].argmax(-1) == found[1]).mean())},
        },
        save_strategy="epoch",
        eval_strategy="epoch",
    )
    assert isinstance(trainer.data_collator, DataCollatorWithPadding)
    trainer.train()
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-3")
    inputs = {"input_ids": torch.tensor([[1, 2, 3]])}

    assert torch.equal(loaded(**inputs).logits, trainer.model.eval()(**inputs).logits)
    assert (tmp_path / "checkpoint-3" / "tokenizer.json").is_file()
    assert 0 <= trainer.evaluate()["eval_right"] <= 1


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """A language model whose head is its embedding is saved once, loads tied, and resumes tied."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    data = [{"input_ids": [1, 2, 3, index], "labels": [1, 2, 3, index]} for index in range(8)]

    def make() -> Any:
        return small_trainer(
            tmp_path,
            parts={"model": GPT2LMHeadModel(config), "train_dataset": data},
            save_strategy="steps",
            save_steps=1,
        )

    trainer = make()
    trainer.train()
    loaded: Any = GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-2")
    resumed = make()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    ids = torch.tensor([[1, 2, 3]])

    for model in (loaded, resumed.model):
        assert model.lm_head.weight is model.transformer.wte.weight
    assert torch.equal(loaded(ids).logits, trainer.model.eval()(ids).logits)
    assert same_weights(weights(resumed), weights(trainer))


# Metrics


def measured(folder: Path, compute: Callable[..., dict[str, Any]], **given: Any) -> dict[str, Any]:
    """Return the metrics of an evaluation on ten samples."""
    parts = {"eval_dataset": rows(10), "compute_metrics": compute, **given.pop("parts", {})}
    metrics: dict[str, Any] = small_trainer(folder, parts=parts, **given).evaluate()
    return metrics


def squared_error(found: EvalPrediction) -> dict[str, Any]:
    predictions, labels = found
    assert predictions.shape == labels.shape == (10, 1)
    return {"squared_error": ((predictions - labels) ** 2).mean()}


def test_metrics_receive_every_sample(tmp_path: Path) -> None:
    """compute_metrics receives arrays of all samples; its values are logged with the prefix, next to the mean loss."""
    metrics = measured(tmp_path, squared_error)

    assert metrics["eval_squared_error"] == pytest.approx(metrics["eval_loss"], rel=1e-6)
    assert isinstance(metrics["eval_squared_error"], float)


@pytest.mark.parametrize("steps", [1, 2])
def test_predictions_may_be_moved_to_the_cpu_early(tmp_path: Path, steps: int) -> None:
    """With `eval_accumulation_steps` the metrics are the same."""
    metrics = measured(tmp_path, squared_error, eval_accumulation_steps=steps)

    assert metrics["eval_squared_error"] == measured(tmp_path, squared_error)["eval_squared_error"]


def test_metrics_may_be_computed_batch_by_batch(tmp_path: Path) -> None:
    """With `batch_eval_metrics`, each call gets one batch of tensors and a flag for the last."""
    calls: list[tuple[int, bool]] = []

    def compute(found: EvalPrediction, compute_result: bool) -> dict[str, float]:
        assert isinstance(found.predictions, Tensor)
        calls.append((len(found.predictions), compute_result))
        return {"batches": len(calls)} if compute_result else {}

    metrics = measured(tmp_path, compute, batch_eval_metrics=True)

    assert calls == [(4, False), (4, False), (2, True)]
    assert metrics["eval_batches"] == 3


def test_metrics_may_receive_inputs_and_losses(tmp_path: Path) -> None:
    """`include_for_metrics` adds them."""

    class Named(Net):
        main_input_name = "x"

    def compute(found: EvalPrediction) -> dict[str, float]:
        assert found.inputs.shape == (10, 4)
        assert found.losses.shape == (10,)
        return {"mean": found.losses.mean()}

    metrics = measured(tmp_path, compute, parts={"model": net(kind=Named)}, include_for_metrics=["inputs", "loss"])

    assert metrics["eval_mean"] == pytest.approx(metrics["eval_loss"])


def test_logits_can_be_preprocessed(tmp_path: Path) -> None:
    """`preprocess_logits_for_metrics` receives logits and labels as tensors; metrics receive its result."""

    def compute(found: EvalPrediction) -> dict[str, float]:
        assert found.predictions.dtype == np.bool_
        return {"positive": found.predictions.mean()}

    parts = {"preprocess_logits_for_metrics": lambda logits, labels: (logits > 0) & (labels == labels)}

    assert 0 <= measured(tmp_path, compute, parts=parts)["eval_positive"] <= 1


def test_batches_may_be_kept_apart(tmp_path: Path) -> None:
    """With `eval_do_concat_batches=False` metrics receive lists of batches."""

    def compute(found: EvalPrediction) -> dict[str, float]:
        return {"largest": max(len(batch) for batch in found.predictions), "batches": len(found.label_ids)}

    metrics = measured(tmp_path, compute, eval_do_concat_batches=False)

    assert (metrics["eval_largest"], metrics["eval_batches"]) == (4, 3)


def test_only_the_loss_may_be_computed(tmp_path: Path) -> None:
    """With `prediction_loss_only`, metrics are not computed and predictions not returned."""
    trainer = small_trainer(
        tmp_path, parts={"eval_dataset": rows(10), "compute_metrics": squared_error}, prediction_loss_only=True
    )

    assert set(trainer.evaluate()) >= {"eval_loss"}
    assert "eval_squared_error" not in trainer.evaluate()
    assert trainer.predict(rows(3)).predictions is None


class Uneven(nn.Module):
    """Returns inputs of different widths, twice, in nested tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return {"loss": mse_loss(self.weight * x, torch.zeros_like(x)), "logits": x, "nested": (x + 1, x[:, :1])}


def test_uneven_and_nested_outputs_are_padded(tmp_path: Path) -> None:
    """Batches of different widths are concatenated and padded with -100, at any depth."""
    data = [{"x": torch.ones(width), "labels": torch.ones(width)} for width in (2, 2, 5, 5)]
    trainer = small_trainer(tmp_path, parts={"model": Uneven()}, per_device_eval_batch_size=2)
    logits, nested = trainer.predict(data).predictions

    assert logits.tolist() == [[1, 1, -100, -100, -100]] * 2 + [[1] * 5] * 2
    assert nested[0].tolist() == [[2, 2, -100, -100, -100]] * 2 + [[2] * 5] * 2
    assert nested[1].shape == (4, 1)
    assert trainer.predict(data).label_ids.shape == (4, 5)


def test_several_data_sets_are_evaluated_by_name(tmp_path: Path) -> None:
    """A dictionary of datasets gives the metrics of each under its name, in a run and in a call."""
    sets = {"near": rows(4), "far": rows(6, seed=1)}
    trainer = small_trainer(
        tmp_path, parts={"eval_dataset": sets}, eval_strategy="epoch", metric_for_best_model="far_loss"
    )
    trainer.train()
    logged = {name for entry in trainer.state.log_history for name in entry}

    assert {"eval_near_loss", "eval_far_loss"} <= logged
    assert trainer.state.best_metric == trainer.evaluate()["eval_far_loss"]
    assert set(trainer.evaluate(rows(4))) >= {"eval_loss"}
    assert "eval_loss" not in logged


def test_predictions_are_in_the_order_of_the_data(tmp_path: Path) -> None:
    """`predict` returns a row for each sample, its label, and metrics with the prefix "test_"."""
    trainer = small_trainer(tmp_path, parts={"compute_metrics": lambda found: {"count": len(found[0])}})
    output = trainer.predict(rows(10))

    assert output.label_ids.tolist() == [row["labels"].tolist() for row in rows(10)]
    assert output.metrics["test_count"] == 10
    assert {"test_loss", "test_runtime", "test_samples_per_second"} <= set(output.metrics)


# The best model, and which checkpoints are kept


class Worsening(Net):
    """Its evaluation losses are the given numbers, one per evaluation."""

    losses = (3.0, 1.0, 2.0, 4.0, 5.0, 6.0)
    evaluations = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        outputs = super().forward(x, labels)
        if not self.training:
            outputs["loss"] = torch.tensor(self.losses[self.evaluations])
            self.evaluations += 1
        return outputs


RHYTHM: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "max_steps": 5,
}


def best_parts() -> dict[str, Any]:
    return {"model": net(kind=Worsening), "eval_dataset": rows(4)}


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_a_run_can_load_the_best_weights_at_the_end(tmp_path: Path) -> None:
    """They are those of the best evaluation's step, whose checkpoint rotation keeps."""
    trainer = small_trainer(tmp_path, parts=best_parts(), load_best_model_at_end=True, save_total_limit=2, **RHYTHM)
    at_best: dict[str, Tensor] = {}
    for event in trainer.stream():
        if type(event).__name__ == "Saved" and event.step == 2:
            at_best = weights(trainer)

    assert same_weights(weights(trainer), at_best)
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert trainer.state.best_metric == 1.0
    assert checkpoints(tmp_path) == ["checkpoint-2", "checkpoint-5"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_older_checkpoints_are_removed(tmp_path: Path, limit: int) -> None:
    """`save_total_limit` checkpoints are kept, the newest."""
    small_trainer(tmp_path, save_total_limit=limit, save_strategy="steps", save_steps=1).train()

    assert checkpoints(tmp_path) == [f"checkpoint-{step}" for step in range(5 - limit, 5)]


def test_save_strategy_best_saves_improvements_only(tmp_path: Path) -> None:
    """With `save_strategy="best"` a checkpoint is saved for each evaluation that improves on all earlier ones."""
    given = {**RHYTHM, "save_strategy": "best"}
    small_trainer(tmp_path, parts=best_parts(), metric_for_best_model="loss", **given).train()

    assert checkpoints(tmp_path) == ["checkpoint-1", "checkpoint-2"]


def test_early_stopping_ends_training(tmp_path: Path) -> None:
    """EarlyStoppingCallback stops the run after `patience` evaluations without improvement, with the best weights."""
    parts = {**best_parts(), "callbacks": [EarlyStoppingCallback(2)]}
    trainer = small_trainer(tmp_path, parts=parts, load_best_model_at_end=True, **RHYTHM)

    assert trainer.train().global_step == 4
    assert trainer.state.best_global_step == 2


# Injected adapters


def test_adapters_may_be_injected(tmp_path: Path) -> None:
    """The run uses the given storage, clock, loggers and precision; nothing is written to the disk."""
    storage, clock, logger = MemoryStorage(), ManualClock(), RecordingLogger()
    trainer = small_trainer(
        tmp_path / "nothing here",
        parts={"storage": storage, "clock": clock, "loggers": [logger], "precision": PlainPrecision("fp32")},
        save_strategy="epoch",
    )
    output = trainer.train()

    assert "manifest.json" in [entry.name for entry in storage.list("checkpoint-4")]
    assert output.metrics["train_runtime"] == 0.0
    assert [record.step for record in logger.records] == [1, 2, 3, 4, 4]
    assert logger.runs[0].total_steps == 4
    assert not (tmp_path / "nothing here").exists()


def test_a_failing_logger_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the log; the run continues without it."""
    failing, sound = RecordingLogger(OSError("no route")), RecordingLogger()
    trainer = small_trainer(tmp_path, parts={"loggers": [failing, sound]})
    trainer.train()

    assert len([text for text in caplog.messages if "no route" in text]) == 1
    assert len(failing.records) == 0
    assert len(sound.records) == 5


def test_no_pickle_is_written(tmp_path: Path) -> None:
    """A checkpoint contains safetensors and JSON only."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small_trainer(tmp_path, parts={"model": net(0.3)}, save_strategy="epoch", fp16=True).train()
    folder = tmp_path / "checkpoint-4"

    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    for path in folder.glob("*.json"):
        json.loads(path.read_text())


@pytest.mark.parametrize("strategy", ["group_by_length", "batch_rebalance"])
def test_a_column_of_lengths_is_read_although_the_model_does_not_take_it(tmp_path: Path, strategy: str) -> None:
    """A Dataset of the package datasets sorts its batches as a list does, by a column that forward does not take."""
    given = [{**row, "length": (7 * number) % 16 + 1} for number, row in enumerate(rows(16))]
    plain: list[dict[str, Any]] = [
        {"x": row["x"].tolist(), "labels": row["labels"].tolist(), "length": (7 * number) % 16 + 1}
        for number, row in enumerate(rows(16))
    ]
    table = HubDataset.from_list(plain).with_format("torch")
    by_list, by_table = (
        small_trainer(tmp_path, parts={"train_dataset": data}, train_sampling_strategy=strategy)
        for data in (given, table)
    )
    by_list.train(), by_table.train()
    assert same_weights(weights(by_list), weights(by_table))
