"""A program that changes its working folder: the paths of a Trainer lead where they led when it was made."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hexloop import Trainer, TrainerCallback, TrainingArguments
from hexloop.adapters.journal import JsonLinesJournal
from hexloop.adapters.logger.json_lines import JsonLines
from hexloop.app.assembly.storage import WorkingFolder
from hexloop.domain.errors import CheckpointError
from hexloop.domain.run_folder import JOURNAL, LOG
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import DEFAULTS, same_weights, small_trainer, weights


class Wanders(TrainerCallback):
    """Goes to another new folder at each of these events."""

    def __init__(self, elsewhere: Path) -> None:
        self.elsewhere, self.moves = elsewhere, 0

    def move(self, *_values: Any, **_named: Any) -> None:
        self.moves += 1
        folder = self.elsewhere / str(self.moves)
        folder.mkdir(parents=True)
        os.chdir(folder)

    on_init_end = on_train_begin = on_step_end = on_evaluate = on_save = on_train_end = move


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder in which a program starts; the test ends where it began."""
    before, folder = os.getcwd(), tmp_path / "start"
    folder.mkdir()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def files_below(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if not each.is_dir()}


def trainer_in(output_dir: str, *callbacks: TrainerCallback, **given: Any) -> Any:
    chosen = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    arguments = TrainingArguments(output_dir, **{**DEFAULTS, **chosen, **given})
    return Trainer(net(), arguments, train_dataset=rows(32), eval_dataset=rows(8), callbacks=list(callbacks))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("workers", [0, 2])
