"""Metrics of scripts, on the console and in files, match transformers'."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.trainer_pt_utils import metrics_format

import hexloop
from hexloop.adapters.collectives import SingleProcessCollectives
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import DEFAULTS, small_trainer

TRAINED = {
    "train_runtime": 4021.4567,
    "train_loss": 0.123456789,
    "train_samples": 7000,
    "total_flos": 3.7e12,
    "epoch": 3.0,
    "train_mem_cpu_alloc_delta": 123456789,
    "init_mem_gpu_peaked_delta": 0,
}
EVALUATED = {"eval_loss": 2.5, "eval_runtime": 0.999, "eval_accuracy": 1, "epoch": 3.0}


def reference_trainer(folder: Path) -> Any:
    arguments = transformers.TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none")
    return transformers.Trainer(model=net(), args=arguments)


def results_of(trainer: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, bytes]]:
    """Return what the methods print, and the files that they write."""
    capsys.readouterr()
    trainer.log_metrics("train", TRAINED)
    trainer.save_metrics("train", TRAINED)
    trainer.log_metrics("eval", EVALUATED)
    trainer.save_metrics("eval", EVALUATED)
    trainer.save_metrics("test", {"test_loss": 7.0}, combined=False)
    return capsys.readouterr().out, {path.name: path.read_bytes() for path in folder.glob("*_results.json")}


def test_metrics_are_printed_and_saved_as_in_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Console output, file names and file contents equal transformers'."""
    ours = results_of(small_trainer(tmp_path / "ours"), tmp_path / "ours", capsys)
    theirs = results_of(reference_trainer(tmp_path / "theirs"), tmp_path / "theirs", capsys)
    assert ours == theirs
    text, files = ours
    assert "  train_runtime             = 1:07:01.45\n" in text
    assert files.keys() == {"train_results.json", "eval_results.json", "test_results.json", "all_results.json"}
    assert json.loads(files["all_results.json"]) == {**TRAINED, **EVALUATED}


def test_metrics_that_are_lists_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A metric for each class, which transformers' method cannot print, is printed like any other."""
    small_trainer(tmp_path).log_metrics("eval", {"eval_per_class": [0.5, 0.25], "eval_loss": 1.0})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  eval_loss      =         1.0",
        "  eval_per_class = [0.5, 0.25]",
    ]


NUMBERS = st.integers(-(10**15), 10**15) | st.floats(-1e9, 1e9)


@given(
    st.fixed_dictionaries(
        {
            "eval_loss": NUMBERS,
            "steps": NUMBERS,
            "total_flos": NUMBERS,
            "eval_runtime": st.integers(0, 10**9) | st.floats(0, 1e9),
            "train_mem_cpu_alloc_delta": st.integers(),
        }
    )
)
def test_formatted_metrics_match_transformers(metrics: dict[str, Any]) -> None:
    """Numbers are formatted as in transformers."""
    assert hexloop.Trainer.metrics_format(metrics) == metrics_format(metrics)


def test_a_second_run_of_a_script_keeps_earlier_metrics(tmp_path: Path) -> None:
    """all_results.json is updated with new metrics and keeps others; no temporary file remains."""
    small_trainer(tmp_path).save_metrics("train", {"train_loss": 1.0, "epoch": 1.0})
    small_trainer(tmp_path).save_metrics("eval", {"eval_loss": 2.0, "epoch": 2.0})
    together = json.loads((tmp_path / "all_results.json").read_text())
    assert together == {"train_loss": 1.0, "eval_loss": 2.0, "epoch": 2.0}
    assert {path.name for path in tmp_path.iterdir()} == {
        "all_results.json",
        "train_results.json",
        "eval_results.json",
    }


def test_metrics_are_saved_below_a_url(tmp_path: Path) -> None:
    """If the output folder is a URL, the files are written and updated there."""
    arguments = hexloop.TrainingArguments(output_dir="memory://results-of-a-script", **DEFAULTS)
    trainer = hexloop.Trainer(net(), arguments, loggers=[])
    trainer.save_metrics("train", {"train_loss": 1.0})
    trainer.save_metrics("eval", {"eval_loss": 2.0})
    text = b"".join(trainer.adapters.storage.read("all_results.json"))
    assert json.loads(text) == {"train_loss": 1.0, "eval_loss": 2.0}


class SecondProcess(SingleProcessCollectives):
    """Collectives of a process other than rank 0."""

    rank = 1
    world_size = 2


def test_only_the_first_process_reports_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other processes print nothing and write nothing."""
    trainer = small_trainer(tmp_path / "other", parts={"collectives": SecondProcess()})
    assert not trainer.is_world_process_zero()
    trainer.log_metrics("train", TRAINED)
    trainer.save_metrics("train", TRAINED)
    trainer.save_state()
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "other").exists()


def test_the_saved_state_matches_the_trainer(tmp_path: Path) -> None:
    """trainer_state.json has the fields that transformers reads, with the run's results."""
    trainer = small_trainer(tmp_path)
    trainer.train()
    trainer.save_state()
    read = transformers.TrainerState.load_from_json(str(tmp_path / "trainer_state.json"))
    assert read.global_step == trainer.state.global_step == 4
    assert read.log_history == trainer.state.log_history


def test_tokens_of_a_loader_are_counted() -> None:
    """All tokens, or those of `max_steps` batches, estimated from the first; a warning if a loader has none."""
    loader = [{"input_ids": torch.zeros(2, width, dtype=torch.int64)} for width in (3, 5)]
    assert hexloop.Trainer.num_tokens(loader) == 16
    assert hexloop.Trainer.num_tokens(loader, max_steps=10) == 60
    with pytest.warns(UserWarning, match="no input_ids"):
        assert hexloop.Trainer.num_tokens(rows(2)) == 0


def test_an_interval_changed_since_the_checkpoint_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All differences are in one warning of hexloop's logger; without a difference there is none."""
    trainer = small_trainer(tmp_path, logging_steps=5, save_steps=7)
    state = hexloop.TrainerState(logging_steps=5, save_steps=7, train_batch_size=4)
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer.compare_trainer_and_checkpoint_args(trainer.args, state)
        assert caplog.messages == []
        state.save_steps, state.train_batch_size = 3, 8
        trainer.compare_trainer_and_checkpoint_args(trainer.args, state)
    (message,) = caplog.messages
    assert "save_steps: 7 (from args) != 3 (from trainer_state.json)" in message
    assert "per_device_train_batch_size: 4 (from args) != 8 (from trainer_state.json)" in message
    assert "logging_steps" not in message
