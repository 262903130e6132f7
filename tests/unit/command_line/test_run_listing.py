"""`hexloop runs list` and `hexloop runs show` on real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.command_line.options import STATES
from hexloop.app.pages.labels import Labels, write_labels
from hexloop.app.pages.states import RunState
from tests.unit.command_line.commands import NOISY, Commands


@pytest.fixture
def runs(commands: Commands) -> Commands:
    """The command line in a folder with a finished, a stopped and a failed run."""
    recipe = commands.write("whole.yaml", NOISY)
    failing = commands.write("failing.yaml", f"{NOISY}\ncallbacks: [signalling.Fails]\n")
    assert commands("train", recipe, "--output_dir", "runs/whole").code == 0
    assert commands("train", commands.stopping(step=4, names=["SIGTERM"]), "--output_dir", "runs/half").code == 3
    assert commands("train", failing, "--output_dir", "runs/deep/failed").code == 1
    return commands


def rows(runs: Commands, *words: str) -> list[Any]:
    """Return the rows of the list as JSON."""
    found: list[Any] = json.loads(runs("runs", "list", "runs", "--json", *words).output)["runs"]
    return found


def names(runs: Commands, *words: str) -> list[str]:
    return [row["run"] for row in rows(runs, *words)]


def test_the_list_has_state_progress_and_losses(runs: Commands) -> None:
    """Each run is a row, the one that reported last first, in the words of the board."""
    lines = runs("runs", "list", "runs").output.splitlines()
    assert lines[0].split("  ")[0] == "run"
    assert [line.split()[0] for line in lines[1:]] == ["deep/failed", "half", "whole"]
    assert lines[1].split()[1] == "failed"
    assert "stopped: signal SIGTERM" in lines[2]
    assert "4 of 9 (44%)" in lines[2]
    assert "finished" in lines[3]
    assert "9 of 9 (100%)" in lines[3]
    whole = rows(runs)[2]
    assert (whole["state"], whole["step"], whole["total_steps"]) == ("finished", 9, 9)
    assert whole["metrics"]["eval_loss"] > 0
    assert {row["state"] for row in rows(runs)} < set(STATES)
    assert {state.value for state in RunState} == set(STATES)


def test_the_list_is_filtered_and_sorted(runs: Commands) -> None:
    """By state, tag and hidden; by columns and logged values, those without one last."""
    write_labels(Path("runs/whole"), Labels(("baseline", "good")))
    write_labels(Path("runs/half"), Labels(("baseline",), "a\nnote", hidden=True))
    assert names(runs) == ["deep/failed", "whole"]
    assert names(runs, "--all", "--sort", "run") == ["deep/failed", "half", "whole"]
    assert names(runs, "--all", "--sort", "step", "--reverse") == ["whole", "half", "deep/failed"]
    assert names(runs, "--tag", "baseline", "--tag", "good") == ["whole"]
    assert names(runs, "--all", "--state", "stopped", "--state", "failed") == ["deep/failed", "half"]
    losses = {row["run"]: row["metrics"].get("eval_loss") for row in rows(runs, "--all", "--sort", "eval_loss")}
    known = [loss for loss in losses.values() if loss is not None]
    assert known == sorted(known)
    shown = runs("runs", "list", "runs", "--metric", "eval_runtime").output
    assert "eval_runtime" in shown.splitlines()[0]
    assert shown.splitlines()[-1] == "1 more are hidden, or not what you chose; --all lists hidden ones."


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["runs", "list", "nowhere"], "You chose the folder nowhere, but there is no such folder"),
        (["runs", "list", "s3://bucket/x"], "runs are listed in folders of this machine only"),
        (["runs", "list", "runs", "--sort", "eval_los"], "a value of that name; did you mean eval_loss?"),
        (["runs", "list", "runs", "--state", "done"], "invalid choice: 'done'"),
        (["runs", "show", "nowhere"], "You chose the run nowhere, but there is no such folder"),
        (["runs", "show", "runs/whole/checkpoint-9"], "which is one checkpoint; name the folder it is in"),
    ],
)  # fmt: skip
def test_wrong_names_are_reported(runs: Commands, words: list[str], expected: str) -> None:
    """Missing folders and values, and unknown states, exit with 2."""
    outcome = runs(*words)
    assert (outcome.code, outcome.output) == (2, "")
    assert expected in outcome.errors


def test_an_empty_folder_has_no_runs(commands: Commands) -> None:
    """That is not an error."""
    Path("empty").mkdir()
    outcome = commands("runs", "list", "empty")
    assert (outcome.code, outcome.output) == (0, "There is no run in empty.\n")


def test_show_has_what_is_known_about_a_run(runs: Commands) -> None:
    """Progress, logged values, checkpoints, changed arguments, labels and the command."""
    write_labels(Path("runs/whole"), Labels(("good",), "first try\nwith noise"))
    shown = runs("runs", "show", "runs/whole").output
    for expected in (
        "state ",
        "finished",
        "9 of 9 (100%)",
        "checkpoint-9",
        "learning_rate",
        "0.1",
        "good",
        "  with noise",
    ):
        assert expected in shown
    reported = json.loads(runs("runs", "show", "runs/whole", "--json").output)
    assert (reported["state"], reported["step"], reported["tags"]) == ("finished", 9, ["good"])
    assert reported["metrics"]["eval_loss"]["step"] == 9
    assert reported["arguments"]["learning_rate"] == "0.1"
    assert [each["name"] for each in reported["checkpoints"]] == ["checkpoint-9"]
    failed = runs("runs", "show", "runs/deep/failed").output
    assert failed.splitlines()[1].split() == ["state", "failed"]


def test_names_and_notes_cannot_control_the_terminal(runs: Commands) -> None:
    """Control characters of folders, tags and notes are printed as escapes, and links are not followed."""
    Path("runs/whole").rename("runs/wh\x1b[2Jole")
    write_labels(Path("runs/wh\x1b[2Jole"), Labels((), "\x1b]0;title\x07"))
    Path("runs/link").symlink_to(Path("runs/half").resolve())
    listed = runs("runs", "list", "runs").output
    shown = runs("runs", "show", "runs/wh\x1b[2Jole").output
    for text in (listed, shown):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "link" not in listed
