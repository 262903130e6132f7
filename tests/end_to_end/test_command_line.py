"""The console script in a process of its own: real signals and exit codes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.console import hexloop, started
from tests.unit.recipe.small_project import Project

RECIPE = """\
model: {call: project.Line}
train_dataset: {call: project.points, count: 4000, noise: 0.0}
arguments:
  output_dir: out
  num_train_epochs: 1000
  per_device_train_batch_size: 2
  learning_rate: 1e-6
  logging_steps: 10
  save_strategy: "no"
  disable_tqdm: true
  use_cpu: true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a recipe that trains for a very long time."""
    Project(tmp_path).recipe(RECIPE)
    return tmp_path


def stopped(process: subprocess.Popen[str], number: int, to_group: bool) -> tuple[int, str, str]:
    """Wait for the first log of a run, send it a signal, and wait for its end."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "'loss'" in line:
            break
    if to_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    rest, errors = process.communicate()
    return process.returncode, "".join(seen) + rest, errors


def test_sigterm_saves_and_the_run_resumes(folder: Path) -> None:
    """On SIGTERM, training saves a checkpoint and exits with 3; the printed command resumes from it."""
    with started("train", "recipe.yaml", folder=folder) as process:
        code, output, errors = stopped(process, signal.SIGTERM, to_group=False)
    assert code == 3, errors
    stop = re.search(r"Stopped by signal SIGTERM after ([\d,]+) of 2,000,000 steps\.", output)
    assert stop is not None, output
    step = int(stop[1].replace(",", ""))
    assert [path.name for path in (folder / "out").glob("checkpoint-*")] == [f"checkpoint-{step}"]
    command = output.splitlines()[-1].partition("resume with: ")[2]
    resumed = hexloop(*shlex.split(command)[1:], "--max_steps", str(step + 5), folder=folder)
    assert resumed.returncode == 0, resumed.stderr
    assert f"Done after {step + 5:,} of {step + 5:,} steps." in resumed.stdout


def test_ctrl_c_reaches_the_loaders_workers_too_and_still_saves(folder: Path) -> None:
    """On Ctrl-C, which reaches every process, the workers keep running until the checkpoint is written."""
    with started("train", "recipe.yaml", "--dataloader_num_workers", "1", folder=folder) as process:
        code, output, errors = stopped(process, signal.SIGINT, to_group=True)
    assert code == 3, errors
    assert errors.count("signal SIGINT: saving and stopping") == 1
    assert "resume with: hexloop train recipe.yaml --dataloader_num_workers 1 --resume" in output.splitlines()[-1]


def test_a_bad_recipe_exits_with_2_and_prints_nothing_else(tmp_path: Path) -> None:
    """All errors go to standard error, as documented; standard output stays empty."""
    Project(tmp_path).recipe("modle: {call: project.Line}\ntrain_dataset: {call: project.pionts, count: 3}\n")
    ended = hexloop("train", "recipe.yaml", folder=tmp_path, installed=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "hexloop: 3 problems in the configuration:\n"
        "  1. recipe.yaml, line 1: You chose modle={'call': 'project.Line'}, but recipes have no such key; "
        "did you mean model?\n"
        "  2. recipe.yaml: model is missing; add it, as in 'model: {call: my_module.make_model}'.\n"
        "  3. recipe.yaml, line 2: You chose train_dataset.call='project.pionts', but the module project has no "
        "pionts; did you mean points?\n"
    )
    assert ended.stderr in Path(__file__).parents[2].joinpath("docs/command-line.md").read_text()
