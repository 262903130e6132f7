"""Bad input raises one clear error: before the first step if it can be known, otherwise on the first batch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hexloop import DataCollatorWithPadding, Trainer, TrainingArguments, default_data_collator
from hexloop.adapters.device.torch import CudaDevice
from hexloop.adapters.interrupts import SignalInterrupts
from hexloop.domain.errors import CheckpointError, ConfigurationError, DataError, HexloopError, InputsError
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
        ({"optim": "adam"}, "did you mean 'adamw_torch', which is Adam while weight_decay is 0, the default?"),
        ({"optim": "AdamW"}, "did you mean 'adamw_torch'?"),
        ({"optim": "nope"}, "optim='nope', but there is no such choice; choose one of adamw_torch, adamw_torch_fused,"),
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    """Constructing the device says whether torch or the machine lacks it, and what to do."""
    problem = problem_of(lambda: CudaDevice(1))

    assert problem.startswith("CudaDevice(1) cannot be used: ")
    assert "built without CUDA" in problem or "finds no GPU" in problem
    assert problem.endswith("or pass device=CpuDevice() or set use_cpu=True.")


def test_the_best_model_check_names_only_what_it_is_about() -> None:
    """Not logging_steps, which decides nothing here."""
    given = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4, "save_steps": 6}
    problem = problem_of(lambda: TrainingArguments(use_cpu=True, **given))  # type: ignore[arg-type]

    assert "logging_steps" not in problem
    assert problem.endswith("make save_steps a multiple of eval_steps.")


def test_a_missing_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the environment names a GPU that torch does not find, the error says so and how to fix it."""
    from hexloop.app.environment import DistributedEnvironment

    if torch.cuda.is_available():
        pytest.skip("there is such a device")
    monkeypatch.setattr(TrainingArguments, "distributed_environment", DistributedEnvironment(device="cuda:0"))
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
    """Epochs cannot be counted for data without a length; for those of a loader, once it exists."""

    class OwnLoader(Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(Stream(8))

    with pytest.raises(ConfigurationError, match=r"is a Stream, which has no length.*max_steps"):
        small_trainer(tmp_path, parts={"train_dataset": Stream(8)})
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, OwnLoader))

    assert "max_steps" in problem


def test_missing_data_are_refused_by_the_constructor(tmp_path: Path) -> None:
    """As in transformers, all at once; data that an overridden method provides are not missing."""

    class Provides(Trainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return DataLoader(Stream(8))

    with pytest.raises(ConfigurationError) as caught:
        small_trainer(tmp_path, parts={"train_dataset": Stream(8)}, eval_strategy="epoch")
    small_trainer(tmp_path, Provides, eval_strategy="epoch").train()

    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("data", [[], {}, {"near": rows(2), "far": []}])
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
        ({"optim": "galore_adamw"}, "optim_target_modules"),
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
        tmp_path / "taken", parts={"train_dataset": [], "eval_dataset": []}, save_strategy="epoch",
        eval_strategy="epoch", gradient_checkpointing=True,
    )  # fmt: skip
    assert len(refused_before_the_first_step(trainer)) == 4
    trainer.train_dataset = rows(4)
    trainer.args.optim = "galore_adamw"
    assert len(refused_before_the_first_step(trainer)) == 4


def test_unusable_columns_are_refused(tmp_path: Path) -> None:
    """If the model takes none of a dataset's columns, the error lists both."""
    from datasets import Dataset

    data = Dataset.from_dict({"text": ["a", "b"]})
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, parts={"train_dataset": data}))

    assert "text" in problem
    assert "labels" in problem
    assert "Tokenize the texts first" in problem


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"torch_compile_backend": "inducter"}, "no such backend here; did you mean 'inductor'?"),
        ({"torch_compile_backend": "xyz"}, "choose one of cudagraphs, inductor"),
        ({"torch_compile_mode": "reduce_overheads"}, "no such mode here; did you mean 'reduce-overhead'?"),
        ({"torch_compile_mode": "xyz"}, "choose one of default, "),
    ],
)
def test_what_torch_cannot_compile_with_is_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    """An unknown back end or mode of torch.compile."""
    (problem,) = refused_before_the_first_step(small_trainer(tmp_path, **given))
    ((name, value),) = given.items()
    assert problem.startswith(f"You chose {name}={value!r}, but torch.compile has")
    assert words in problem


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


