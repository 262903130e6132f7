"""Bad input raises one clear error: before the first step if it can be known, otherwise on the first batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop import Trainer, TrainingArguments
from hexloop.adapters.interrupts import SignalInterrupts
from hexloop.domain.errors import ConfigurationError, DataError, HexloopError
from hexloop.domain.events import StepEnded
from tests.end_to_end.small.models import Net, Stream, net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


def refused(make: Callable[[], Any]) -> tuple[str, ...]:
    """Return the problems of the error."""
    with pytest.raises(ConfigurationError) as raised:
        make()
    return raised.value.problems


def problem_of(make: Callable[[], Any]) -> str:
    """Return the only problem of the error."""
    (problem,) = refused(make)
    return problem


def train_and_count(trainer: Trainer, steps: list[int]) -> None:
    for event in trainer.stream():
        if type(event) is StepEnded:
            steps.append(event.step)


def refused_before_the_first_step(trainer: Trainer) -> tuple[str, ...]:
    """Return the problems of a refused run; nothing was trained, and the Trainer can be used again."""
    before, steps = weights(trainer), list[int]()
    problems = refused(lambda: train_and_count(trainer, steps))
    assert not steps
    assert same_weights(weights(trainer), before)
    assert not trainer.is_in_train
    return problems


# Known from the arguments alone


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"weight_decay": float("inf")}, "weight_decay=inf"),
        ({"load_best_model_at_end": True, "save_strategy": "epoch"}, "load_best_model_at_end=True"),
        ({"eval_strategy": "sometimes"}, "eval_strategy='sometimes'"),
        ({"fp16": True, "bf16": True}, "fp16=True"),
    ],
)
def test_contradictions_in_the_arguments_are_refused(given: dict[str, Any], words: str) -> None:
    """Constructing the arguments reports the conflicting values."""
    assert any(words in problem for problem in refused(lambda: TrainingArguments(**given)))


def test_an_unknown_argument_is_refused() -> None:
    """The error suggests the closest argument."""
    assert "learning_rate" in problem_of(lambda: TrainingArguments(learnin_rate=0.1))  # type: ignore[call-arg]


# Known from the Trainer's parts


@pytest.mark.parametrize("given", [{}, {"model": net(), "model_init": net}])
def test_exactly_one_source_of_a_model_is_required(tmp_path: Path, given: dict[str, Any]) -> None:
    """Neither a model nor a `model_init`, or both, is refused."""
    assert "model_init" in problem_of(lambda: Trainer(**given, loggers=[]))


def test_a_precision_that_the_device_lacks_is_refused(tmp_path: Path) -> None:
    """The error names the precision and the device, and lists what the device supports."""
    problem = problem_of(lambda: small_trainer(tmp_path, tf32=True))

    assert all(word in problem for word in ("tf32", "cpu", "fp32", "bf16"))


def test_a_missing_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the environment names a GPU that torch does not find, the error says so and how to fix it."""
    from hexloop.app.environment import Surroundings

    if torch.cuda.is_available():
        pytest.skip("there is such a device")
    monkeypatch.setattr(TrainingArguments, "surroundings", Surroundings(device="cuda:0"))
    problem = problem_of(lambda: small_trainer(tmp_path, use_cpu=False))

    assert "cuda:0" in problem
    assert "use_cpu=True" in problem


def test_all_problems_of_the_construction_are_reported_at_once(tmp_path: Path) -> None:
    """A missing model, an unsupported precision and a missing tracker are one error with three problems."""
    problems = refused(
        lambda: small_trainer(tmp_path, parts={"model": None, "loggers": None}, tf32=True, report_to="x")
    )

    assert len(problems) == 3


# Known before the run starts


def test_training_without_data_is_refused(tmp_path: Path) -> None:
    """There is no dataset."""
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, parts={"train_dataset": None}))

    assert "train_dataset" in problem


@pytest.mark.parametrize("drop_last", [False, True])
def test_empty_data_are_refused(tmp_path: Path, drop_last: bool) -> None:
    """No sample, or fewer than a batch with drop_last."""
    parts = {"train_dataset": rows(3 if drop_last else 0)}
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, parts=parts, dataloader_drop_last=drop_last))

    assert "empty" in problem


def test_data_without_a_length_need_max_steps(tmp_path: Path) -> None:
    """Epochs cannot be counted for data without a length."""
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, parts={"train_dataset": Stream(8)}))

    assert "max_steps" in problem


@pytest.mark.parametrize("data", [None, [], {}, {"near": rows(2), "far": []}])
@pytest.mark.parametrize("given", [{"eval_strategy": "epoch"}, {"eval_on_start": True}])
def test_evaluation_without_data_is_refused(tmp_path: Path, data: Any, given: dict[str, Any]) -> None:
    """It is refused before the first step, not when the first evaluation is due."""
    trainer = small_trainer(tmp_path, parts={"eval_dataset": data}, **given)
    (problem,) = refused_before_the_first_step(trainer)

    assert "eval_dataset" in problem or "evaluation data is empty" in problem


def test_iterable_data_cannot_be_grouped_by_length(tmp_path: Path) -> None:
    """Grouping by length is refused for iterable datasets."""
    trainer = small_trainer(
        tmp_path, parts={"train_dataset": Stream(8)}, max_steps=2, train_sampling_strategy="group_by_length"
    )
    (problem,) = refused_before_the_first_step(trainer)

    assert "group_by_length" in problem


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    """The output folder is a file."""
    (tmp_path / "taken").write_text("")
    trainer = small_trainer(tmp_path / "taken", save_strategy="epoch")
    (problem,) = refused_before_the_first_step(trainer)

    assert "cannot be written to" in problem


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    """Writing is tried; permission bits are not trusted."""
    tmp_path.chmod(0o500)
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path / "new", save_strategy="epoch"))

    assert "cannot be written to" in problem


