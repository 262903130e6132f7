"""How far a run is: percent and time left, from the first note of its journal on."""

from __future__ import annotations

from typing import Any

import pytest

from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.progress import RUNNING_FOR, Progress, progress_of

BEGAN = {"kind": "began", "run": "a", "step": 0, "time": 100.0, "total_steps": 200}


def logged(step: int, time: float) -> dict[str, Any]:
    return {"kind": "logged", "step": step, "time": time, "values": {"loss": 1.0}}


def progress(*notes: dict[str, Any], now: float) -> Progress:
    history = RunHistory("a")
    for note in notes:
        history.take(note)
    return progress_of(history, now)


def test_the_total_is_known_from_the_first_note() -> None:
    """With 0 percent; no time is known without a step."""
    found = progress(BEGAN, now=101.0)
    assert (found.steps_text, found.left_text) == ("0 of 200 (0%)", "-")


def test_the_time_left_is_that_of_the_remaining_steps() -> None:
    """At the speed since the start, less what has passed since the last report."""
    notes = [BEGAN, *(logged(step, 100.0 + 2 * step) for step in (10, 20, 30))]
    found = progress(*notes, now=165.0)
    assert found == Progress(30, 200, 170 * 2 - 5.0)
    assert (found.steps_text, found.left_text) == ("30 of 200 (15%)", "0:05:35")
    assert progress(*notes, now=505.0).left_text == "under 1 s"


def test_the_last_logs_count() -> None:
    """A run that became faster is estimated by what it does now."""
    slow = [logged(step, 100.0 + 100 * step) for step in range(1, 11)]
    fast = [logged(step, 1100.0 + step) for step in range(11, 51)]
    assert progress(BEGAN, *slow, *fast, now=1150.0).seconds_left == 150.0


@pytest.mark.parametrize("interruption", ["pause", "restart"])
def test_an_interruption_is_no_speed(interruption: str) -> None:
    """Neither the time of a pause nor that between two sessions counts as that of steps."""
    notes = [BEGAN, *(logged(step, 100.0 + step) for step in range(1, 41))]
    if interruption == "pause":
        accepted = {"kind": "command", "sequence": 1, "action": "resume", "outcome": "accepted", "time": 9000.0}
        notes += [{"kind": "paused", "step": 40, "time": 141.0}]
        assert progress(*notes, now=150.0).left_text == "-"
        notes += [accepted]
    else:
        notes += [{**BEGAN, "step": 40, "time": 9000.0}]
    notes += [logged(41, 9002.0)]
    assert progress(*notes, now=9002.0).seconds_left == 159 * 2.0
    assert progress(*notes, logged(42, 9003.0), now=9003.0).seconds_left == 158.0


@pytest.mark.parametrize(
    "last",
    [
        {"kind": "ended", "step": 40, "time": 141.0, "stopped": True, "reasons": []},
        {"kind": "ended", "step": 40, "time": 141.0},
        {"kind": "paused", "step": 40, "time": 141.0},
    ],
)
def test_a_run_that_does_not_train_has_no_time_left(last: dict[str, Any]) -> None:
    """Stopped, failed and paused ones, and those that are silent for long."""
    notes = [BEGAN, *(logged(step, 100.0 + step) for step in range(1, 41))]
    assert progress(*notes, now=141.0).seconds_left == 159.0
    assert progress(*notes, last, now=141.0).seconds_left is None
    assert progress(*notes, now=140.0 + RUNNING_FOR).seconds_left is None


def test_numbers_that_make_no_sense() -> None:
    """More steps than planned, a clock that went back, and steps without a plan."""
    assert progress(BEGAN, logged(300, 200.0), now=200.0).steps_text == "300 of 200 (100%)"
    assert progress(BEGAN, logged(1, 90.0), logged(2, 80.0), now=80.0).seconds_left is None
    assert progress({**BEGAN, "total_steps": "many"}, logged(3, 101.0), now=101.0) == Progress(3, None, None)
    assert progress({**BEGAN, "time": float("-inf")}, logged(1, 101.0), now=101.0).seconds_left is None
    assert progress({**BEGAN, "time": float("nan")}, logged(1, 101.0), now=101.0).seconds_left is None
    assert progress({**BEGAN, "total_steps": 0, "settings": {"max_steps": 9}}, now=100.0).total == 9
