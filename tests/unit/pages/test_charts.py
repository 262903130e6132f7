"""What the charts of a run are drawn over, the system metrics among them, and the points that a zoom shows."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages.charts import (
    AXIS_POINTS,
    MOST_KEYS,
    axes_of,
    chart_data,
    chart_shown,
    charts_of,
    finer_points,
    system_charts,
)
from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.reading import RunRecord, read_runs
from hexloop.app.pages.system import RankMetrics, SystemMetrics
from hexloop.app.series import MOST_POINTS
from tests.end_to_end.recorded_run import INFORMATION, record_run


def record(*notes: dict[str, Any], **parts: Any) -> RunRecord:
    history = RunHistory("a")
    for note in notes:
        history.take(note)
    return RunRecord("run", "run", "/runs/run", history, "journal.jsonl", **parts)


def began(time: float, step: int = 0) -> dict[str, Any]:
    return {"kind": "began", "run": "a", "step": step, "time": time}


def logged(step: int, time: float, samples: Any = None, **values: Any) -> dict[str, Any]:
    known = {} if samples is None else {"samples": samples}
    return {"kind": "logged", "step": step, "time": time, "values": values, **known}


def test_axes_of_a_run() -> None:
    """Seconds since its start, samples, tokens and epochs at the steps of logs, from nothing at the first step."""
    notes = [logged(step, 100.0 + 2 * step, 8 * step, loss=1.0, epoch=step / 4, num_input_tokens_seen=5 * step)
             for step in (1, 2, 4)]  # fmt: skip
    assert axes_of(record(began(100.0), *notes)) == {
        "time": [[0, 1, 2, 4], [0.0, 2.0, 4.0, 8.0]],
        "samples": [[0, 1, 2, 4], [0.0, 8.0, 16.0, 32.0]],
        "tokens": [[0, 1, 2, 4], [0.0, 5.0, 10.0, 20.0]],
        "epoch": [[0, 1, 2, 4], [0.0, 0.25, 0.5, 1.0]],
    }
    assert axes_of(record(began(100.0), logged(1, 101.0, loss=1.0))) == {"time": [[0, 1], [0.0, 1.0]]}
    assert axes_of(record()) == {}


def test_positions_are_no_curves() -> None:
    """They are what the others are drawn over."""
    shown = record(began(1.0), *(logged(step, 1.0 + step, step, loss=1.0, epoch=0.1 * step) for step in (1, 2, 3)))
    assert [chart.title for chart in charts_of([shown])] == ["loss", "steps per second"]


def test_what_a_resumed_run_repeated_is_no_place() -> None:
    """The axis has the steps and times of what counts."""
    shown = record(began(0.0), *(logged(step, float(step), 2 * step) for step in range(1, 7)), began(50.0, 3),
                   logged(4, 51.0, 8), logged(5, 52.0, 10))  # fmt: skip
    assert axes_of(shown)["time"] == [[0, 1, 2, 3, 4, 5], [0.0, 1.0, 2.0, 3.0, 51.0, 52.0]]
    assert axes_of(shown)["samples"] == [[0, 1, 2, 3, 4, 5], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]]


ODD = st.sampled_from([0, 3, -5, 2**60, 0.5, math.inf, -math.inf, math.nan, 1e308, -1e308, "NaN", None, "x"])


@given(st.lists(st.tuples(st.integers(0, 9), ODD, ODD, ODD), max_size=12), ODD)
def test_axes_ascend_and_are_finite(notes: list[tuple[int, Any, Any, Any]], start: Any) -> None:
    """Whatever a journal has: a browser can interpolate them."""
    shown = record(began(start), *(logged(step, time, one, epoch=other, loss=1.0) for step, time, one, other in notes))
    for steps, values in axes_of(shown).values():
        assert len(steps) == len(values) > 1
        assert steps == sorted(set(steps))
        assert values == sorted(set(values))
        assert all(map(math.isfinite, values))
    json.dumps([axes_of(shown), [chart_data(chart, "x") for chart in charts_of([shown])]], allow_nan=False)


def test_a_long_run_has_a_short_axis() -> None:
    """Which ends where the run does."""
    shown = record(began(0.0), *(logged(step, float(step), loss=1.0) for step in range(1, 5_001)))
    steps, values = axes_of(shown)["time"]
    assert len(steps) <= AXIS_POINTS + 1
    assert (steps[-1], values[-1]) == (5_000, 5_000.0)


def rank(number: int, host: str = "one", count: int = 5, **values: float) -> RankMetrics:
    """Return what was measured of a rank, with the same values every second."""
    times, steps = array("d", range(count)), array("q", range(count))
    return RankMetrics(number, host, times, steps, {name: array("d", [each] * count) for name, each in values.items()})


def test_the_system_of_each_rank() -> None:
    """A curve for each rank of its process and its GPU; for each machine of what its ranks share."""
    ranks = [rank(0, cpu=1.0, gpu_use=90.0), rank(1, cpu=1.0, gpu_use=80.0), rank(2, "two", cpu=5.0, gpu_use=70.0)]
    charts = {chart.title: chart for chart in system_charts([record(began(0.0), system=SystemMetrics(ranks))])}
    assert {title: [curve.name for curve in chart.curves] for title, chart in charts.items()} == {
        "CPU use of the machine": ["one", "two"],
        "GPU use": ["rank 0", "rank 1", "rank 2"],
    }
    assert charts["GPU use"].unit == "percent"
    first = chart_data(charts["GPU use"], "x")["curves"][0]
    assert first["points"] == [(step, 90.0) for step in range(5)]
    assert first["times"] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_how_much_memory_there_is() -> None:
    """Is in the title, if it is the same everywhere."""
    for totals, title in (((8e9, 8e9), "GPU memory in use, of 8 GB"), ((8e9, 4e9), "GPU memory in use")):
        ranks = [rank(number, gpu_memory=1e9, gpu_memory_total=total) for number, total in enumerate(totals)]
        assert [chart.title for chart in system_charts([record(system=SystemMetrics(ranks))])] == [title]


def test_what_was_not_measured_is_left_out() -> None:
    """A chart without a value, and the samples without one."""
    some = rank(0, gpu_use=50.0, cpu=math.nan)
    some.values["gpu_use"][2] = math.nan
    (chart,) = system_charts([record(began(0.0), system=SystemMetrics([some]))])
    assert [step for step, _ in chart_data(chart, "x")["curves"][0]["points"]] == [0, 1, 3, 4]


def test_many_ranks_stay_small() -> None:
    """Fewer points each, and a legend that ends."""
    ranks = [rank(number, f"host {number}", 2_000, gpu_power=300.0 + number) for number in range(64)]
    (chart,) = system_charts([record(began(0.0), system=SystemMetrics(ranks))])
    assert sum(len(curve["points"]) for curve in chart_data(chart, "x")["curves"]) <= 50_000
    legend = chart_shown(chart, "x", ["run"])["legend"]
    assert [each["name"] for each in legend][-1] == "and 56 more"
    assert len(legend) == MOST_KEYS + 1


@pytest.mark.parametrize(("first", "last"), [(100, 120), (0, 0), (2_990, 9**15)])
def test_a_zoom_shows_all_points(first: int, last: int, tmp_path: Path) -> None:
    """Of a chart between two steps, and the ones beside them, so that lines reach the edges."""
    (shown,) = read_runs([str(record_run(tmp_path / "run", 3_000))], True)
    (loss,) = finer_points([shown], "loss", first, last)
    wanted = [step for step in range(1, 3_001) if first - 1 <= step <= last + 1]
    assert [step for step, _ in loss["points"]] == wanted
    assert len(finer_points([shown], "loss", 0, 3_000)[0]["points"]) <= MOST_POINTS
    assert len(finer_points([shown], "loss", 0, 3_000, 10_000)[0]["points"]) == 3_000
    assert finer_points([shown], "nothing", 0, 3_000) == []


def test_a_recorded_run_has_its_information(tmp_path: Path) -> None:
    """And its system metrics, read from its folder."""
    (shown,) = read_runs([str(record_run(tmp_path / "run", 30))], True)
    assert shown.history.information.host == INFORMATION["host"]["name"]
    assert [each.rank for each in shown.system.ranks] == [0, 1]
    assert "GPU use" in [chart.title for chart in charts_of([shown])]