class Unlabelled(Net):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return {"logits": self.layers(x)}


def passed_on(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def with_anything(self: Any, *values: Any, **named: Any) -> Any:
        return forward(self, *values, **named)

    return with_anything


class Decorated(Net):
    """As the models of transformers: forward is decorated, and all of its arguments are optional."""

    main_input_name = "x"

    @passed_on
    def forward(self, x: Tensor | None = None, labels: Tensor | None = None) -> Any:
        if x is None:
            raise ValueError("a raw error of the model")
        return super().forward(x, labels)


LABELS_ALONE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "texts": (
        [{"text": "a", "labels": [0.0]}] * 8,
        r"has only labels: the data's column text is left out, .* Tokenize",
    ),
    "others": (
        [{"image": [0.0], "labels": [0.0]}] * 8,
        r"only labels \(the data's column image is left out\), and the forward of Decorated takes x and labels\. ",
    ),
    "nothing": (
        [{"labels": [0.0]}] * 8,
        r"has only labels, and the forward of Decorated takes x and labels\. Make x of",
    ),
}


FIRST_BATCHES: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a collator that stacks nothing": (lambda: {"data_collator": lambda rows: rows}, "data_collator"),
    "a collator without a batch dimension": (
        lambda: {"data_collator": lambda rows: {"x": torch.tensor(1.0)}},
        "batch dimension",
    ),
    "an empty batch": (lambda: {"data_collator": lambda rows: {}}, "data_collator returned an empty batch"),
    "no batch": (lambda: {"data_collator": lambda rows: None}, "data_collator returned None"),
    "samples that are texts": (
        lambda: {"train_dataset": ["a", "b"] * 4},
        r"Sample 0 of the batch is a value of type str, but .*\. Tokenize the texts, or pass a data_collator",
    ),
    "samples that are numbers": (lambda: {"train_dataset": [1, 2] * 4}, r"of type int, .* Name the value, as in"),
    "missing samples": (
        lambda: {"train_dataset": [*rows(1), None, *rows(2)]},
        r"Sample 1 of the batch is None, .* Leave out missing samples",
    ),
    "columns that the model does not take": (
        lambda: {"train_dataset": [{"pixels": [0.0], "mask": [1.0]}] * 8},
        r"None of the data's columns reaches the model: they are pixels and mask, and the forward of Net takes x and "
        r"labels\. Rename the columns",
    ),
    "texts that are not tokenized": (
        lambda: {"train_dataset": [{"x": "a", "labels": [0.0]}] * 8},
        r"The batch has only labels: the data's column x is left out, because the forward of Net takes x and labels as "
        r"tensors, and texts cannot be stacked\. Tokenize the texts first",
    ),
    "texts in a column of another name": (
        lambda: {"train_dataset": [{"text": "a"}] * 8},
        r"None of the data's columns reaches the model: they are text, and .* Tokenize the texts first",
    ),
    "texts alone": (
        lambda: {"train_dataset": [{"x": "a"}] * 8},
        r"The batch is empty: the data's column x is texts, and the forward of Net takes x and labels, as tensors\.",
    ),
    "a model without a loss": (lambda: {"model": net(kind=Lossless)}, "returned no loss"),
    "data without labels": (
        lambda: {"train_dataset": [{"x": row["x"]} for row in rows(8)]},
        r"returned no loss for the inputs x: .* The data has no labels: forward takes them as labels\. Name the column",
    ),
    "a forward without labels": (
        lambda: {"model": net(kind=Unlabelled), "train_dataset": [{"x": row["x"]} for row in rows(8)]},
        r"The forward of Unlabelled takes no labels, so that it cannot compute a loss; let it take labels",
    ),
    "labels that forward does not use": (
        lambda: {"model": net(kind=Lossless)},
        r"for the inputs x, labels: it returned the keys logits\. Let forward return",
    ),
    "a misspelt column": (
        lambda: {"train_dataset": [{"xx": row["x"], "labels": row["labels"]} for row in rows(8)]},
        r"The batch lacks x \(did you mean xx\?\), which the forward of Net needs: it has labels\. The data's column "
        r"xx is not among them, because forward takes no such argument\. Rename the column of the data to x",
    ),
    "a column of another name": (
        lambda: {"train_dataset": [{"pixels": row["x"], "labels": row["labels"]} for row in rows(8)]},
        r"The batch lacks x, which the forward of Net needs: it has labels\. The data's column pixels is not among",
    ),
    "a column that forward does not take": (
        lambda: {"data_collator": lambda rows: default_data_collator([{**row, "mask": 1} for row in rows])},
        r"The batch has mask, which the forward of Net does not take: its parameters are x and labels\. Rename the",
    ),
    "ragged tensors": (
        lambda: {"train_dataset": [{"x": torch.zeros(3 + (row == 1)), "labels": torch.zeros(1)} for row in range(4)]},
        r"default_data_collator cannot stack the column 'x': row 0 of the batch has the shape \(3,\), and row 1 has "
        r"the shape \(4,\)\. Bring the rows to the same length before training, or pass a data_collator that pads them",
    ),
    "ragged lists": (
        lambda: {"train_dataset": [{"x": [0.0] * (4 - (row == 2)), "labels": [0.0]} for row in range(4)]},
        r"cannot stack the column 'x': row 0 of the batch has 4 entries, and row 2 has 3 entries\.",
    ),
    "rows that lack a column": (
        lambda: {"train_dataset": [{"x": [0.0] * 4, **({"labels": [0.0]} if row < 3 else {})} for row in range(4)]},
        r"cannot stack the column 'labels': row 0 of the batch has it, and row 3 does not\.",
    ),
    "values that are not numbers": (
        lambda: {"train_dataset": [{"x": {1, 2}, "labels": [0.0]} for row in range(4)]},
        r"cannot stack the column 'x': .* \(row 0 of the batch has a value of type set\)\. Convert it to numbers",
    ),
    "ragged rows in worker processes": (
        lambda: {
            "train_dataset": [{"x": torch.zeros(3 + (row == 1)), "labels": torch.zeros(1)} for row in range(4)],
            "workers": 1,
        },
        r"cannot stack the column 'x': row 0 of the batch has the shape \(3,\), and row 1 has the shape \(4,\)",
    ),
}


