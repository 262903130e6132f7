"""The adapter of flytekit in a local task of the real library, whose checkpoint and decks are read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trackers.contract import information
from tests.trackers.running import PROGRAMS, SentRun, pinned, run, track

ADAPTER = "hexloop.adapters.logger.flyte:Flyte"


def in_task(folder: Path, mode: str, *hidden: str) -> dict[str, Any]:
    """Run the adapter in a task, and return what the task has at its end."""
    printed = run("flyte", PROGRAMS / "in_flyte.py", mode, *hidden, folder=folder, variables={})
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def test_checkpoints_and_the_history_are_in_the_task(tmp_path: Path) -> None:
    """The task's checkpoint is the newest one, and a deck has the values, though they come from another thread."""
    found = in_task(tmp_path, "finished")
    assert found["version"] == pinned("flyte", "flytekit")
    assert found["identity"] is None
    assert found["checkpoint"] == {"weights": "checkpoint-20"}
    deck = found["decks"]["Log History"]
    assert "hexloop/outcome: finished" in deck
    assert all(text in deck for text in ("loss", "0.05", "step"))
    assert "<script>" not in deck
    assert "&lt;script&gt;" in deck
    assert found["messages"] == []


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["failed", "stopped", "preempted"])
def test_the_deck_says_how_the_run_ended(kind: str, tmp_path: Path) -> None:
    """The outcome, and the error as text."""
    deck = in_task(tmp_path, kind)["decks"]["Log History"]
    assert f"hexloop/outcome: {kind}" in deck
    assert ("ValueError: &lt;b&gt;" in deck) == (kind == "failed")


@pytest.mark.matrix
def test_both_can_be_switched_off(tmp_path: Path) -> None:
    """Then the task has neither."""
    found = in_task(tmp_path, "quiet")
    assert found["checkpoint"] == {}
    assert "Log History" not in found["decks"]


@pytest.mark.matrix
def test_without_the_plugin_there_is_no_deck(tmp_path: Path) -> None:
    """A warning says what to install, and checkpoints are stored all the same."""
    found = in_task(tmp_path, "finished", "flytekitplugins.deck")
    assert "Log History" not in found["decks"]
    assert found["checkpoint"] == {"weights": "checkpoint-20"}
    [message] = found["messages"]
    assert "pip install" in message
    assert "flytekitplugins-deck-standard" in message


@pytest.mark.matrix
@pytest.mark.parametrize(("hidden", "problem"), [([], "only within a task"), (["flytekit"], "run `pip install")])
def test_outside_of_a_task_or_without_the_package_it_is_refused(
    hidden: list[str], problem: str, tmp_path: Path
) -> None:
    """The error of the constructor says what is missing."""
    runs = [SentRun(information())]
    answer = track("flyte", ADAPTER, "flytekit", runs, folder=tmp_path, variables={}, hidden=hidden)
    assert answer.error is not None
    assert "ConfigurationError" in answer.error["types"]
    assert problem in answer.error["text"]


@pytest.mark.matrix
def test_a_task_that_is_tried_again_resumes(tmp_path: Path) -> None:
    """A Trainer with the callback stores its checkpoint; a second try restores and resumes it, and shows its values."""
    printed = run("flyte", PROGRAMS / "train_in_flyte.py", folder=tmp_path, variables={})
    first, second = json.loads(printed.splitlines()[-1])
    assert first["steps"] == 6
    assert "hexloop/outcome: failed: ValueError: the disk is on fire" in first["deck"]
    assert second["steps"] == 8
    assert "hexloop/outcome: finished" in second["deck"]
    assert second["first"] == 2  # the history of the first try is in the checkpoint
