"""Timelines keep observations in columns; what they hold and how they compare is as if each was kept by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain import journal
from hexloop.domain.journal import ObservationKind, Timeline, compare, timelines

Key = tuple[int, ObservationKind, str]


def one_by_one(notes: list[dict[str, Any]]) -> dict[str, dict[Key, Any]]:
    """Return the observations of each run, as the specification of the journal says, one after the other."""
    runs: dict[str, dict[Key, Any]] = {}
    present: str | None = None
    for note in notes:
        if note["kind"] == "began":
            present = str(note["run"])
            kept = runs.setdefault(present, {})
            runs[present] = {key: value for key, value in kept.items() if key[0] <= integer(note["step"])}
        if present is not None:
            runs[present].update(observed(note))
    return runs


def observed(note: dict[str, Any]) -> dict[Key, Any]:
    kind, step, found = note["kind"], integer(note.get("step")), dict[Key, Any]()
    values = note.get("values")
    if kind == "step":
        for number, each in enumerate(note["batches"], 1):
            found[step, ObservationKind.DATA, f"micro-batch {number}"] = each
        found[step, ObservationKind.LEARNING_RATE, "of the step"] = note["learning_rate"]
    elif kind == "losses":
        for number, loss in enumerate(note["losses"] or ()):
            found[integer(note["first"]) + number, ObservationKind.LOSS, "of the step"] = loss
    elif kind == "logged" and isinstance(values, Mapping):
        known = {name: value for name, value in values.items() if name in KINDS}
        for name, value in known.items():
            found[step, KINDS[name], name] = value
        if "random" in note:
            at = f"at the log of {min(known, default='nothing')}"
            found[step, ObservationKind.RANDOMNESS, at] = note["random"]
    elif kind == "save" and note["checkpoint"] == "checkpoint-3" and note["weights"] is not None:
        found[3, ObservationKind.WEIGHTS, "in the checkpoint"] = note["weights"]
    if kind in ("step", "began") and "random" in note:
        when = "after the step" if kind == "step" else "when it resumed" if step else "before the first step"
        found[step, ObservationKind.RANDOMNESS, when] = note["random"]
    return found


def integer(value: Any) -> int:
    return value if isinstance(value, int) else 0


KINDS = {
    "loss": ObservationKind.LOSS,
    "grad_norm": ObservationKind.GRADIENTS,
    "learning_rate": ObservationKind.LEARNING_RATE,
    "eval_a": ObservationKind.METRICS,
}

steps = st.one_of(st.integers(0, 12), st.integers(0, 12), st.sampled_from([None, True, "3", 2**70, -2]))
facts = st.sampled_from([0.5, 1.0, 1, 2, "NaN", "a", None, [1], True])
logs = st.dictionaries(st.sampled_from([*KINDS, "x_runtime", "a_mem_b"]), facts, max_size=4)
random = st.sampled_from([{}, {"random": "u"}, {"random": "v"}])


def noted(kind: str, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda facts, state: {"kind": kind, **facts, **state}, st.fixed_dictionaries(given), random)


notes = st.lists(
    st.one_of(
        noted("began", run=st.sampled_from("ab"), step=steps, settings=st.just({})),
        noted("step", step=steps, batches=st.lists(st.sampled_from("xy"), max_size=3), learning_rate=facts),
        noted("losses", first=steps, losses=st.one_of(st.none(), st.lists(facts, max_size=4))),
        noted("logged", step=steps, values=st.one_of(st.none(), logs)),
        noted(
            "save", checkpoint=st.sampled_from(["checkpoint-3", "x", 3]), weights=st.sampled_from([None, {"m": "1"}])
        ),
        st.sampled_from([{"kind": "new"}, {"kind": "ended", "step": 4}]),
    ),
    max_size=25,
)


def flat(timeline: Timeline) -> dict[Key, Any]:
    return {
        (step, kind, name): value
        for (kind, name), column in timeline.observations().items()
        for step, value in zip(column.steps, column.values, strict=True)
    }


@given(notes)
def test_columns_hold_what_single_observations_would(notes: list[dict[str, Any]]) -> None:
    """Whatever resumes, repeats and replaces what; steps of a column ascend."""
    expected, found = one_by_one(notes), timelines(notes)
    assert {name: flat(each) for name, each in found.items()} == expected
    for each in found.values():
        assert all(list(column.steps) == sorted({*column.steps}) for column in each.observations().values())
        assert each.last_step == max((key[0] for key in flat(each)), default=0)


@given(notes, notes, st.booleans())
def test_the_first_difference_is_that_of_single_observations(
    one: list[dict[str, Any]], other: list[dict[str, Any]], similar: bool
) -> None:
    """Of each kind, with the number of steps that were compared, and the last equal step before."""
    began = {"kind": "began", "run": "a", "step": 0, "settings": {}}
    one, other = [began, *one], [began, *(one[:9] + other[:3] + one[9:] if similar else other)]
    ours, theirs = one_by_one(one)["a"], one_by_one(other)["a"]
    common = sorted(ours.keys() & theirs.keys())
    comparison = compare(timelines(one)["a"], timelines(other)["a"])
    for kind in ObservationKind:
        of_kind = [key for key in common if key[1] is kind]
        first = next((key for key in of_kind if ours[key] != theirs[key]), None)
        found = next((each for each in comparison.divergences if each.kind is kind), None)
        assert comparison.compared.get(kind, 0) == len({step for step, _, _ in of_kind})
        if first is None:
            assert found is None
            continue
        equal = [key[0] for key in of_kind if key[0] < first[0]]
        assert found is not None
        assert (found.step, found.name, found.one, found.other) == (first[0], first[2], ours[first], theirs[first])
        assert found.equal_until == max(equal, default=None)
    assert comparison.last == max((step for step, _, _ in common), default=0)


def test_what_comes_before_any_run_is_ignored() -> None:
    """Also a return to an earlier step."""
    back: dict[str, Any] = {"kind": "irregular", "step": 5, "back_to": 2}
    assert timelines([back, {"kind": "step", "step": 1, "batches": [], "learning_rate": 1.0}]) == {}


def test_names_beyond_a_number_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal with a new name in every note takes no memory for each."""
    monkeypatch.setattr(journal, "MOST_NAMES", 2)
    notes: list[dict[str, Any]] = [
        {"kind": "logged", "step": step, "values": {f"name {step}": 1.0}} for step in range(1, 6)
    ]
    (timeline,) = timelines([{"kind": "began", "run": "a", "step": 0}, *notes]).values()
    assert (len(timeline.columns), timeline.left_out) == (2, 3)