def test_gradient_checkpointing_of_an_unsupported_model_is_refused(tmp_path: Path) -> None:
    """Activation checkpointing needs a method of the model."""
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, gradient_checkpointing=True))

    assert "Net" in problem


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"optim": "lomo"}, "lomo"),
        ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"powr": 2}}, "power"),
    ],
)
def test_an_invalid_optimizer_or_schedule_is_refused(tmp_path: Path, given: dict[str, Any], word: str) -> None:
    """The error names the unknown option and suggests the closest one."""
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, **given))

    assert word in problem


def test_all_problems_of_a_run_are_reported_at_once(tmp_path: Path) -> None:
    """Folder, evaluation data, model, training data and schedule are all checked before an error is raised."""
    (tmp_path / "taken").write_text("")
    trainer = small_trainer(
        tmp_path / "taken", parts={"train_dataset": []}, save_strategy="epoch", eval_strategy="epoch",
        gradient_checkpointing=True,
    )  # fmt: skip
    assert len(refused_before_the_first_step(trainer)) == 4
    trainer.train_dataset = rows(4)
    trainer.args.optim = "lomo"
    assert len(refused_before_the_first_step(trainer)) == 4


def test_unusable_columns_are_refused(tmp_path: Path) -> None:
    """If the model takes none of a dataset's columns, the error lists both."""
    from datasets import Dataset

    data = Dataset.from_dict({"text": ["a", "b"]})
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, parts={"train_dataset": data}))

    assert "text" in problem
    assert "labels" in problem


def test_signals_are_refused_outside_the_main_thread(tmp_path: Path) -> None:
    """Python delivers signals to its main thread only, so a run in another thread cannot be stopped by them."""
    import threading

    trainer = small_trainer(tmp_path, parts={"interrupts": SignalInterrupts()})
    problems: list[tuple[str, ...]] = []
    thread = threading.Thread(target=lambda: problems.append(refused_before_the_first_step(trainer)))
    thread.start()
    thread.join()

    assert "main thread" in problems[0][0]
    assert trainer.train().global_step == 4


# Known from the first batch


class Lossless(Net):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return {"logits": self.layers(x)}


FIRST_BATCHES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a collator that stacks nothing": (lambda: {"data_collator": lambda rows: rows}, "data_collator"),
    "a collator without a batch dimension": (
        lambda: {"data_collator": lambda rows: {"x": torch.tensor(1.0)}},
        "batch dimension",
    ),
    "an empty batch": (lambda: {"data_collator": lambda rows: {}}, "data_collator"),
    "a model without a loss": (lambda: {"model": net(kind=Lossless)}, "returned no loss"),
    "data without labels": (
        lambda: {"train_dataset": [{"x": row["x"]} for row in rows(8)]},
        "returned no loss for the inputs x",
    ),
}


@pytest.mark.parametrize("name", FIRST_BATCHES)
def test_problems_in_the_data_are_reported_on_the_first_batch(tmp_path: Path, name: str) -> None:
    """DataError is raised before the first update, with the actual and the expected value."""
    parts, words = FIRST_BATCHES[name]
    trainer = small_trainer(tmp_path, parts=parts())
    before, steps = weights(trainer), list[int]()
    with pytest.raises(DataError, match=words):
        train_and_count(trainer, steps)

    assert not steps
    assert same_weights(weights(trainer), before)


def test_the_first_batch_is_trained_on(tmp_path: Path) -> None:
    """Checking it reads no additional sample and runs no additional forward pass."""

    class Reading(list[dict[str, Tensor]]):
        read = 0

        def __getitem__(self, index: Any) -> Any:
            self.read += 1
            return super().__getitem__(index)

    data, calls = Reading(rows(8)), []
    trainer = small_trainer(tmp_path, parts={"train_dataset": data})
    trainer.model.register_forward_pre_hook(lambda *_: calls.append(1))
    trainer.train()

    assert data.read == 8
    assert len(calls) == 2


def test_a_missing_metric_is_refused_at_the_first_evaluation(tmp_path: Path) -> None:
    """If the best model is to be saved or loaded. The error lists the available metrics."""
    trainer = small_trainer(
        tmp_path, parts={"eval_dataset": rows(4)}, eval_strategy="steps", eval_steps=1, metric_for_best_model="f1",
        save_strategy="best",
    )  # fmt: skip
    problem = problem_of(trainer.train)

    assert "eval_f1" in problem
    assert "eval_loss" in problem
    assert trainer.state.global_step == 1


# Checkpoints that are missing, or belong to another run


def test_resuming_from_an_empty_folder_is_refused(tmp_path: Path) -> None:
    """Resuming from the newest checkpoint of an empty folder names the folder."""
    with pytest.raises(HexloopError, match=str(tmp_path)):
        small_trainer(tmp_path).train(resume_from_checkpoint=True)


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    """The error lists the valid checkpoints."""
    small_trainer(tmp_path, save_strategy="epoch").train()
    with pytest.raises(HexloopError, match="checkpoint-4"):
        small_trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """The error names the tensors, and the model keeps its weights."""
    small_trainer(tmp_path, save_strategy="epoch").train()

    class Wider(Net):
        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__(dropout)
            self.layers[3] = nn.Linear(8, 2)

    other = small_trainer(tmp_path, parts={"model": net(kind=Wider)})
    before = weights(other)
    with pytest.raises(HexloopError, match=r"layers\.3\.weight"):
        other.train(resume_from_checkpoint=True)

    assert same_weights(weights(other), before)
