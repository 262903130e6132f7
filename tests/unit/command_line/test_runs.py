"""`hexloop runs diff` and `--resume auto` on real runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.unit.command_line.commands import NOISY, Commands


@pytest.fixture
def recipe(commands: Commands) -> str:
    """Return a recipe that journals every step."""
    return commands.write("steps.yaml", NOISY.replace("save_steps: 100", "save_steps: 3\n  journal: steps"))


def test_resumed_run_equals_an_uninterrupted_one(commands: Commands, recipe: str) -> None:
    """Data, RNG streams, rates, losses and weights are equal at every step; the exit code is 0."""
    assert commands("train", recipe, "--output_dir", "whole").code == 0
    text = Path(recipe).read_text() + '\ncallbacks: [{call: signalling.Signals, step: 4, names: ["SIGTERM"]}]\n'
    stopping = commands.write("stopping.yaml", text)
    stopped = commands("train", stopping, "--resume", "auto")
    assert stopped.code == 3
    assert stopped.last_line.endswith("resume with: hexloop train stopping.yaml --resume auto")
    assert commands("train", recipe, "--resume", "auto").code == 0
    diff = commands("runs", "diff", "whole", "out")
    assert (diff.code, diff.output.splitlines()[0]) == (
        0,
        "whole and out are equal at every step that was compared, up to step 9.",
    )
    for line in (
        "data          equal at all 9 steps",
        "randomness    equal at all",
        "weights       equal at all 3 steps",
    ):
        assert line in diff.output, diff.output


def test_first_difference_is_reported_with_its_step(commands: Commands, recipe: str) -> None:
    """Another learning rate is reported at the first step, then the loss and later effects."""
    assert commands("train", recipe, "--output_dir", "one").code == 0
    assert commands("train", recipe, "--output_dir", "other", "--learning_rate", "0.2").code == 0
    diff = commands("runs", "diff", "one", "other")
    assert diff.code == 1
    lines = diff.output.splitlines()
    assert lines[0] == "one and other diverge at step 1: first in the learning rate."
    assert [line[2:16].strip() for line in lines[1:5]] == ["learning rate", "loss", "weights", "metrics"]
    assert "  data          equal at all 9 steps compared" in lines
    assert "  learning_rate: 0.1 and 0.2" in lines
    reported = json.loads(commands("runs", "diff", "one", "other", "--json").output)
    assert reported["partings"][0]["what"] == "learning rate"
    assert reported["settings"]["learning_rate"] == [0.1, 0.2]


def test_another_seed_differs_in_the_rng_streams_first(commands: Commands) -> None:
    """The streams are recorded when the run starts, even without a journal of each step."""
    recipe = commands.write("whole.yaml", NOISY)
    assert commands("train", recipe, "--output_dir", "one").code == 0
    assert commands("train", recipe, "--output_dir", "other", "--seed", "7").code == 0
    diff = commands("runs", "diff", "one", "other")
    assert diff.code == 1
    assert diff.output.startswith("one and other diverge at step 0: first in the randomness.")


def test_missing_runs_are_reported_in_one_error(commands: Commands) -> None:
    """Each missing run is named with alternatives."""
    commands.write("journal.jsonl", '{"kind": "began", "run": "abc", "step": 0}\n')
    outcome = commands("runs", "diff", "nowhere", "journal.jsonl@x")
    assert outcome.code == 2
    assert "You chose the run nowhere" in outcome.errors
    assert re.search("No such file or directory: '[^']*nowhere'", outcome.errors)
    assert "the runs in journal.jsonl are abc" in outcome.errors
    assert commands("runs", "diff", "journal.jsonl@ab", "journal.jsonl").code == 0
    assert commands("runs").code == 2


def test_same_command_on_a_finished_run_does_nothing(commands: Commands, recipe: str) -> None:
    """A finished run is reported with exit code 0 and not trained; a longer run resumes."""
    assert commands("train", recipe, "--resume", "auto").code == 0
    before = Path("out", ".hexloop", "journal.jsonl").read_bytes()
    again = commands("train", recipe, "--resume", "auto")
    assert again.code == 0
    assert again.output.startswith("steps.yaml: this run finished after 9 steps; its checkpoints are in out.")
    assert Path("out", ".hexloop", "journal.jsonl").read_bytes() == before
    longer = commands("train", recipe, "--resume", "auto", "--max_steps", "12")
    assert longer.code == 0
    assert "Done after 12 of 12 steps." in longer.output


def test_finished_run_without_its_last_checkpoint_resumes(commands: Commands, recipe: str) -> None:
    """If the last checkpoint is damaged or missing, the run resumes from an earlier one."""
    assert commands("train", recipe, "--resume", "auto").code == 0
    weights = Path("out", "checkpoint-9", "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="set aside"):
        damaged = commands("train", recipe, "--resume", "auto")
    assert "Done after 9 of 9 steps." in damaged.output
    shutil.rmtree(Path("out", "checkpoint-9"))
    assert "Done after 9 of 9 steps." in commands("train", recipe, "--resume", "auto").output
    assert "this run finished" in commands("train", recipe, "--resume", "auto").output


def test_auto_rejects_checkpoints_of_several_runs(commands: Commands, recipe: str) -> None:
    """If the folder has checkpoints of two runs, `auto` is an error that names both."""
    assert commands("train", recipe, "--max_steps", "3").code == 0
    assert commands("train", recipe, "--max_steps", "6", "--save_steps", "2").code == 0
    outcome = commands("train", recipe, "--resume", "auto")
    assert outcome.code == 1
    assert "2 runs" in outcome.errors
    assert "Name the checkpoint to resume from" in outcome.errors