def test_all_files_of_a_run_are_in_one_folder(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Checkpoints, logs, journal, trackers, results, card and predictions, whatever the program does in between."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "boards")
    elsewhere, wanders = tmp_path / "elsewhere", Wanders(tmp_path / "elsewhere")
    given = {
        "load_best_model_at_end": True,
        "report_to": ["json_lines", "tensorboard"],
        "predictions_folder": "predictions",
        "dataloader_num_workers": workers,
        "stop_file": "stop",
        "journal": "steps",
    }
    trainer = trainer_in("out", wanders, **given)
    output = trainer.train()
    trainer.save_model()
    trainer.save_model(trainer.args.output_dir)
    trainer.save_model(os.path.join(trainer.args.output_dir, "named"))
    trainer.save_state()
    trainer.save_metrics("train", output.metrics)
    trainer.create_model_card()
    trainer.evaluate()
    assert wanders.moves > 6
    assert files_below(elsewhere) == set()
    assert {each.name for each in start.iterdir()} == {"out", "boards", "predictions"}
    own = files_below(start / "out")
    expected = {JOURNAL, LOG, "model.safetensors", "named/model.safetensors", "trainer_state.json", "README.md"}
    assert {*expected, "train_results.json", "checkpoint-4/manifest.json"} <= own
    assert trainer.args.output_dir == "out"  # what the user wrote


def test_what_a_state_names_is_found(start: Path, tmp_path: Path) -> None:
    """`best_model_checkpoint` is spelled as in transformers where that leads there, and else absolute."""
    trainer = trainer_in("out", load_best_model_at_end=True)
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best == os.path.join("out", os.path.basename(best))
    os.chdir(tmp_path)
    assert trainer.state.best_model_checkpoint == str(start / best)
    trainer._load_best_model()
    trainer.save_state()
    saved = json.loads((start / "out" / "trainer_state.json").read_text())
    assert Path(saved["best_model_checkpoint"]).is_dir()
    assert trainer._sorted_checkpoints() == [str(start / "out" / name) for name in ("checkpoint-2", "checkpoint-4")]


@pytest.mark.parametrize("resumed", [True, "out/checkpoint-2", "./out/checkpoint-2"])
def test_a_run_resumes_from_its_folder(start: Path, tmp_path: Path, resumed: str | bool) -> None:
    """Also where its path is passed as the user wrote `output_dir`, before and after the folder was changed."""
    trainer_in("out").train()
    output_dir = "./out" if str(resumed).startswith(".") else "out"
    straight = trainer_in(output_dir, max_steps=8)
    straight.train(resume_from_checkpoint=resumed)
    (start / "out").rename(start / "kept")
    trainer_in("out").train()
    wandering = trainer_in(output_dir, Wanders(tmp_path / "elsewhere"), max_steps=8)
    wandering.train(resume_from_checkpoint=resumed)
    assert same_weights(weights(straight), weights(wandering))
    assert (start / "out" / "checkpoint-8").is_dir()
    assert files_below(tmp_path / "elsewhere") == set()


def test_a_path_is_resolved_when_a_method_receives_it(start: Path, tmp_path: Path) -> None:
    """A stream begins with its first `next`; a path outside the output folder starts at the present folder."""
    trainer_in("first").train()
    trainer = trainer_in("out", max_steps=6)
    events = trainer.stream("first/checkpoint-2")
    os.chdir(tmp_path)
    for _ in events:
        pass
    assert (start / "out" / "checkpoint-6").is_dir()
    trainer.save_model("mine")
    assert (tmp_path / "mine" / "model.safetensors").is_file()
    with pytest.raises(CheckpointError):
        trainer.train(resume_from_checkpoint="first/checkpoint-2")


def test_overridden_methods_receive_paths_that_lead_there(start: Path, tmp_path: Path) -> None:
    """As the user wrote them, and absolute once the program is elsewhere."""
    received: list[str] = []

    class Mine(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            received.append(str(output_dir))

    trainer: Any = Mine(net(), TrainingArguments("out", **DEFAULTS), train_dataset=rows(8))
    trainer.save_model()
    os.chdir(tmp_path)
    trainer.save_model()
    assert received == ["out", str(start / "out")]
    assert trainer._get_output_dir() == str(start / "out")


def test_a_stop_file_is_where_the_trainer_was_made(start: Path, tmp_path: Path) -> None:
    """A relative one stops a run whose program has gone elsewhere."""

    class Touches(Wanders):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                (start / "stop").touch()
                time.sleep(1.1)  # it is looked at once a second

    trainer = trainer_in("out", Touches(tmp_path / "elsewhere"), stop_file="stop", max_steps=8)
    trainer.train()
    assert trainer.outcome.stopped
    assert trainer.state.global_step < 8


def test_loggers_and_journals_keep_the_folder_in_which_they_were_made(start: Path, tmp_path: Path) -> None:
    """The paths of objects that the user makes are resolved by their constructors."""
    logger, journal = JsonLines("mine.jsonl"), JsonLinesJournal("journal.jsonl")
    trainer = small_trainer(Path("out"), parts={"loggers": [logger], "journal": journal})
    os.chdir(tmp_path)
    trainer.train()
    assert {each.name for each in start.iterdir()} == {"out", "mine.jsonl", "journal.jsonl"}
    assert {each.name for each in tmp_path.iterdir()} == {"start"}


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("out", "start/out"),
        ("out/", "start/out/"),
        ("out/a", "start/out/a"),
        ("outer/a", "here/outer/a"),
        ("a/out", "here/a/out"),
        ("s3://bucket/out", "s3://bucket/out"),
    ],
)
def test_only_what_begins_with_output_dir_means_it(tmp_path: Path, path: str, leads_to: str) -> None:
    """Every other relative path starts at the present working folder."""
    started_in, before = WorkingFolder(str(tmp_path / "start")), os.getcwd()
    (tmp_path / "here").mkdir()
    os.chdir(tmp_path / "here")
    try:
        found = started_in.receive(path, "out")
        absolute = found if "://" in found else os.path.abspath(found)
    finally:
        os.chdir(before)
    assert absolute == leads_to if "://" in leads_to else absolute == str(tmp_path / leads_to.rstrip("/"))
