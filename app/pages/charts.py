"""The charts of a page: which curves share one, what each says in words, and the data that its script draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.templates import clean
from hexloop.app.series import MOST_GAPS, MOST_POINTS, Series, reduced
from hexloop.domain.evaluation import UTILISATION
from hexloop.domain.journal_index import LOSS_OF_STEP
from hexloop.domain.state import Cause

COLOURS = 8
"""How many colours curves have; those of Okabe and Ito (2008), defined in `report.css` for both themes."""

GROUPS = ("Training", "Evaluation", "Throughput", "Memory", "Other values")
"""The headings of the charts, in order."""

SPEED_OF_STEPS = "steps per second"
"""The curve that is computed from the times of the logs."""

SHARES_OF_TIME = frozenset(cause.logged_as for cause in Cause)
"""The names of what the time between two logs went into, which share a chart."""

MOST_CHARTS = 60
"""How many charts a page has."""

DIGITS = 7
"""Significant digits of the values in a page."""


@frozen
class Curve:
    """A curve of a run. run: the index of the run. name: that of the logged value."""

    run: int
    name: str
    series: Series


@frozen
class Chart:
    """Curves that share a chart, under a heading of `GROUPS`."""

    group: str
    title: str
    curves: Sequence[Curve]


def charts_of(records: Sequence[RunRecord]) -> list[Chart]:
    """Return the charts for runs: one for each value, with the values of all runs; losses share one."""
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
        "legend": [_key(name, number, len(labels) > 1) for number, name in enumerate(names)] if several else [],
        "head": ("run" if not several else "run and value", "first", "last", "lowest", "highest", "points"),
        "rows": list(_rows(chart, labels, several)),
    }


def chart_data(chart: Chart, identifier: str) -> dict[str, Any]:
    """Return what the script needs to draw a chart, with at most `MOST_POINTS` points a curve."""
    names = list(dict.fromkeys(curve.name for curve in chart.curves))
    return {
        "id": identifier,
        "title": clean(chart.title),
        "curves": [
            {
                "run": curve.run,
                "name": clean(curve.name),
                "dash": names.index(curve.name),
                "points": points(curve.series),
                "gaps": curve.series.gaps[:MOST_GAPS].tolist(),
            }
            for curve in chart.curves
        ],
    }


def points(series: Series, most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """Return the points of a curve that are drawn, rounded to what a chart can show."""
    steps, values = reduced(series.steps, series.values, most)
    return [(step, float(f"{value:.{DIGITS}g}")) for step, value in zip(steps, values, strict=True)]


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
        return 2, 3, "share of the time in percent"
    if name.endswith(("per_second", "per_sec", "_runtime")) or "throughput" in name:
        return 2, 2 if name.endswith("_runtime") else 1, name
    return (1 if name.startswith(("eval_", "test_")) else 4), 0, name


def _speed(times: Series) -> Series:
    """Return the steps per second between logs at later and later times."""
    speed = Series()
    steps, seconds = np.array(times.steps), np.diff(np.array(times.values))
    later = seconds > 0
    speed.append_block(steps[1:][later], np.diff(steps)[later] / seconds[later])
    return speed


def _key(name: str, number: int, runs: bool) -> dict[str, Any]:
    """Return a name in a chart with its line: its pattern where colours stand for runs, else its colour."""
    return {"name": name, "colour": "ink" if runs else f"c{number % COLOURS}", "dash": number % 3}


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
