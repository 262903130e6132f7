"""What transformers does with a warning is done with a warning in a takeover, through the loggers of transformers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import Dataset

import hexloop
from hexloop.app.notices import CALLBACKS, HEXLOOPS, OWN, TOPICS, TRAINER, TRANSFORMERS, notices_in_force
from hexloop.domain.errors import CheckpointError, ConfigurationError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import DEFAULTS, small_trainer

pytestmark = pytest.mark.filterwarnings("ignore:These modules imported classes of transformers")

LIBRARIES = ("transformers", "takeover")


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The records of the loggers of transformers, which do not propagate otherwise."""
    logger = logging.getLogger("transformers")
    before = logger.propagate
    logger.propagate = True
    yield caplog
    logger.propagate = before


def warned(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return logger and message of each warning so far, and forget them."""
    found = [(each.name, each.getMessage()) for each in log.records if each.levelno == logging.WARNING]
    log.clear()
    return found


class Reading(Dataset[Any]):
    """Samples that note which of them are read."""

    def __init__(self, size: int) -> None:
        self.samples, self.read = rows(size), list[int]()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.samples[index]


def trainer_of(library: str, folder: Path, data: Any, **given: Any) -> Any:
    """Return a Trainer of a library: of hexloop's classes, created in a takeover or not, or of transformers'."""
    common = {**DEFAULTS, "train_sampling_strategy": "sequential", "num_train_epochs": 3, **given}
    kinds = transformers if library == "transformers" else hexloop
    arguments = kinds.TrainingArguments(str(folder), **common)
    if library != "takeover":
        return kinds.Trainer(net(), arguments, train_dataset=data)
    with hexloop.takeover():
        return kinds.Trainer(net(), arguments, train_dataset=data)


OTHER_SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "larger batches": ({"per_device_train_batch_size": 8}, 32),
    "smaller batches": ({"per_device_train_batch_size": 2}, 32),
    "more accumulation": ({"gradient_accumulation_steps": 4}, 32),
    "both": ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}, 32),
    "less data": ({}, 20),
    "more data": ({}, 50),
    "less data in larger batches": ({"per_device_train_batch_size": 8}, 21),
    "data from the start of the epoch": ({"per_device_train_batch_size": 8, "ignore_data_skip": True}, 32),
}
SAVED: dict[str, Any] = {"save_strategy": "steps", "save_steps": 5, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[] if "both" in each else pytest.mark.matrix) for each in OTHER_SETTINGS]
)
def test_a_run_resumes_where_transformers_does(case: str, records: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """With other batches, accumulation or data: the samples, steps, epochs and rates of transformers, and a warning.

    In transformers, the first step has the rate of the checkpoint's run. Without a takeover the checkpoint is refused,
    and the error names the way out.
    """
    changed, size = OTHER_SETTINGS[case]
    results = {}
    for library in LIBRARIES:
        trainer_of(library, tmp_path / library, rows(32), **SAVED).train()
        given = {**SAVED, "logging_steps": 1, **changed}
        trainer = trainer_of(library, tmp_path / library, rows(size), **given)
        records.clear()
        trainer.train(resume_from_checkpoint=str(tmp_path / library / "checkpoint-5"))
        logged = [each for each in trainer.state.log_history[:-1] if each["step"] > 5]
        rates = {each["step"]: each["learning_rate"] for each in logged[1:]}
        epochs = {f"epoch at {each['step']}": each["epoch"] for each in logged}
        results[library] = {**rates, **epochs, "end": trainer.state.global_step, "loss": logged[0]["loss"]}
        if library == "takeover":
            ((name, message),) = [each for each in warned(records) if "The run resumes at step 5" in each[1]]
            assert name == TRAINER
            assert "resume_despite=" in message
    assert results["takeover"] == pytest.approx(results["transformers"], rel=1e-5)
    assert results["takeover"]["end"] > 5

    refused = trainer_of("hexloop", tmp_path / "takeover", rows(size), **given)
    with pytest.raises(CheckpointError, match="resume_despite"):
        refused.train(resume_from_checkpoint=str(tmp_path / "takeover" / "checkpoint-5"))


def test_an_accepted_difference_continues_at_the_same_sample(records: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """`resume_despite` means the same in a takeover as without."""
    given = {**SAVED, "save_steps": 2, "max_steps": 2}
    trainer_of("takeover", tmp_path, rows(32), **given).train()
    data = Reading(32)
    given |= {"per_device_train_batch_size": 8, "max_steps": 3, "resume_despite": ["batch_size"]}
    trainer = trainer_of("takeover", tmp_path, data, **given)
    records.clear()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert data.read[0] == 16
    assert not [message for _, message in warned(records) if "resumes at step" in message]


def test_other_intervals_are_listed(records: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Each argument in a line of its own, as transformers lists them."""
    lines = {}
    for library in LIBRARIES:
        given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 3}
        trainer_of(library, tmp_path / library, rows(16), **given).train()
        records.clear()
        given |= {"save_steps": 4, "logging_steps": 1, "num_train_epochs": 4}
        trainer_of(library, tmp_path / library, rows(16), **given).train(
            resume_from_checkpoint=str(tmp_path / library / "checkpoint-2")
        )
        listed = [line.strip() for _, text in warned(records) for line in text.splitlines() if "(from args)" in line]
        lines[library] = sorted(listed)
    assert lines["takeover"] == lines["transformers"]
    assert len(lines["takeover"]) == 2


