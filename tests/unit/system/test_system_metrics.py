"""The lines of the files of system metrics: what they may hold, and which are kept when there are many."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages.system import system_metrics_in
from hexloop.domain.system_metrics import (
    METRICS,
    Sample,
    SessionStart,
    line_of,
    sample_entry,
    start_entry,
    thinned,
)

TIMES = st.floats(0, 1e10)
STEPS = st.integers(0, 2**53 - 1)
VALUES = st.dictionaries(st.sampled_from(list(METRICS)), st.floats(-1e15, 1e15))
SAMPLES = st.builds(Sample, TIMES, STEPS, VALUES)
NAMES = st.text(st.characters(codec="utf-8"), max_size=50)
STARTS = st.builds(SessionStart, NAMES, STEPS, NAMES, STEPS, STEPS, TIMES)


@given(SAMPLES | STARTS)
def test_a_line_is_read_back(line: Sample | SessionStart) -> None:
    """Times to the millisecond, values to two digits."""
    if isinstance(line, SessionStart):
        assert line_of(json.loads(json.dumps(start_entry(line)))) == line
        return
    found = line_of(json.loads(json.dumps(sample_entry(line))))
    assert isinstance(found, Sample)
    assert (found.step, found.values.keys()) == (line.step, line.values.keys())
    assert math.isclose(found.time, line.time, abs_tol=1e-3)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_anything_else_is_not_a_line(value: object) -> None:
    """Whatever JSON holds, nothing is raised."""
    line_of(value)


@pytest.mark.parametrize(
    "changed",
    [{"time": "now"}, {"time": math.inf}, {"step": -1}, {"step": 1.5}, {"step": True}, {"kind": "began"}],
)
def test_a_sample_with_a_wrong_fact_is_left_out(changed: dict[str, object]) -> None:
    """The time and the step are needed."""
    assert line_of({"time": 1.0, "step": 1, "cpu": 2.0, **changed}) is None


def test_values_that_are_not_metrics_are_left_out() -> None:
    """The rest of the line counts."""
    found = line_of({"time": 1.0, "step": 1, "cpu": 2.0, "memory": "much", "own": 3.0, "disk_free": math.nan})
    assert found == Sample(1.0, 1, {"cpu": 2.0})


@given(st.lists(st.lists(st.floats(0.001, 1000), max_size=60), max_size=8), st.integers(8, 60))
def test_few_lines_are_kept_evenly(sessions: list[list[float]], most: int) -> None:
    """At most so many, in order, and none closer to the one before than the spacing."""
    lines: list[Sample | SessionStart] = []
    time = 0.0
    for steps in sessions:
        lines.append(SessionStart("run", 0, "host", 1, 0, time))
        for step in steps:
            time += step
            lines.append(Sample(time, 0, {}))
    kept, spacing = thinned(lines, most)
    assert len(kept) <= most
    chosen = set(map(id, kept))
    assert [id(each) for each in lines if id(each) in chosen] == list(map(id, kept))
    before: float | None = None
    for each in kept:
        if isinstance(each, Sample) and before is not None:
            assert each.time - before >= spacing
        before = each.time if isinstance(each, Sample) else None


def test_a_file_is_read_for_its_run(tmp_path: Path) -> None:
    """Samples of other runs in the folder, and lines that are not sound, are left out."""
    folder = tmp_path / ".hexloop"
    folder.mkdir()
    lines = [
        json.dumps(start_entry(SessionStart("one", 3, "host", 1, 0, 1.0))),
        json.dumps(sample_entry(Sample(2.0, 5, {"cpu": 1.0}))),
        "cut off {",
        json.dumps(sample_entry(Sample(3.0, 6, {"cpu": 2.0, "gpu_use": 4.0}))),
        json.dumps(sample_entry(Sample(2.5, 7, {"cpu": 9.0}))),  # a clock that was set back
        json.dumps(start_entry(SessionStart("two", 3, "other host", 1, 0, 4.0))),
        json.dumps(sample_entry(Sample(5.0, 1, {"cpu": 3.0}))),
    ]
    (folder / "system-3.jsonl").write_text("\n".join(lines))
    (folder / "system-4.jsonl").symlink_to(folder / "system-3.jsonl")
    (found,) = system_metrics_in(tmp_path, "one").ranks
    assert (found.rank, found.host, found.starts) == (3, "host", [1.0])
    assert (list(found.times), list(found.steps)) == ([2.0, 3.0], [5, 6])
    assert list(found.values["cpu"]) == [1.0, 2.0]
    assert math.isnan(found.values["gpu_use"][0])
    assert system_metrics_in(tmp_path, "three").ranks == []
