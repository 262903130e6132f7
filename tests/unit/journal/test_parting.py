"""At which step two journals part, and what is said to have parted first."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.journal import ObservationKind, RunComparison, compare, timelines

STEPS = 12
Notes = list[dict[str, Any]]


def journal(steps: int = STEPS, run: str = "a", start: int = 0, **settings: Any) -> Notes:
    """What a run notes that logs at every third step, saves at every fourth, and notes every step."""
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
    """The last runs of two journals, compared."""
    return compare(list(timelines(one).values())[-1], list(timelines(other).values())[-1])


def at(notes: Notes, kind: str, step: int) -> dict[str, Any]:
    """The note of a kind at a step."""
    return next(note for note in notes if note["kind"] == kind and note.get("step") == step)


def test_equal_runs_do_not_part() -> None:
    """Clock readings and the runs' names apart, all is equal, and it is said how much was compared."""
    comparison = compared(journal(run="a"), journal(run="another"))
    assert comparison.first is None
    assert comparison.compared[ObservationKind.DATA] == comparison.compared[ObservationKind.LOSS] == STEPS
    assert comparison.compared[ObservationKind.WEIGHTS] == STEPS // 4
    assert comparison.last == STEPS


def test_what_comes_first_in_a_step_parted_first() -> None:
    """Where a step's data, randomness and loss all differ, it is the data."""
    other = journal()
    at(other, "step", 5)["batches"] = ["x"]
    at(other, "step", 5)["random"] = "x"
    next(note for note in other if note["kind"] == "losses" and note["first"] == 4)["losses"][1] = 9.0
    comparison = compared(journal(), other)
    assert [(parting.kind, parting.step) for parting in comparison.divergences] == [
        (ObservationKind.DATA, 5),
        (ObservationKind.RANDOMNESS, 5),
        (ObservationKind.LOSS, 5),
    ]
    assert comparison.divergences[0].equal_until == 4


@given(step=st.integers(1, STEPS), sort=st.sampled_from(["batches", "random", "learning_rate"]))
def test_the_first_difference_is_found_wherever_it_is(step: int, sort: str) -> None:
    """One fact that differs is named by its sort and step, with the last step that was equal."""
    other = journal()
    at(other, "step", step)[sort] = ["x"] if sort == "batches" else "x"
    first = compared(journal(), other).first
    assert first is not None
    sorts = {
        "batches": ObservationKind.DATA,
        "random": ObservationKind.RANDOMNESS,
        "learning_rate": ObservationKind.LEARNING_RATE,
    }
    before = step - 1 if step > 1 or sort == "random" else None
    assert (first.kind, first.step, first.equal_until) == (sorts[sort], step, before)


@given(cut=st.integers(0, STEPS), lost=st.integers(0, STEPS))
def test_a_run_that_was_resumed_equals_one_that_was_not(cut: int, lost: int) -> None:
    """What was noted after the checkpoint that a run went back to does not count, whatever it was."""
    first = journal(steps=min(cut + lost, STEPS))[:-1]
    for note in first:
        if note["kind"] == "step" and note["step"] > cut:
            note["batches"] = ["of another past"]
    resumed = first + journal(start=cut)
    comparison = compared(journal(), resumed)
    assert comparison.first is None
    assert comparison.compared[ObservationKind.DATA] == STEPS


def test_runs_that_log_at_other_steps_are_compared_where_both_did() -> None:
    """Only what both tell of counts; one that is longer does not differ for that."""
    longer = journal(steps=24)
    shorter = [note for note in journal() if note["kind"] != "step"]
    comparison = compared(longer, shorter)
    assert comparison.first is None
    assert ObservationKind.DATA not in comparison.compared
    assert comparison.last == STEPS


def test_a_journal_of_several_runs_is_told_apart() -> None:
    """Each run has the notes between its beginnings, in the order in which they first began."""
    notes = journal(run="a", steps=4)[:-1] + journal(run="b") + journal(run="a", start=4)
    runs = timelines(notes)
    assert list(runs) == ["a", "b"]
    assert compare(runs["a"], runs["b"]).first is None


def test_settings_that_differ_are_listed() -> None:
    """So that whoever reads it need not look further where the cause is a setting."""
    comparison = compared(journal(seed=1, lr=0.1), journal(seed=2, lr=0.1, extra=None))
    assert comparison.settings == {"seed": (1, 2)}


def test_notes_that_make_no_sense_are_passed_over() -> None:
    """A journal of a later hexloop, or a damaged one, is read as far as it can be."""
    odd: Notes = [
        {"kind": "new"},
        {"kind": "step"},
        {"kind": "logged", "values": 3},
        {"kind": "losses", "losses": None},
        {"kind": "save", "checkpoint": 3, "weights": {}},
        {"kind": "began"},
    ]
    notes = copy.deepcopy(journal())
    assert compared(notes, odd[:-1] + notes + odd[:-1]).first is None
    assert timelines(odd)["None"].last_step == 0