@pytest.mark.parametrize("name", FIRST_BATCHES)
def test_problems_in_the_data_are_reported_on_the_first_batch(tmp_path: Path, name: str) -> None:
    """DataError is raised before the first update, with the actual and the expected value."""
    make, words = FIRST_BATCHES[name]
    parts = make()
    # The rows of each batch are those of the data in their order, so that messages count as the test does.
    given = {"train_sampling_strategy": "sequential", "dataloader_num_workers": parts.pop("workers", 0)}
    trainer = small_trainer(tmp_path, parts=parts, **given)
    before, steps = weights(trainer), list[int]()
    with pytest.raises(DataError, match=words):
        train_and_count(trainer, steps)

    assert not steps
    assert same_weights(weights(trainer), before)


@pytest.mark.parametrize("name", LABELS_ALONE)
def test_labels_without_inputs_are_refused(tmp_path: Path, name: str) -> None:
    """Training and evaluation name the columns, what forward takes and the missing step."""
    data, words = LABELS_ALONE[name]
    with pytest.raises(InputsError, match=words):
        small_trainer(tmp_path, parts={"model": net(kind=Decorated), "train_dataset": data}).train()
    trainer = small_trainer(tmp_path, parts={"model": net(kind=Decorated)}, eval_strategy="no")
    with pytest.raises(InputsError, match=words):
        trainer.evaluate(data)
    assert trainer.evaluate(rows(8))["eval_loss"] > 0


def test_names_are_checked_in_evaluations(tmp_path: Path) -> None:
    """The first batch of an evaluation or a prediction is checked as that of a run is."""
    trainer = small_trainer(tmp_path)
    with pytest.raises(
        InputsError, match=r"The batch lacks x, which the forward of Net needs: it has labels\. The data's"
    ):
        trainer.predict([{"pixels": row["x"], "labels": row["labels"]} for row in rows(8)])
    assert len(trainer.predict([{"x": row["x"]} for row in rows(8)]).predictions) == 8


