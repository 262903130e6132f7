"""What happened in a run, from the notes of its journal."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages.history import MOST_EVENTS, MOST_SERIES, RunEnding, RunHistory


def taken(*notes: dict[str, Any]) -> RunHistory:
    history = RunHistory("one")
    for note in notes:
        history.take(note)
    return history


def began(step: int, time: float, **facts: Any) -> dict[str, Any]:
    return {"kind": "began", "run": "one", "step": step, "time": time, **facts}


def logged(step: int, time: float, **values: Any) -> dict[str, Any]:
    return {"kind": "logged", "step": step, "time": time, "values": values}


def points(history: RunHistory, name: str) -> list[tuple[int, float]]:
    series = history.series[name]
    return list(zip(series.steps, series.values, strict=True))


def test_a_resumed_run_repeats_steps() -> None:
    """Curves continue from the checkpoint; the sessions show how many steps were repeated, and how each ended."""
    history = taken(
        began(0, 10.0, settings={"seed": 1}, command="hexloop train a.yaml"),
        logged(2, 12.0, loss=4.0),
        logged(4, 14.0, loss=3.0, void=1.0),
        began(2, 20.0, settings={"seed": 1}, command="hexloop train a.yaml --resume"),
        logged(4, 22.0, loss=2.5),
        {"kind": "ended", "step": 4, "time": 23.0, "stopped": True, "reasons": ["signal SIGTERM"]},
        began(4, 30.0),
        logged(6, 33.0, loss=2.0),
        {"kind": "ended", "step": 6, "time": 34.0, "stopped": False, "reasons": []},
        began(6, 40.0),
        {"kind": "ended", "step": 6, "time": 41.0},
    )
    assert points(history, "loss") == [(2, 4.0), (4, 2.5), (6, 2.0)]
    assert points(history, "void") == []
    assert points(RunHistory("", series={"time": history.times}), "time") == [(2, 12.0), (4, 22.0), (6, 33.0)]
    sessions = history.sessions.entries
    assert [each.outcome for each in sessions] == [
        RunEnding.LOST,
        RunEnding.STOPPED,
        RunEnding.FINISHED,
        RunEnding.FAILED,
    ]
    assert [(each.first, each.last, each.repeated) for each in sessions] == [(0, 4, 0), (2, 4, 2), (4, 6, 0), (6, 6, 0)]
    assert [each.seconds for each in sessions] == [4.0, 3.0, 4.0, 1.0]
    assert sessions[1].reasons == ("signal SIGTERM",)
    assert history.settings == {"seed": 1}
    assert history.command == "hexloop train a.yaml --resume"
    assert (history.last_step, history.seen) == (6, 41.0)


def test_saves_show_what_they_cost() -> None:
    """In the background, training waits for the snapshot; else for all of it. A failed one has its reason."""
    phases = ("began", "taken", "first_byte", "written", "published", "rotated")
    save = [
        {"kind": "save", "phase": phase, "checkpoint": "checkpoint-2", "time": 10.0 + number, "bytes": 500}
        for number, phase in enumerate(phases)
    ]
    waits = [{**note, "checkpoint": "checkpoint-4"} for note in save if note["phase"] != "taken"]
    failed = [
        {"kind": "save", "phase": "began", "checkpoint": "checkpoint-6", "time": 50.0},
        {"kind": "save", "phase": "failed", "step": 6, "error": "no space left", "time": 51.0},
        {"kind": "save", "phase": "failed", "step": 8, "error": "no space left", "time": 52.0},
    ]
    saves = taken(began(0, 1.0), *save, *waits, *failed).saves.entries
    assert [each.checkpoint for each in saves] == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"]
    assert [(each.waited, each.total, each.size) for each in saves[:2]] == [(1.0, 4.0, 500), (4.0, 4.0, 500)]
    assert [each.error for each in saves] == [None, None, "no space left", "no space left"]
    assert saves[2].total is None


def test_a_checkpoint_that_is_saved_again_is_another_save() -> None:
    """As after a resume from an earlier one."""
    note = {"kind": "save", "checkpoint": "checkpoint-2", "time": 5.0}
    history = taken(*({**note, "phase": phase} for phase in ("began", "published", "began")))
    assert [list(each.phases) for each in history.saves.entries] == [["began", "published"], ["began"]]


def test_values_that_are_not_finite_are_gaps() -> None:
    """Journals write them as words, states as numbers; neither is drawn."""
    history = taken(began(0, 1.0), logged(1, 2.0, loss="NaN", rate="Infinity"), logged(2, 3.0, loss=1.0, text="words"))
    history.add_logged(3, {"loss": math.nan})
    assert list(history.series["loss"].gaps) == [1, 3]
    assert list(history.series["rate"].gaps) == [1]
    assert set(history.series) == {"loss", "rate"}


def test_losses_of_each_step_are_a_curve() -> None:
    """Those that journal='steps' records with each log."""
    history = taken(began(0, 1.0), {"kind": "losses", "first": 3, "losses": [5.0, "NaN", None, 2]})
    assert points(history, "loss of each step") == [(3, 5.0), (6, 2.0)]


def test_what_was_logged_before_the_journal_is_added() -> None:
    """From the state in a checkpoint, up to the step at which the journal starts."""
    history = taken(began(4, 10.0), logged(6, 12.0, loss=2.0, new=1.0))
    entries: list[dict[str, Any]] = [{"step": step, "loss": 10.0 - step, "old": 0.0} for step in (2, 4, 6)]
    entries += [{"loss": 1.0}, {"step": "x"}]
    history.add_earlier(entries, 4)
    assert points(history, "loss") == [(2, 8.0), (4, 6.0), (6, 2.0)]
    assert points(history, "old") == [(2, 0.0), (4, 0.0)]
    assert points(history, "new") == [(6, 1.0)]


def test_what_a_hostile_journal_can_fill_is_bounded() -> None:
    """Names of values, sessions and saves: the first and the last of them are kept, and how many are left out."""
    history = taken(*(logged(step, 1.0, **{f"name {step}": 1.0}) for step in range(MOST_SERIES + 10)))
    assert len(history.series) == MOST_SERIES
    assert f"name {MOST_SERIES + 9}" in history.left_out
    history = taken(*(began(0, float(number)) for number in range(MOST_EVENTS + 7)))
    assert (len(history.sessions.entries), history.sessions.dropped) == (MOST_EVENTS, 7)
    assert [history.sessions.entries[at].began for at in (0, -1)] == [0.0, MOST_EVENTS + 6.0]


FACTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(["began", "logged", "losses", "save", "ended", "step", "?"])
NAMES = ("time", "step", "values", "settings", "command", "first", "losses", "phase", "checkpoint", "bytes", "reasons")


@given(st.lists(st.tuples(KINDS, st.dictionaries(st.sampled_from(NAMES), FACTS))))
def test_facts_of_unexpected_types_are_ignored(notes: list[tuple[str, dict[str, Any]]]) -> None:
    """Whatever a journal holds, its notes are taken or left."""
    history = taken(*({**facts, "kind": kind} for kind, facts in notes))
    assert history.last_step >= 0
    assert isinstance(history.command, str)


def test_commands_are_followed() -> None:
    """What became of each, and where the run is paused now; a number that comes again in another session is its own."""
    history = taken(
        began(0, 1.0),
        {
            "kind": "command",
            "time": 2.0,
            "sequence": 1,
            "action": "pause",
            "by": "me",
            "outcome": "accepted",
            "step": 3,
        },
        {"kind": "command", "time": 3.0, "sequence": 1, "action": "pause", "by": "me", "outcome": "done", "step": 4},
        {"kind": "paused", "time": 3.0, "step": 4},
        {"kind": "command", "time": 4.0, "sequence": 2, "action": "save", "by": "me", "outcome": "accepted", "step": 4},
        {
            "kind": "command",
            "time": 5.0,
            "sequence": 2,
            "action": "save",
            "outcome": "done",
            "checkpoint": "checkpoint-4",
        },
        {"kind": "command", "time": 6.0, "sequence": 3, "outcome": "refused", "reason": "it is not a command"},
    )
    assert history.paused_at == 4
    assert [(each.sequence, each.action, each.outcome, each.detail) for each in history.commands.entries] == [
        (1, "pause", "done", "at step 4"),
        (2, "save", "done", "checkpoint-4"),
        (3, "", "refused", "it is not a command"),
    ]
    history.take({"kind": "command", "sequence": 4, "action": "resume", "outcome": "accepted", "step": 4})
    assert history.paused_at is None
    history.take({"kind": "paused", "step": 4})
    history.take(logged(5, 9.0, loss=1.0))
    assert history.paused_at is None
    history.take({"kind": "command", "sequence": 1, "action": "pause", "outcome": "accepted", "step": 5})
    assert [each.sequence for each in history.commands.entries] == [1, 2, 3, 4, 1]


def test_hostile_notes_of_commands_are_bounded() -> None:
    """Facts of any type and length, and more commands than are kept."""
    strange: list[Any] = ["1", None, -1, 1.5, [], 10**30]
    history = taken(began(0, 1.0), *({"kind": "command", "sequence": each} for each in strange))
    assert history.commands.entries == []
    for number in range(MOST_EVENTS + 10):
        history.take({"kind": "command", "sequence": number, "action": ["x" * 9999], "by": {}, "reason": "y" * 9999})
    history.take({"kind": "paused", "step": "x"})
    assert history.commands.dropped == 10
    assert len(history.commands.entries[-1].detail) == 500
    assert history.paused_at == 0


def irregular(step: int, reaction: str, back_to: int | None, **facts: Any) -> dict[str, Any]:
    note = {"kind": "irregular", "step": step, "time": 1.0, "what": "loss", "value": "NaN", "reaction": reaction}
    return {**note, "epoch": 0, "first_sample": 8, "samples": 4, "indices": [3, 1, 4, 1], "back_to": back_to, **facts}


def test_a_step_that_is_left_out_voids_what_followed() -> None:
    """The table has the step and the samples; the curves continue from the step that the run returned to."""
    history = taken(
        began(0, 1.0),
        logged(2, 1.0, loss=2.0),
        logged(4, 1.0, loss=3.0),
        irregular(5, "skip", 2),
        irregular(6, "warn", None, what="spike", value=12.5, indices=None),
        irregular(7, "warn", None, value=None, samples="many"),
        irregular(8, "dance", None),
        logged(4, 2.0, loss=1.0),
    )
    assert points(history, "loss") == [(2, 2.0), (4, 1.0)]
    first, second = history.irregular.entries
    assert (first.step, first.what, first.value, first.done, first.back_to) == (5, "the loss", "NaN", "left out", 2)
    assert first.samples == "8 to 11 of epoch 0 (in the dataset 3, 1, 4, 1)"
    assert (second.what, second.value, second.samples) == ("a loss spike", "12.5", "8 to 11 of epoch 0")


def times(**seconds: Any) -> dict[str, Any]:
    return {"kind": "goodput", "step": 1, "time": 1.0, "seconds": seconds}


def test_the_last_times_count() -> None:
    """Those of the whole run; a session that is not measured leaves none, and what is not sound changes nothing."""
    measured = began(0, 0.0, settings={"log_goodput": True})
    history = taken(measured, times(step=1.0), times(step=3.0, saving=1))
    assert {cause.value: each for cause, each in history.time_spent.items() if each} == {"step": 3.0, "saving": 1.0}
    good = taken(measured, times(step=3.0)).time_spent
    for wrong in ({"step": -1.0}, {"step": "3"}, {"step": math.inf}, {"step": 10**400}, {"step": 0}, {"other": 1e300}):
        assert taken(measured, times(step=3.0), times(**wrong)).time_spent == good
    assert taken(measured, {"kind": "goodput", "seconds": [1]}).time_spent == {}
    assert taken(measured, times(step=3.0), began(2, 9.0, settings={})).time_spent == {}


def test_profiles_are_listed() -> None:
    """With their steps and files; one without steps is not a profile."""
    note = {"kind": "profile", "first": 3, "last": 4, "trace": "profile/a.json.gz", "table": "profile/a.txt"}
    history = taken(note, {**note, "first": -1}, {**note, "last": "4"}, {**note, "trace": "x" * 10_000})
    assert [(each.first, each.last, each.table) for each in history.profiles.entries] == [(3, 4, "profile/a.txt")] * 2
    assert len(history.profiles.entries[1].trace) == 500
