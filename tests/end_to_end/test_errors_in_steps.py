"""An error in a step keeps its type, message and traceback, and gets one note: which batch, which rows, what to try."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

from hexloop import HexloopError, Trainer
from hexloop.domain.errors import DataError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import small_trainer

WORST = 6
"""The sample in which the planted error is."""


class Classifier(nn.Module):
    """A classifier of two classes, whose input `x` holds the sample's number first."""

    def __init__(self, breaks: Any = None) -> None:
        super().__init__()
        self.linear, self.embedding, self.breaks = nn.Linear(3, 2), nn.Embedding(20, 3), breaks

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.breaks is not None and bool((x[:, 0] == WORST).any()):
            self.breaks(self, x)
        logits = self.linear(self.embedding(x))
        return {"loss": nn.functional.cross_entropy(logits.sum(1), labels), "logits": logits}


def samples(label: Any = 1) -> list[dict[str, Any]]:
    return [{"x": torch.tensor([n, 1, 2]), "labels": label if n == WORST else n % 2} for n in range(16)]


def note_of(trainer: Any, kind: type[Exception], message: str) -> str:
    with pytest.raises(kind, match=message) as raised:
        trainer.train()
    assert len(raised.value.__notes__) == 1
    assert type(raised.value) is kind
    assert raised.value.__cause__ is None
    (note,) = raised.value.__notes__
    assert "\n" not in note
    return str(note)


def out_of_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


ERRORS: dict[str, tuple[Any, Any, type[Exception], str, str]] = {
    "label out of range": (None, 7, IndexError, "Target 7 is out of bounds", "compare the largest label"),
    "token out of range": (lambda m, x: m.embedding(x + 100), 1, IndexError, "index out of range", "vocabulary"),
    "type": (lambda m, x: m.linear(x), 1, RuntimeError, "dtype", "labels of classes are torch.int64"),
    "shape": (lambda m, x: m.linear(torch.ones(2, 5)), 1, RuntimeError, "shapes cannot be mult", "Shapes do not fit"),
    "own": (lambda m, x: 1 / 0, 1, ZeroDivisionError, "division", "in the order of epoch 0."),
    "memory": (out_of_memory, 1, torch.OutOfMemoryError, "Tried to allocate", "per_device_train_batch_size=1"),
}


@pytest.mark.parametrize("case", ERRORS)
@pytest.mark.parametrize(("strategy", "accumulation"), [("sequential", 1), ("random", 2)])
def test_the_note_names_the_batch_and_its_rows(case: str, strategy: str, accumulation: int, tmp_path: Path) -> None:
    """The rows named are those of the batch with the planted error, whatever their order; the advice is about it."""
    breaks, label, kind, message, advice = ERRORS[case]
    trainer = small_trainer(
        tmp_path,
        parts={"model": Classifier(breaks), "train_dataset": samples(label)},
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulation,
        train_sampling_strategy=strategy,
    )
    note = note_of(trainer, kind, message)
    order = trainer.get_train_dataloader().order.indices_at(0, 0, 16)
    batch = order.index(WORST) // 2
    first, second = order[2 * batch : 2 * batch + 2]
    steps = 8 // accumulation
    assert f"In optimizer step {batch // accumulation + 1} of {steps}" in note
    if accumulation > 1:
        assert f"in micro-batch {batch % 2 + 1} of 2" in note
    assert "(x [2, 3] int64, labels [2] int64)" in note
    assert f"rows {first} and {second} of train_dataset, positions {2 * batch} to {2 * batch + 1} in the order" in note
    assert advice in note


def test_the_traceback_leads_to_the_user_s_line(tmp_path: Path) -> None:
    """It is printed as without hexloop, with the note after it."""
    trainer = small_trainer(tmp_path, parts={"model": Classifier(out_of_memory), "train_dataset": samples()})
    with pytest.raises(torch.OutOfMemoryError) as raised:
        trainer.train()
    printed = traceback.format_exception(raised.value)
    assert "in out_of_memory" in "".join(printed)
    assert printed[-2].startswith("torch.OutOfMemoryError: CUDA out of memory")
    assert re.match(r"In optimizer step \d of 4 \(x", printed[-1])


def test_memory_advice_names_what_is_not_set_yet(tmp_path: Path) -> None:
    """With values that train the same; it refers to the documentation."""
    trainer = small_trainer(
        tmp_path,
        parts={"model": Classifier(out_of_memory), "train_dataset": samples()},
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
    )
    note = note_of(trainer, torch.OutOfMemoryError, "CUDA")
    assert "per_device_train_batch_size=4 (now 8) and gradient_accumulation_steps=4" in note
    assert "set gradient_checkpointing=True" in note
    assert "auto_find_batch_size=True" in note
    assert note.endswith("see docs/troubleshooting.md#out-of-memory.")


def test_a_resumed_run_names_the_same_rows(tmp_path: Path) -> None:
    """Positions are those of the epoch, not of the process."""
    given: dict[str, Any] = {"per_device_train_batch_size": 2, "seed": 3}
    whole = small_trainer(
        tmp_path / "whole", parts={"model": Classifier(out_of_memory), "train_dataset": samples()}, **given
    )
    expected = note_of(whole, torch.OutOfMemoryError, "CUDA")
    step = int(re.search(r"step (\d+)", expected)[1])  # type: ignore[index]
    saving = {**given, "save_strategy": "steps", "save_steps": max(1, step - 1), "max_steps": 8}
    first = small_trainer(
        tmp_path / "cut", parts={"model": Classifier(out_of_memory), "train_dataset": samples()}, **saving
    )
    with pytest.raises(torch.OutOfMemoryError):
        first.train()
    again = small_trainer(
        tmp_path / "cut", parts={"model": Classifier(out_of_memory), "train_dataset": samples()}, **saving
    )
    with pytest.raises(torch.OutOfMemoryError) as raised:
        again.train(resume_from_checkpoint=step > 1)
    assert raised.value.__notes__ == [expected]