class Padded:
    """A tokenizer that pads `input_ids` only, and stacks all columns, as transformers' tokenizers do."""

    model_input_names = ("input_ids",)

    def pad(self, features: list[dict[str, Any]], **_options: Any) -> dict[str, Tensor]:
        longest = max(len(row["input_ids"]) for row in features)
        rows = [{**row, "input_ids": row["input_ids"] + [0] * (longest - len(row["input_ids"]))} for row in features]
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def test_a_column_that_the_tokenizer_does_not_pad_is_named() -> None:
    """The error of the padding collator names the column, two rows, and what is padded."""
    collate = DataCollatorWithPadding(Padded())
    assert collate([{"input_ids": [1, 2]}, {"input_ids": [3]}])["input_ids"].tolist() == [[1, 2], [3, 0]]
    with pytest.raises(DataError) as raised:
        collate([{"input_ids": [1, 2], "tags": [1, 2]}, {"input_ids": [3], "tags": [3]}])
    assert str(raised.value).startswith(
        "DataCollatorWithPadding cannot stack the column 'tags': it has 2 entries in row 0 of the batch, and 1 "
        "entries in row 1, and Padded pads only input_ids. Leave the column out, or pass a data_collator that pads it"
    )
    with pytest.raises(DataError, match="the column 'text': it contains texts, and Padded pads only input_ids"):
        collate([{"input_ids": [1], "text": "a"}, {"input_ids": [3], "text": "b"}])


def test_inputs_that_the_user_completes_are_accepted(tmp_path: Path) -> None:
    """An overridden `_prepare_inputs` or `_prepare_input`, a hook or a decorator may add what forward needs."""

    class Completes(Trainer):
        def _prepare_inputs(self, inputs: Any) -> Any:
            return {"x": inputs["xx"], "labels": inputs["labels"]}

    data = [{"xx": row["x"], "labels": row["labels"]} for row in rows(4)]
    given: dict[str, Any] = {"remove_unused_columns": False}
    assert small_trainer(tmp_path, Completes, parts={"train_dataset": data}, **given).train().global_step == 1

    class CompletesEntries(Trainer):
        def _prepare_input(self, data: Any) -> Any:
            return {"x": data["xx"], "labels": data["labels"]} if isinstance(data, dict) else data

    assert small_trainer(tmp_path, CompletesEntries, parts={"train_dataset": data}, **given).train().global_step == 1

    model = net()
    model.register_forward_pre_hook(
        lambda _model, args, named: (args, {"x": named["xx"], "labels": named["labels"]}), with_kwargs=True
    )
    assert small_trainer(tmp_path, parts={"train_dataset": data, "model": model}, **given).train().global_step == 1

    class Decorated(Net):
        @completed
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            return super().forward(x, labels)

    parts = {"train_dataset": data, "model": net(kind=Decorated)}
    assert small_trainer(tmp_path, parts=parts, **given).train().global_step == 1


def completed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def with_x(self: Any, **named: Any) -> Any:
        return forward(self, x=named.get("xx", named.get("x")), labels=named["labels"])

    return with_x


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
    """The error names the folder, and lists the checkpoints that exist there and in the output folder."""
    missing = str(tmp_path / "checkpoint-9")
    with pytest.raises(CheckpointError) as raised:
        small_trainer(tmp_path).train(resume_from_checkpoint=missing)
    assert str(raised.value) == (
        f"The checkpoint resume_from_checkpoint={missing!r} does not exist. {tmp_path} has no checkpoints; train from "
        "the start."
    )
    small_trainer(tmp_path, save_strategy="epoch").train()
    with pytest.raises(CheckpointError) as raised:
        small_trainer(tmp_path).train(resume_from_checkpoint=missing)
    assert str(raised.value) == (
        f"The checkpoint resume_from_checkpoint={missing!r} does not exist. Name one that does: {tmp_path} has "
        "checkpoint-4."
    )
    with pytest.raises(CheckpointError, match=rf"Name one that does: {tmp_path} has checkpoint-4\.$"):
        small_trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "nowhere" / "checkpoint-4"))
    with pytest.raises(CheckpointError, match=rf"Name one that does: {tmp_path} has checkpoint-4\.$"):
        small_trainer(tmp_path / "new").train(resume_from_checkpoint=missing)


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
