"""The words for the states of a run, which are the same on the list, on pages and in reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexloop.app.control.files import Action, CommandFolder
from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.states import RunState, last_heard, outcome_of, session_state, state_in, state_of

NOW = 10_000.0


def history(*notes: dict[str, Any]) -> RunHistory:
    made = RunHistory("a")
    for number, note in enumerate(notes):
        made.take({"time": NOW - 100 + number, **note})
    return made


BEGAN = {"kind": "began", "step": 0, "total_steps": 10, "settings": {"board_control": True}}
LOGGED = {"kind": "logged", "step": 5, "values": {"loss": 1.0}}
ENDED = {"kind": "ended", "step": 10, "stopped": False, "reasons": []}
LATE = {**LOGGED, "time": NOW - 3600}


@pytest.mark.parametrize(
    ("notes", "state", "words"),
    [
        ([], RunState.UNKNOWN, "unknown: there is no journal"),
        ([BEGAN, LOGGED], RunState.RUNNING, "running"),
        ([BEGAN, LOGGED, {"kind": "paused", "step": 5}], RunState.PAUSED, "paused at step 5"),
        ([BEGAN, LOGGED, ENDED], RunState.FINISHED, "finished"),
        ([BEGAN, LOGGED, {**ENDED, "step": 7}], RunState.FINISHED, "finished early, at step 7 of 10"),
        ([BEGAN, {**ENDED, "stopped": True, "reasons": ["SIGTERM"]}], RunState.STOPPED, "stopped: SIGTERM"),
        ([BEGAN, LOGGED, {"kind": "ended", "step": 5}], RunState.FAILED, "failed"),
        ([{**BEGAN, "time": 1.0}, LATE], RunState.LOST, "lost: no report for 1 h"),
        ([{**BEGAN, "time": 1.0}, {**LATE, "kind": "paused"}], RunState.LOST,
         "lost: it was paused at step 5, and no report for 1 h"),
        ([{**BEGAN, "time": "yesterday"}], RunState.LOST, "lost: it never reported"),
    ],
)  # fmt: skip
def test_each_state_has_its_words(notes: list[dict[str, Any]], state: RunState, words: str) -> None:
    """The state first, then what else is known. A healthy run is running, and nothing else."""
    made = history(*notes)
    assert state_in(made, NOW) is state
    assert state_of(made, made.total_steps, NOW) == words
    assert words.startswith(state.value)


def test_a_run_that_reads_commands_is_not_lost(tmp_path: Path) -> None:
    """While it is paused, or in a long step, it reports nothing else."""
    made = history({**BEGAN, "time": 1.0}, {**LATE, "kind": "paused"})
    assert last_heard(str(tmp_path), made) is None
    folder = CommandFolder(tmp_path, "a")
    folder.give(Action.PAUSE)
    folder.beat()
    heard = last_heard(str(tmp_path), made)
    assert heard is not None
    assert state_of(made, 10, heard + 1, heard) == "paused at step 5"
    assert state_in(made, heard + 3600, heard) is RunState.LOST
    assert last_heard("s3://bucket/run", made) is None


def test_sessions_have_the_same_words() -> None:
    """One that was followed by another is lost, however short ago it reported."""
    made = history(BEGAN, LOGGED, {**BEGAN, "step": 5}, LOGGED)
    first, last = made.sessions.entries
    assert outcome_of(first, NOW, is_last=False) == "lost: it did not report its end"
    assert outcome_of(last, NOW) == "running"
    assert session_state(first, NOW, is_last=False) is RunState.LOST
    assert session_state(last, NOW) is RunState.RUNNING


def test_a_finished_run_that_is_resumed_has_no_restart() -> None:
    """Because it trains nothing; one that trains more steps, or was stopped before, has."""
    nothing = [{**BEGAN, "step": 10}, ENDED]
    assert history(BEGAN, LOGGED, ENDED).restarts == 0
    assert history(BEGAN, LOGGED, ENDED, *nothing, *nothing).restarts == 0
    assert (
        history(BEGAN, LOGGED, ENDED, {**BEGAN, "step": 10}, {**LOGGED, "step": 12}, {**ENDED, "step": 20}).restarts
        == 1
    )
    assert history(BEGAN, LOGGED, {**BEGAN, "step": 5}, ENDED, *nothing).restarts == 1
    assert history(BEGAN, {**ENDED, "stopped": True}, *nothing).restarts == 1
