"""Several runs beside each other: what differs between them, and the mean and band of curves over groups of them.

Curves are averaged over equal parts of the steps, from all points: the points that charts draw are extremes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen
from markupsafe import Markup

from hexloop.app.pages.charts import curves_of
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.templates import clean, section
from hexloop.app.series import Series
from hexloop.domain.redaction import redacted

SEEDS = frozenset({"seed", "data_seed"})
"""Arguments in which the repetitions of one experiment differ."""

MOST_PARTS = 200
"""How many parts of the steps a mean has."""

MOST_MEANS = 12
"""How many values have means, those of the most runs first."""

MOST_CHOICES = 20
"""By how many arguments runs can be grouped."""

MOST_DIFFERENT = 200
"""How many rows the table of differences has of each kind."""

LONGEST_VALUE = 120
"""Characters of a value in the table of differences."""

DIGITS = 6

Numbers = npt.NDArray[np.float64]


@frozen
class Grouping:
    """A way to group runs. name: what they are grouped by. groups: the name of each run's group, in their order."""

    name: str
    groups: Sequence[str]

    @property
    def repeats(self) -> bool:
        """Whether a group has several runs."""
        return len(set(self.groups)) < len(self.groups)


def groupings_of(records: Sequence[RunRecord]) -> list[Grouping]:
    """Return the ways to group runs: repetitions with other seeds first, if there are any, then by each argument."""
    settings = [redacted(record.history.settings) for record in records]
    different = [name for name in _different(settings) if name not in SEEDS]
    found = []
    if any(settings):
        named = [", ".join(f"{name}={_text(each.get(name))}" for name in different[:4]) for each in settings]
        keys = [tuple(_text(each.get(name)) for name in different) for each in settings]
        found.append(Grouping("equal arguments, seeds aside", _distinct(keys, named)))
    found += [
        Grouping(name, [f"{name}={_text(each.get(name))}" for each in settings]) for name in different[:MOST_CHOICES]
    ]
    found.append(Grouping("all runs", ["all runs"] * len(records)))
    return sorted((each for each in found if each.repeats), key=lambda each: each.name == "all runs")


def _distinct(keys: Sequence[tuple[str, ...]], named: Sequence[str]) -> list[str]:
    """Return a name for each key: the short one, with a number where other keys have the same."""
    names: dict[tuple[str, ...], str] = {}
    for key, name in zip(keys, named, strict=True):
        taken = sum(each.startswith(name) for other, each in names.items() if other != key)
        names.setdefault(key, (name or "all") if not taken else f"{name} ({taken + 1})")
    return [names[key] for key in keys]


def means_of(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what a script needs to draw means: for each value, parts of the steps and the mean of each run in them.

    A run without a point in a part has None there. Empty for a single run.
    """
    groupings = groupings_of(records) if len(records) > 1 else []
    if not groupings:
        return {}
    curves = [curves_of(record) for record in records]
    names = {name: sum(name in each for each in curves) for each in curves for name in each}
    chosen = sorted(
        (name for name, count in names.items() if count > 1), key=lambda name: (-names[name], _rank(name), name)
    )
    values = []
    for name in chosen[:MOST_MEANS]:
        steps, means = binned([each.get(name) for each in curves])
        if len(steps) > 1:
            values.append({"name": clean(name), "steps": steps, "runs": means})
    if not values:
        return {}
    choices = [{"name": clean(each.name), "groups": list(map(clean, each.groups))} for each in groupings]
    return {"values": values, "groupings": choices}


def _rank(name: str) -> int:
    return next((rank for rank, known in enumerate(("eval_loss", "loss")) if name == known), 2)


def binned(curves: Sequence[Series | None], parts: int = MOST_PARTS) -> tuple[list[int], list[list[float | None]]]:
    """Return the last steps of equal parts of all steps, and the mean of each curve in each part.

    Curves whose points lie at few equal steps, such as those of evaluations, have a part for each step.
    """
    known = [each for each in curves if each is not None and len(each)]
    if not known:
        return [], [[] for _ in curves]
    together = np.unique(np.concatenate([np.array(each.steps) for each in known]))
    if len(together) > parts:
        edges = np.linspace(together[0] - 1, together[-1], parts + 1)
    else:
        edges = np.concatenate([[together[0] - 1], together]).astype(np.float64)
    rows = [_means_in(each, edges) for each in curves]
    kept = [any(value is not None for value in part) for part in zip(*rows, strict=True)]
    steps = [int(edge) for edge, keep in zip(edges[1:], kept, strict=True) if keep]
    return steps, [[value for value, keep in zip(row, kept, strict=True) if keep] for row in rows]


def _means_in(curve: Series | None, edges: Numbers) -> list[float | None]:
    if curve is None or not len(curve):
        return [None] * (len(edges) - 1)
    places = np.clip(np.searchsorted(edges, np.array(curve.steps), side="left") - 1, 0, len(edges) - 2)
    counts = np.bincount(places, minlength=len(edges) - 1)
    with np.errstate(over="ignore"):
        sums = np.bincount(places, weights=np.array(curve.values), minlength=len(edges) - 1)
    means = sums / np.maximum(counts, 1)
    return [
        float(f"{mean:.{DIGITS}g}") if count and np.isfinite(mean) else None
        for mean, count in zip(means.tolist(), counts.tolist(), strict=True)
    ]


def means_section(records: Sequence[RunRecord], found: Mapping[str, Any]) -> Markup:
    """Return the place of the chart of means, with what can be chosen; nothing if there are none."""
    if not found:
        return Markup()
    names = [each["name"] for each in found["values"]]
    groupings = [each["name"] for each in found["groupings"]]
    words = f"Mean and band of a value over groups of the {len(records):,} runs."
    return section("means", names=names, groupings=groupings, words=words)


def differences_section(records: Sequence[RunRecord]) -> Markup:
    """Return the table of what differs between runs: arguments, the environment, and what they logged last."""
    if len(records) < 2:
        return Markup()
    kinds = [
        ("argument", [redacted(record.history.settings) for record in records]),
        ("environment", [redacted(record.environment) for record in records]),
        ("last value", [dict(_last_values(record)) for record in records]),
    ]
    rows = [
        (kind, name, *(_text(each.get(name)) for each in facts))
        for kind, facts in kinds
        for name in _different(facts)[:MOST_DIFFERENT]
    ]
    if not rows:
        return section("note", words="The runs have equal arguments and logged equal values.")
    head = ["name", "what", *(record.label for record in records)]
    shown = [(name, kind, *values) for kind, name, *values in rows]
    return section("table", head=head, rows=shown, caption="What differs")


def _last_values(record: RunRecord) -> Iterator[tuple[str, str]]:
    for name, series in curves_of(record).items():
        if series.ends_in_gap:
            yield name, "not finite"
        elif len(series):
            yield name, f"{series.values[-1]:.5g}"


def _different(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names, in order, whose values are not equal in all of them."""
    names = sorted({str(name) for each in facts if each for name in each})
    known = [each for each in facts if each]  # a run without a journal has no arguments to differ in
    return [name for name in names if len({_text(each.get(name)) for each in known}) > 1]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
