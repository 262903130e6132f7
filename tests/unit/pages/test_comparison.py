"""Means and bands over groups of runs, and what differs between runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages.comparison import MOST_PARTS, binned, differences_section, groupings_of, means_of
from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.reading import RunRecord
from hexloop.app.series import Series


def record(label: str, settings: dict[str, Any], values: list[tuple[int, dict[str, Any]]] = ()) -> RunRecord:  # type: ignore[assignment]
    history = RunHistory(label)
    history.take({"kind": "began", "step": 0, "settings": settings, "time": 1.0})
    for step, given_values in values:
        history.take({"kind": "logged", "step": step, "values": given_values, "time": 2.0 + step})
    return RunRecord(label, label, f"/runs/{label}", history, "journal.jsonl")


def sweep() -> list[RunRecord]:
    """Two learning rates with three seeds each."""
    return [
        record(
            f"{rate}-{seed}",
            {"rate": rate, "seed": seed, "same": 1},
            [(step, {"loss": rate * seed + step}) for step in (1, 2)],
        )
        for rate in (0.1, 0.2)
        for seed in (0, 1, 2)
    ]


def test_repetitions_with_other_seeds_are_grouped_first() -> None:
    """By all other arguments that differ, then by each of them, and all together last."""
    groupings = groupings_of(sweep())
    assert [each.name for each in groupings] == ["equal arguments, seeds aside", "rate", "all runs"]
    assert list(groupings[0].groups) == ["rate=0.1"] * 3 + ["rate=0.2"] * 3
    assert set(groupings[-1].groups) == {"all runs"}


def test_groups_that_have_one_short_name_are_told_apart() -> None:
    """Where only arguments that the name leaves out differ."""
    settings = [{"a": 1, "b": 1, "c": 1, "d": 1, "e": each // 2, "seed": each} for each in range(4)]
    different = [
        {**each, **({"a": 2, "b": 2, "c": 2, "d": 2} if number > 1 else {})} for number, each in enumerate(settings)
    ]
    groups = groupings_of([record(str(number), each) for number, each in enumerate(different)])[0].groups
    assert groups[0] == groups[1] != groups[2] == groups[3]
    close = [{"a": number // 4, "b": 0, "c": 0, "d": 0, "e": number // 2, "seed": number} for number in range(8)]
    groups = groupings_of([record(str(number), each) for number, each in enumerate(close)])[0].groups
    assert len(set(groups)) == 4


def test_means_have_the_values_of_each_run() -> None:
    """In parts of the steps, with nothing for a run that has none there."""
    runs = [*sweep(), record("short", {"rate": 0.1, "seed": 9, "same": 1}, [(1, {"loss": 7.0})])]
    means = means_of(runs)
    (loss,) = [each for each in means["values"] if each["name"] == "loss"]
    assert loss["steps"] == [1, 2]
    assert loss["runs"][5] == [pytest.approx(1.4), pytest.approx(2.4)]
    assert loss["runs"][6] == [7.0, None]
    assert means_of(runs[:1]) == {}


def test_what_differs_is_listed() -> None:
    """Arguments and last values that are not equal, and nothing else; nothing for one run."""
    text = str(differences_section(sweep()[:2]))
    assert "seed" in text
    assert "loss" in text
    assert "same" not in text
    assert str(differences_section(sweep()[:1])) == ""
    assert "equal arguments" in str(differences_section([record("a", {"x": 1}), record("b", {"x": 1})]))


curves = st.lists(
    st.dictionaries(st.integers(0, 2_000), st.floats(-1e6, 1e6), max_size=300).map(
        lambda points: sorted(points.items())
    ),
    min_size=1,
    max_size=4,
)


@given(curves)
def test_parts_hold_every_point(drawn: list[list[tuple[int, float]]]) -> None:
    """The mean of a part is that of the points between its end and the one before; no point is in two."""
    series = [Series() for _ in drawn]
    for one, points in zip(series, drawn, strict=True):
        for step, value in points:
            one.add(step, value)
    steps, rows = binned(series)
    assert len(steps) <= MOST_PARTS
    assert steps == sorted(set(steps))
    together = {step for points in drawn for step, _ in points}
    if len(together) <= MOST_PARTS:
        assert steps == sorted(together)
    for row, points in zip(rows, drawn, strict=True):
        assert len(row) == len(steps)
        if len(together) <= MOST_PARTS:
            shown = {step: value for step, value in zip(steps, row, strict=True) if value is not None}
            assert shown == pytest.approx(dict(points), rel=1e-5)
        elif points:
            known = [value for value in row if value is not None]
            assert (
                min(value for _, value in points) - 1e-3 <= np.mean(known) <= max(value for _, value in points) + 1e-3
            )