class FailingUpdate(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory in the optimizer")


def test_an_error_in_the_update_names_all_rows(tmp_path: Path) -> None:
    """Those of all micro-batches of the step."""
    model = Classifier()
    optimizers = FailingUpdate(model.parameters(), 0.1), None
    parts = {"model": model, "optimizers": optimizers, "train_dataset": samples()}
    trainer = small_trainer(tmp_path, parts=parts, gradient_accumulation_steps=2, train_sampling_strategy="sequential")
    note = note_of(trainer, torch.OutOfMemoryError, "in the optimizer")
    assert note.startswith("In optimizer step 1 of 2, in the update of the weights: rows 0, 1, 2, 3, 4, 5, 6 and 7 of")


def test_data_without_rows_names_the_position(tmp_path: Path) -> None:
    """A stream has no rows."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(samples())

    parts = {"model": Classifier(out_of_memory), "train_dataset": Stream()}
    note = note_of(small_trainer(tmp_path, parts=parts, max_steps=3), torch.OutOfMemoryError, "CUDA")
    assert "positions 4 to 7 in the order of epoch 0" in note
    assert "rows" not in note


def test_hexloop_s_own_errors_have_no_note(tmp_path: Path) -> None:
    """They say themselves what is wrong and what to do."""

    class Mine(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return model(**inputs)["loss"].detach()

    with pytest.raises(DataError) as raised:
        small_trainer(tmp_path, kind=Mine, parts={"model": net(), "train_dataset": rows(16)}).train()
    assert isinstance(raised.value, HexloopError)
    assert not hasattr(raised.value, "__notes__")


@pytest.mark.parametrize("how", ["evaluate", "predict", "in a run"])
def test_an_error_in_an_evaluation_names_its_batch(how: str, tmp_path: Path) -> None:
    """Its number and shapes, and what makes an evaluation need less memory."""
    trainer = small_trainer(
        tmp_path,
        parts={"model": Classifier(), "train_dataset": samples(), "eval_dataset": samples()},
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=2,
        max_steps=2,
    )

    def breaks(model: Classifier, _: Any) -> None:
        if not model.training:
            out_of_memory()

    trainer.model.breaks = breaks
    with pytest.raises(torch.OutOfMemoryError) as raised:
        {"evaluate": trainer.evaluate, "predict": lambda: trainer.predict(samples()), "in a run": trainer.train}[how]()
    (note,) = raised.value.__notes__
    assert note.startswith("In batch 2 of an evaluation (x [4, 3] int64, labels [4] int64). cpu ran out of memory: ")
    assert "set per_device_eval_batch_size=2 (now 4)" in note
    assert "bf16_full_eval=True" in note
    assert note.endswith("see docs/troubleshooting.md#out-of-memory.")


def test_an_evaluation_of_labels_out_of_range_has_advice(tmp_path: Path) -> None:
    """The same as in a step."""
    trainer = small_trainer(tmp_path, parts={"model": Classifier(), "eval_dataset": samples(7)})
    with pytest.raises(IndexError) as raised:
        trainer.evaluate()
    (note,) = raised.value.__notes__
    assert "compare the largest label" in note


def test_hexloop_s_own_errors_in_an_evaluation_have_no_note(tmp_path: Path) -> None:
    """They say themselves what to do."""
    trainer = small_trainer(tmp_path, parts={"eval_dataset": rows(4), "data_collator": lambda _: {}})
    with pytest.raises(DataError) as raised:
        trainer.evaluate()
    assert not hasattr(raised.value, "__notes__")


class Broken:
    """Data with a sample that cannot be read."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == WORST:
            raise KeyError("no such file")
        return samples()[index]


def longer() -> list[dict[str, Any]]:
    """Samples, one of which is longer than the others."""
    given = samples()
    given[WORST]["x"] = torch.ones(5, dtype=torch.int64)
    return given


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("data", "kind", "message", "advice"),
    [
        (Broken(), KeyError, "no such file", "see docs/troubleshooting.md#error-in-a-step"),
        (
            longer(),
            RuntimeError,
            "equal size|not resizable",
            "Samples of a batch differ in size: pass a data_collator that pads",
        ),
    ],
    ids=["a sample that cannot be read", "samples of two sizes"],
)
def test_an_error_in_reading_names_the_rows(
    data: Any, kind: type[Exception], message: str, advice: str, workers: int, tmp_path: Path
) -> None:
    """Those of the step that it was read for; also if a process of the loader read them."""
    trainer = small_trainer(
        tmp_path,
        parts={"model": Classifier(), "train_dataset": data, "data_collator": default_collate},
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        train_sampling_strategy="sequential",
        dataloader_num_workers=workers,
    )
    note = note_of(trainer, kind, message)
    assert note.startswith(
        "In optimizer step 2 of 4, while its batches were read: among rows 4, 5, 6 and 7 of train_data"
    )
    assert "from position 4 on in the order of epoch 0." in note
    assert advice.lower() in note.lower()
