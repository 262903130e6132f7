"""The command line on runs whose output_dir is a URL."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

import hexloop
from hexloop.adapters.storage.fsspec import FsspecStorage
from tests.unit.command_line.commands import NOISY, Commands


def test_run_on_a_url_is_trained_resumed_evaluated_and_listed(commands: Commands) -> None:
    """The last line names the URL, `--resume` continues there, and metrics are written there."""
    url = f"memory://bucket/{uuid.uuid4().hex}"
    text = NOISY.replace("output_dir: out", f"output_dir: {url}").replace("report_to: json_lines", "report_to: none")
    recipe = commands.write("there.yaml", text.replace("save_steps: 100", "save_steps: 3"))
    trained = commands("train", recipe, "--max_steps", "6")
    assert trained.code == 0, trained.errors
    assert trained.last_line.startswith(f"Checkpoints are in {url}; train longer with: hexloop train")
    assert commands("train", recipe, "--resume").code == 0
    evaluated = commands("evaluate", recipe)
    assert evaluated.code == 0, evaluated.errors
    assert json.loads(evaluated.output)["checkpoint"] == f"{url}/checkpoint-9"
    assert b"".join(FsspecStorage(url).read("eval_results.json")).decode() == evaluated.output
    assert commands("evaluate", recipe).code == 0, "the metrics may be written again"
    older = commands("evaluate", recipe, "--checkpoint", f"{url}/checkpoint-3", "--output", "older.json")
    assert json.loads(older.output)["checkpoint"] == f"{url}/checkpoint-3"
    assert commands("predict", recipe, "--output", "out.npz").code == 0
    assert commands("checkpoints", "list", url).output.count(" good") == 3
    assert sorted(path.name for path in Path().iterdir() if path.is_dir() and path.name != "__pycache__") == []


def test_url_without_checkpoints_is_reported(commands: Commands) -> None:
    """The error is raised before anything is built."""
    url = f"memory://bucket/{uuid.uuid4().hex}"
    recipe = commands.write("there.yaml", NOISY.replace("output_dir: out", f"output_dir: {url}"))
    outcome = commands("train", recipe, "--resume")
    assert outcome.code == 2
    assert f"there is none in {url}" in outcome.errors
    assert f"There is no checkpoint in {url}" in commands("evaluate", recipe).errors


def test_file_url_equals_its_folder(commands: Commands) -> None:
    """A file URL works for resuming and for evaluating."""
    recipe = commands.write("steps.yaml", NOISY.replace("save_steps: 100", "save_steps: 3"))
    assert commands("train", recipe, "--max_steps", "3").code == 0
    url = Path("out", "checkpoint-3").resolve().as_uri()
    assert commands("evaluate", recipe, "--checkpoint", url).code == 0
    assert commands("train", recipe, "--resume", url).code == 0
    assert "no such folder" in commands("train", recipe, "--resume", f"{url}0").errors


def test_a_checkpoint_to_import_is_on_this_machine(commands: Commands) -> None:
    """A URL is refused as what it is, and not as a folder that lacks a file; so is a folder that does not exist."""
    Path("empty").mkdir()
    for source in ("s3://bucket/run/checkpoint-3", "missing"):
        outcome = commands("checkpoints", "import", source, "--to", "imported")
        assert outcome.code == 1
        assert f"You chose to import {source}, which is no folder of this machine" in outcome.errors
    assert "it has no trainer_state.json" in commands("checkpoints", "import", "empty", "--to", "imported").errors
    assert not Path("imported").exists()


@pytest.mark.filterwarnings("ignore:A checkpoint is skipped")
def test_resume_reports_how_to_import_checkpoints_of_transformers(commands: Commands) -> None:
    """`--resume` without a path rejects foreign checkpoints and prints the import command."""
    recipe = commands.write("steps.yaml", NOISY.replace("save_steps: 100", "save_steps: 3"))
    assert commands("train", recipe, "--max_steps", "6", "--output_dir", "ours").code == 0
    for step in (3, 6):
        hexloop.export_checkpoint(f"ours/checkpoint-{step}", "theirs")
    outcome = commands("train", recipe, "--resume", "--output_dir", "theirs")
    assert outcome.code == 1
    newest = Path("theirs", "checkpoint-6").resolve()
    assert f"run `hexloop checkpoints import {newest} --to OUTPUT_DIR`" in outcome.errors
