"""The charts of a page: which curves share one, what each says in words, and the data that its script draws."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from hexloop.app.checkpoint_rows import format_bytes
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.system import RankMetrics
from hexloop.app.pages.templates import clean
from hexloop.app.series import MOST_GAPS, MOST_POINTS, Series, reduced
from hexloop.domain.evaluation import UTILISATION
from hexloop.domain.journal_index import EPOCH, LOSS_OF_STEP, SAMPLES, TOKENS
from hexloop.domain.state import Cause
from hexloop.domain.system_metrics import METRICS

COLOURS = 20
"""How many colours curves have, defined in `report.css` for both themes.

The first eight are those of Okabe and Ito (2008). Each further one lies as far as possible from those before it, in
CIELAB, as people see it with and without deuteranopia.
"""

SYSTEM = "System"

GROUPS = ("Training", "Evaluation", "Throughput", "Memory", SYSTEM, "Other values")
"""The headings of the charts, in order."""

SPEED_OF_STEPS = "steps per second"
"""The curve that is computed from the times of the logs."""

SHARES_OF_TIME = frozenset(cause.logged_as for cause in Cause)
"""The names of what the time between two logs went into, which share a chart."""

SHARES = "share of the time in percent"

MOST_CHARTS = 60
"""How many charts a page has."""

MOST_KEYS = 8
"""How many curves the legend of a chart names."""

AXES = {"time": "time since the start", "samples": "samples", "tokens": "tokens", "epoch": "epochs"}
"""What charts are drawn over besides steps, by name, in words."""

AXIS_POINTS = 1_000
"""How many points of an axis are in a page; between them it is interpolated."""

LARGEST_PLACE = 1e15
"""A place on an axis from which on it is not one."""

SYSTEM_POINTS, FEWEST_SYSTEM_POINTS = 40_000, 50
"""How many points the curves of a system metric have together, and each of them at least, if it has as many."""

OF_THE_MACHINE = ("cpu", "memory", "disk_", "network_")
"""The starts of the names of metrics that are the same for all ranks on a machine."""

TOTALS = {"memory": "memory_total", "gpu_memory": "gpu_memory_total"}
"""From a metric to the one that tells how much of it there is."""

DIGITS = 7
"""Significant digits of the values in a page."""


@frozen
class Curve:
    """A curve of a run.

    run: the index of the run. name: that of the logged value, or of a rank or a machine. times: of the points, in
    seconds since the start of the run, if they were not taken at logs.
    """

    run: int
    name: str
    series: Series
    times: Sequence[float] | None = None


@frozen
class Chart:
    """Curves that share a chart, under a heading of `GROUPS`. unit: of the values; empty if it has none."""

    group: str
    title: str
    curves: Sequence[Curve]
    unit: str = ""


def charts_of(records: Sequence[RunRecord]) -> list[Chart]:
    """Return the charts for runs, in the order of `GROUPS`: of logged values, and of what was measured of machines."""
    return sorted([*logged_charts(records), *system_charts(records)], key=lambda chart: GROUPS.index(chart.group))


def logged_charts(records: Sequence[RunRecord]) -> list[Chart]:
    """Return a chart for each logged value, with those of all runs; losses share one."""
    found: dict[tuple[int, int, str], list[Curve]] = {}
    for number, record in enumerate(records):
        for name, series in curves_of(record).items():
            if len(series) or len(series.gaps):
                found.setdefault(_place(name), []).append(Curve(number, name, series))
    charts = [Chart(GROUPS[group], title, curves) for (group, _, title), curves in sorted(found.items())]
    return [chart for chart in charts if any(len(curve.series) > 1 for curve in chart.curves)] or charts


def curves_of(record: RunRecord) -> dict[str, Series]:
    """Return the curves of a run by name, with its speed, without what is a figure for the whole run."""
    curves = {
        name: series
        for name, series in record.history.series.items()
        if not name.startswith("train_") or len(series) > 1
    }
    speed = _speed(record.history.times)
    return curves | ({SPEED_OF_STEPS: speed} if len(speed) > 1 else {})


def chart_shown(chart: Chart, identifier: str, labels: Sequence[str]) -> dict[str, Any]:
    """Return what the template shows of a chart besides its curves: a legend, and the same in words and figures."""
    names = dict.fromkeys(curve.name for curve in chart.curves)
    several = len(names) > 1
    words = "; ".join(_sentence(curve, labels, several) for curve in chart.curves[:4])
    return {
        "identifier": identifier,
        "title": chart.title,
        "words": f"{chart.title}. {words}.",
        "legend": list(_keys(list(names), len(labels) > 1)) if several else [],
        "head": ("run" if not several else "run and value", "first", "last", "lowest", "highest", "points"),
        "rows": list(_rows(chart, labels, several)),
    }


def chart_data(chart: Chart, identifier: str) -> dict[str, Any]:
    """Return what the script needs to draw a chart, with at most `MOST_POINTS` points a curve."""
    names = list(dict.fromkeys(curve.name for curve in chart.curves))
    return {
        "id": identifier,
        "title": clean(chart.title),
        "unit": chart.unit,
        "curves": [
            {
                "run": curve.run,
                "name": clean(curve.name),
                "dash": names.index(curve.name),
                "points": points(curve.series) if curve.times is None else all_points(curve.series),
                "count": len(curve.series),
                "gaps": curve.series.gaps[:MOST_GAPS].tolist(),
                **({} if curve.times is None else {"times": [round(time, 1) for time in curve.times]}),
            }
            for curve in chart.curves
        ],
    }


def finer_points(
    records: Sequence[RunRecord], title: str, first: int, last: int, most: int = MOST_POINTS
) -> list[dict[str, Any]]:
    """Return the points of the curves of a chart between two steps, at most `most` each, with those next to them."""
    chart = next((each for each in logged_charts(records) if clean(each.title) == title), None)
    found = []
    for curve in () if chart is None else chart.curves:
        steps = curve.series.steps
        start, end = max(bisect_left(steps, first) - 1, 0), bisect_right(steps, last) + 1
        part = Series(steps[start:end], curve.series.values[start:end])
        found.append({"run": curve.run, "name": clean(curve.name), "points": points(part, most)})
    return found


def axes_of(record: RunRecord) -> dict[str, list[list[float]]]:
    """Return what the charts of a run can be drawn over: by the names of `AXES`, steps and a value for each."""
    history, (began, first) = record.history, _start_of(record)
    known = {"samples": SAMPLES, "tokens": TOKENS, "epoch": EPOCH}
    axes = {name: _axis(history.positions.get(logged_as, Series())) for name, logged_as in known.items()}
    if began is not None:
        axes = {"time": _axis(history.times, began, first), **axes}
    return {name: axis for name, axis in axes.items() if len(axis[0]) > 1}


def _start_of(record: RunRecord) -> tuple[float | None, int]:
    """Return when a run first started, in seconds since the epoch, None if it is not known, and the step at that."""
    for session in record.history.sessions.entries:
        if session.began is not None and math.isfinite(session.began):
            return session.began, session.first
    return None, 0


def _axis(series: Series, start: float = 0.0, first: int = 0) -> list[list[float]]:
    """Return at most `AXIS_POINTS` steps, in equal distances, and the values at them less `start`, which ascend.

    first: the step at which the value is `start`.
    """
    steps: list[float] = [first]
    values = [0.0]
    count = len(series)
    for number in np.linspace(0, count - 1, min(count, AXIS_POINTS)).astype(np.int64).tolist():
        value = float(f"{series.values[number] - start:.9g}")
        if series.steps[number] > steps[-1] and values[-1] < value < LARGEST_PLACE:
            steps.append(series.steps[number])
            values.append(value)
    return [steps, values]


def system_charts(records: Sequence[RunRecord]) -> list[Chart]:
    """Return the charts of what was measured of machines, processes and GPUs: a curve for each rank or machine."""
    charts = []
    for name, metric in METRICS.items():
        if name in TOTALS.values():
            continue
        measured = [
            (number, record, rank)
            for number, record in enumerate(records)
            for rank in _measured(record.system.ranks, name)
        ]
        most = max(SYSTEM_POINTS // max(len(measured), 1), FEWEST_SYSTEM_POINTS)
        curves = [curve for each in measured if len((curve := _system_curve(*each, name, most)).series)]
        if curves:
            charts.append(Chart(SYSTEM, f"{metric.title}{_of_total(records, name)}", curves, metric.unit))
    return charts


def _measured(ranks: Sequence[RankMetrics], name: str) -> list[RankMetrics]:
    """Return the ranks for which a metric is drawn: of those on one machine the first, if it is of the machine."""
    found = [rank for rank in ranks if name in rank.values]
    if not name.startswith(OF_THE_MACHINE):
        return found
    return list({rank.host: rank for rank in reversed(found)}.values())[::-1]


def _system_curve(number: int, record: RunRecord, rank: RankMetrics, name: str, most: int) -> Curve:
    values = np.array(rank.values[name])
    known = np.flatnonzero(np.isfinite(values))
    places, kept = reduced(known.tolist(), values[known].tolist(), min(most, MOST_POINTS))
    began = _start_of(record)[0] or rank.times[0]
    series = Series(array("q", [rank.steps[place] for place in places]), array("d", kept))
    shown = f"rank {rank.rank}" if not name.startswith(OF_THE_MACHINE) else rank.host or "the machine"
    return Curve(number, shown, series, [max(rank.times[place] - began, 0.0) for place in places])


def _of_total(records: Sequence[RunRecord], name: str) -> str:
    """Return how much of a metric there is, in words; empty if it is not known, or not the same everywhere."""
    whole = TOTALS.get(name, "")
    found = {rank.values[whole][-1] for record in records for rank in record.system.ranks if whole in rank.values}
    (total,) = found if len(found) == 1 else (0.0,)
    return f", of {format_bytes(round(total))}" if 0 < total < np.inf else ""


def all_points(series: Series) -> list[tuple[int, float]]:
    """Return all points of a curve, rounded to what a chart can show."""
    return [(step, float(f"{value:.{DIGITS}g}")) for step, value in zip(series.steps, series.values, strict=True)]


def points(series: Series, most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """Return the points of a curve that are drawn, rounded to what a chart can show."""
    steps, values = reduced(series.steps, series.values, most)
    return all_points(Series(array("q", steps), array("d", values)))


def _place(name: str) -> tuple[int, int, str]:
    """Return the index of the heading for a value, its order under it, and the title of its chart."""
    if name in ("loss", "eval_loss", LOSS_OF_STEP):
        return 0, 0, "loss"
    if name in ("learning_rate", "grad_norm"):
        return 0, 1, name
    if name.startswith("learning_rate/"):
        return 0, 1, "learning_rate"
    if "_mem_" in name or "memory" in name:
        return 3, 0, name
    if name == SPEED_OF_STEPS:
        return 2, 0, name
    if name == UTILISATION:
        return 2, 1, name
    if name in SHARES_OF_TIME:
        return 2, 3, SHARES
    if name.endswith(("per_second", "per_sec", "_runtime")) or "throughput" in name:
        return 2, 2 if name.endswith("_runtime") else 1, name
    return (1 if name.startswith(("eval_", "test_")) else GROUPS.index("Other values")), 0, name


def _speed(times: Series) -> Series:
    """Return the steps per second between logs at later and later times."""
    speed = Series()
    with np.errstate(over="ignore", divide="ignore"):  # a journal may have any times
        steps, seconds = np.array(times.steps), np.diff(np.array(times.values))
        rates = np.diff(steps) / seconds
    later = (seconds > 0) & np.isfinite(rates)
    speed.append_block(steps[1:][later], rates[later])
    return speed


def _keys(names: Sequence[str], runs: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the names in a chart with their lines: the pattern where colours stand for runs, else the colour."""
    for number, name in enumerate(names[:MOST_KEYS]):
        yield {"name": name, "colour": "ink" if runs else f"c{number % COLOURS}", "dash": number % 3}
    if len(names) > MOST_KEYS:
        yield {"name": f"and {len(names) - MOST_KEYS:,} more", "colour": "", "dash": 0}


def _rows(chart: Chart, labels: Sequence[str], several: bool) -> Iterator[tuple[str, ...]]:
    for curve in chart.curves:
        name = f"{labels[curve.run]}: {curve.name}" if several else labels[curve.run]
        summary = curve.series.summary()
        if summary is None:
            yield name, "-", "-", "-", "-", f"0 ({len(curve.series.gaps):,} not finite)"
            continue
        ends = (summary.first, summary.last, summary.lowest, summary.highest)
        count = f"{summary.count:,}" + (f" ({summary.gaps:,} not finite)" if summary.gaps else "")
        yield name, *(f"{value:.5g} at step {step:,}" for step, value in ends), count


def _sentence(curve: Curve, labels: Sequence[str], several: bool) -> str:
    summary = curve.series.summary()
    name = f"{labels[curve.run]}, {curve.name}" if several else labels[curve.run]
    if summary is None:
        return f"{name}: no finite value"
    return (
        f"{name}: from {summary.first[1]:.4g} at step {summary.first[0]:,} to {summary.last[1]:.4g} at step "
        f"{summary.last[0]:,}, lowest {summary.lowest[1]:.4g} at step {summary.lowest[0]:,}"
    )
