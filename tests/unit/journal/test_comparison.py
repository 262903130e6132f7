"""The first difference between two journals, and its reported cause."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.journal import ObservationKind, RunComparison, compare, timelines

STEPS = 12
Notes = list[dict[str, Any]]


def make_journal(steps: int = STEPS, run: str = "a", start: int = 0, **settings: Any) -> Notes:
    """Return the notes of a run that logs every third step and saves every fourth."""
    notes: Notes = [{"kind": "began", "run": run, "step": start, "settings": settings, "random": f"r{start}"}]
    for step in range(start + 1, steps + 1):
        notes.append(
            {"kind": "step", "step": step, "batches": [f"b{step}"], "learning_rate": 1 / step, "random": f"r{step}"}
        )
        if step % 3 == 0:
            notes.append(
                {"kind": "losses", "first": step - 2, "losses": [1.0 / each for each in (step - 2, step - 1, step)]}
            )
            values = {"loss": 1.0 / step, "grad_norm": 2.0, "train_runtime": 1.5 * len(run), "epoch": step / 6}
            notes.append({"kind": "logged", "step": step, "values": values, "random": f"r{step}"})
        if step % 4 == 0:
            notes.append({"kind": "save", "phase": "began", "checkpoint": f"checkpoint-{step}"})
            weights = {"model.safetensors": f"w{step}"}
            notes.append({"kind": "save", "phase": "published", "checkpoint": f"checkpoint-{step}", "weights": weights})
    return [*notes, {"kind": "ended", "step": steps}]


def compared(one: Notes, other: Notes) -> RunComparison:
    """Compare the last runs of two journals."""
    return compare(list(timelines(one).values())[-1], list(timelines(other).values())[-1])


def at(notes: Notes, kind: str, step: int) -> dict[str, Any]:
    """Return the note of a kind at a step."""
    return next(note for note in notes if note["kind"] == kind and note.get("step") == step)


def test_equal_runs_have_no_difference() -> None:
    """Clock readings and run names are ignored, and the number of compared values is reported."""
    comparison = compared(make_journal(run="a"), make_journal(run="another"))
    assert comparison.first is None
    assert comparison.compared[ObservationKind.DATA] == comparison.compared[ObservationKind.LOSS] == STEPS
    assert comparison.compared[ObservationKind.WEIGHTS] == STEPS // 4
    assert comparison.last == STEPS


def test_the_earliest_cause_within_a_step_is_reported() -> None:
    """If a step's data, randomness and loss all differ, the data is reported."""
    other = make_journal()
    at(other, "step", 5)["batches"] = ["x"]
    at(other, "step", 5)["random"] = "x"
    next(note for note in other if note["kind"] == "losses" and note["first"] == 4)["losses"][1] = 9.0
    comparison = compared(make_journal(), other)
    assert [(divergence.kind, divergence.step) for divergence in comparison.divergences] == [
        (ObservationKind.DATA, 5),
        (ObservationKind.RANDOMNESS, 5),
        (ObservationKind.LOSS, 5),
    ]
    assert comparison.divergences[0].equal_until == 4


@given(step=st.integers(1, STEPS), sort=st.sampled_from(["batches", "random", "learning_rate"]))
def test_the_first_difference_is_found_in_any_note(step: int, sort: str) -> None:
    """A single differing value is reported by kind and step, with the last equal step."""
    other = make_journal()
    at(other, "step", step)[sort] = ["x"] if sort == "batches" else "x"
    first = compared(make_journal(), other).first
    assert first is not None
    sorts = {
        "batches": ObservationKind.DATA,
        "random": ObservationKind.RANDOMNESS,
        "learning_rate": ObservationKind.LEARNING_RATE,
    }
    before = step - 1 if step > 1 or sort == "random" else None
    assert (first.kind, first.step, first.equal_until) == (sorts[sort], step, before)


@given(cut=st.integers(0, STEPS), lost=st.integers(0, STEPS))
def test_a_resumed_run_equals_an_uninterrupted_one(cut: int, lost: int) -> None:
    """Notes after the checkpoint that a run resumed from do not count."""
    first = make_journal(steps=min(cut + lost, STEPS))[:-1]
    for note in first:
        if note["kind"] == "step" and note["step"] > cut:
            note["batches"] = ["of another past"]
    resumed = first + make_journal(start=cut)
    comparison = compared(make_journal(), resumed)
    assert comparison.first is None
    assert comparison.compared[ObservationKind.DATA] == STEPS


def test_runs_with_different_log_steps_are_compared_where_both_logged() -> None:
    """Only common notes count, and a longer run is not a difference."""
    longer = make_journal(steps=24)
    shorter = [note for note in make_journal() if note["kind"] != "step"]
    comparison = compared(longer, shorter)
    assert comparison.first is None
    assert ObservationKind.DATA not in comparison.compared
    assert comparison.last == STEPS


def test_a_journal_of_several_runs_is_split() -> None:
    """Each run has the notes of all its sessions, and runs are in the order of their first start."""
    notes = make_journal(run="a", steps=4)[:-1] + make_journal(run="b") + make_journal(run="a", start=4)
    runs = timelines(notes)
    assert list(runs) == ["a", "b"]
    assert compare(runs["a"], runs["b"]).first is None


def test_different_settings_are_listed() -> None:
    """They are shown first, as a setting may be the cause of a difference."""
    comparison = compared(make_journal(seed=1, lr=0.1), make_journal(seed=2, lr=0.1, extra=None))
    assert comparison.settings == {"seed": (1, 2)}


def test_invalid_notes_are_skipped() -> None:
    """A journal of a newer hexloop, or a damaged one, is read as far as possible."""
    odd: Notes = [
        {"kind": "new"},
        {"kind": "step"},
        {"kind": "logged", "values": 3},
        {"kind": "losses", "losses": None},
        {"kind": "save", "checkpoint": 3, "weights": {}},
        {"kind": "began"},
    ]
    notes = copy.deepcopy(make_journal())
    assert compared(notes, odd[:-1] + notes + odd[:-1]).first is None
    assert timelines(odd)["None"].last_step == 0


def test_what_a_run_gave_up_is_not_compared() -> None:
    """A run that returned to step 4 and left a window out has the observations of the steps that it then took."""
    void = make_journal(steps=8)[:-1]
    for note in void:
        if note.get("step", 0) > 4 and note["kind"] == "step":
            note["batches"] = ["void"]
    returned = {"kind": "irregular", "step": 6, "what": "loss", "reaction": "skip", "back_to": 4}
    again = make_journal(start=4)[1:]
    assert compared([*void, returned, *again], make_journal()).first is None
    assert compared([*void, {**returned, "back_to": None}, *again], make_journal()).first is None
    assert compared([*void, returned], make_journal()).last == 4


def test_runs_without_a_common_step_are_not_compared() -> None:
    """Both log, but at other steps."""
    began: dict[str, Any] = {"kind": "began", "run": "a", "step": 0}
    one, other = ([began, {"kind": "logged", "step": step, "values": {"loss": 1.0}}] for step in (1, 2))
    comparison = compared(one, other)
    assert (comparison.compared, comparison.divergences) == ({}, ())