class Stateful(hexloop.TrainerCallback, hexloop.ExportableState):
    """A callback that a checkpoint contains."""

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {}}


def test_a_stateful_callback_that_is_missing(records: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """It is named, and the run continues."""
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    first = trainer_of("takeover", tmp_path, rows(16), **given)
    first.add_callback(Stateful)
    first.train()
    records.clear()
    trainer_of("takeover", tmp_path, rows(16), **given).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    found = [(name, "Stateful" in text) for name, text in warned(records) if name != OWN]
    assert found == [(TRAINER, True)]


def test_callbacks(records: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """One that is there already, and a handler without the default flow; with the list of callbacks."""
    trainer = trainer_of("takeover", tmp_path, rows(8))
    trainer.add_callback(hexloop.ProgressCallback)
    trainer.add_callback(hexloop.ProgressCallback)
    with hexloop.takeover():
        hexloop.CallbackHandler([hexloop.PrinterCallback()])
    found = warned(records)

    assert {name for name, _ in found} == {CALLBACKS}
    assert [text.splitlines()[-1] for _, text in found] == ["ProgressCallback", "PrinterCallback"]
    with pytest.warns(UserWarning, match="already contain a PrinterCallback"):
        hexloop.CallbackHandler([hexloop.DefaultFlowCallback, hexloop.PrinterCallback, hexloop.PrinterCallback])


def test_early_stopping(records: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Without the best model, and without its metric."""
    given: dict[str, Any] = {"eval_strategy": "epoch", "metric_for_best_model": "loss", "num_train_epochs": 1}
    with hexloop.takeover():
        stopping = hexloop.EarlyStoppingCallback()
        parts = {"eval_dataset": rows(4), "callbacks": [stopping]}
        trainer = small_trainer(tmp_path, parts=parts, **given)
        trainer.train()
        trainer.args.metric_for_best_model = "accuracy"
        stopping.on_evaluate(trainer.args, trainer.state, trainer.control, {"eval_loss": 1.0})

    assert [name for name, _ in warned(records)] == [CALLBACKS, CALLBACKS]


class Once(torch.utils.data.IterableDataset[Any]):
    """A stream that can be read once."""

    def __init__(self) -> None:
        self.left = iter(rows(8))

    def __iter__(self) -> Iterator[Any]:
        return self.left


def test_data_that_have_ended(records: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The run stops."""
    trainer = trainer_of("takeover", tmp_path, Once(), max_steps=5)
    records.clear()
    trainer.train()

    assert trainer.state.global_step == 2
    assert [(name, "no batches" in text) for name, text in warned(records)] == [(TRAINER, True)]


def test_steps_of_another_size_on_other_processes(tmp_path: Path) -> None:
    """Where accumulation cannot keep the size of a step, a run is refused outside a takeover only."""
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 3}
    trainer_of("takeover", tmp_path, rows(12), **given).train()
    for library, refused in (("takeover", False), ("hexloop", True)):
        trainer = trainer_of(library, tmp_path, rows(12), **given)
        assert trainer._collect_parts().notices.refuses("batch_size") is refused


def test_what_is_in_force() -> None:
    """Nested takeovers, and what each topic refuses: exactly the names that `resume_despite` accepts."""
    assert notices_in_force() is HEXLOOPS
    with hexloop.takeover(), hexloop.takeover(reproduce="transformers"):
        assert notices_in_force() is TRANSFORMERS
    assert notices_in_force() is HEXLOOPS
    refused = [name for name in TOPICS if HEXLOOPS.refuses(name)]
    assert not any(map(TRANSFORMERS.refuses, TOPICS))
    assert hexloop.TrainingArguments("out", use_cpu=True, resume_despite=refused).resume_despite == refused
    with pytest.raises(ConfigurationError):
        hexloop.TrainingArguments("out", use_cpu=True, resume_despite=["intervals"])
