"""The page of a search: how far it is, its objective over the trials, what the parameters do to it, and every trial."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from markupsafe import Markup

from hexloop.app.callbacks.console import duration_text
from hexloop.app.pages.importance import FEWEST_TRIALS, importances
from hexloop.app.pages.search import (
    FEWEST_RUNS,
    MOST_ARGUMENTS,
    Axis,
    Search,
    axis_data,
    axis_of,
    search_data,
    search_section,
)
from hexloop.app.pages.templates import clean, section
from hexloop.app.pages.trials import SearchRecord, TrialRecord, TrialState
from hexloop.domain.redaction import redacted

MOST_LISTED = 1_000
"""How many trials the table lists, the last ones and the best."""

MOST_DRAWN = 2_000
"""How many trials are drawn, the last ones."""

MOST_OBJECTIVES_DRAWN = 6

LONGEST_VALUE = 60
"""Characters of a parameter's value in the table."""

WIDTH = 200
"""The length of the longest bar of importance, in units of the drawing."""

OBJECTIVE, FRONT = "objective-chart", "front-chart"
"""The places of charts of the page."""

NOT_KNOWN = "-"


@frozen
class SearchShown:
    """What sections of the page share.

    drawn: the trials of the charts. parameters: their axes. addresses: of the trials' pages, by number; empty in a
    report, which has no other pages. importance: by parameter, with the words that say how it was found.
    """

    record: SearchRecord
    drawn: Sequence[TrialRecord]
    parameters: Sequence[Axis]
    addresses: Mapping[int, str]
    importance: Mapping[str, float]
    measure: str


def search_shown(
    record: SearchRecord,
    addresses: Mapping[int, str],
    importance: tuple[Mapping[str, float], str] | None = None,
) -> SearchShown:
    """Return what the page shows of a search. importance: of a package for searches; None computes a simple measure."""
    drawn = record.trials[-MOST_DRAWN:]
    settings = [redacted(dict(each.parameters)) for each in drawn]
    names = dict.fromkeys(str(name) for each in settings for name in each)
    axes = [axis_of(name, [each.get(name) for each in settings]) for name in names]
    parameters = [axis for axis in axes if axis is not None and axis.different > 1]
    found, measure = importance or _simple_importance(record)
    order = {name: -value for name, value in found.items()}
    parameters.sort(key=lambda axis: order.get(axis.name, 1.0))
    return SearchShown(record, drawn, parameters, addresses, found, measure)


def search_sections(shown: SearchShown) -> list[tuple[str, str, Markup]]:
    """Return the sections of the page: identifier, heading and content of each. An empty one has nothing to show."""
    labels = trial_labels(shown)
    return [
        ("overview", "The search", _overview(shown)),
        ("objective", "Objective over trials", _objective(shown)),
        ("search", "Parameters and objective", search_section(parallel_of(shown), labels)),
        ("importance", "Importance of the parameters", _importance(shown)),
        ("slices", "Objective for each parameter", _slices(shown)),
        ("trials", "Trials", _trials(shown)),
        ("reproduce", "Reproduce and resume", _ways(shown)),
    ]


def search_document(shown: SearchShown) -> dict[str, Any]:
    """Return what the scripts of the page draw."""
    objectives = [
        {"name": clean(name), "minimized": bool(less), "values": [each.objective(number) for each in shown.drawn]}
        for number, (name, less) in enumerate(_objectives(shown.record))
    ]
    trials = {
        "numbers": [each.number for each in shown.drawn],
        "states": [each.state.value for each in shown.drawn],
        "objectives": objectives,
        "front": [each.number for each in pareto_front(shown.record)] if len(objectives) > 1 else [],
        "parameters": [axis_data(axis) for axis in shown.parameters[:MOST_ARGUMENTS]],
    }
    return {"runs": trial_labels(shown), "charts": [], "search": search_data(parallel_of(shown)), "trials": trials}


def parallel_of(shown: SearchShown) -> Search | None:
    """Return the axes of the parallel coordinates; None for too few trials, or where there is nothing to compare."""
    axes = [
        axis_of(name, [each.objective(number) for each in shown.drawn])
        for number, (name, _) in enumerate(_objectives(shown.record))
    ]
    results = [axis for axis in axes if axis is not None and axis.is_number and axis.different > 1]
    if len(shown.drawn) < FEWEST_RUNS or not results or not shown.parameters:
        return None
    return Search(shown.parameters[:MOST_ARGUMENTS], results, "trial", [each.state.value for each in shown.drawn])


def trial_labels(shown: SearchShown) -> list[str]:
    """Return a short name of each trial that is drawn, with its state unless it is complete."""
    return [
        f"trial {each.number}" + ("" if each.state is TrialState.COMPLETE else f" ({each.state.value})")
        for each in shown.drawn
    ]


def _objectives(record: SearchRecord) -> list[tuple[str, bool]]:
    return list(zip(record.objectives, record.minimized, strict=True))[:MOST_OBJECTIVES_DRAWN]


def _overview(shown: SearchShown) -> Markup:
    record = shown.record
    counts = {state: len(record.of(state)) for state in TrialState}
    done = sum(counts.values()) - counts[TrialState.RUNNING]
    seconds = sum(each.seconds or 0.0 for each in record.trials)
    rows = [
        ("trials", f"{done:,} ended" + (f" of {record.wanted:,}" if record.wanted else "")),
        ("of these", ", ".join(f"{count:,} {state.value}" for state, count in counts.items() if count) or NOT_KNOWN),
        ("objective", ", ".join(f"{name}, {_better(less)}" for name, less in _objectives(record))),
        ("backend", record.backend or NOT_KNOWN),
        ("seed", NOT_KNOWN if record.seed is None else f"{record.seed}"),
        ("time of all trials", duration_text(seconds) if seconds else NOT_KNOWN),
        ("folder", record.folder),
    ]
    best = record.best
    if best is not None:
        rows.insert(2, ("best trial", f"{best.number}, with {_number(best.objective(0))}"))
    elif len(record.minimized) > 1:
        front = [each.number for each in pareto_front(record)]
        rows.insert(2, ("trials that no other is better than", ", ".join(map(str, front[:20])) or NOT_KNOWN))
    parameters = [] if best is None else [(name, _shown(value)) for name, value in redacted(best.parameters).items()]
    return section("search_overview", rows=rows, parameters=parameters, number="" if best is None else best.number)


def pareto_front(record: SearchRecord) -> list[TrialRecord]:
    """Return the complete trials for which no other is as good in every objective and better in one."""
    signs = [1.0 if less else -1.0 for less in record.minimized]
    rated = list[tuple[TrialRecord, tuple[float, ...]]]()
    for each in record.of(TrialState.COMPLETE)[-MOST_DRAWN:]:
        values = [value for value in each.values if value is not None]
        if len(values) == len(signs):
            rated.append((each, tuple(sign * value for sign, value in zip(signs, values, strict=True))))
    return [each for each, costs in rated if not any(_dominates(other, costs) for _, other in rated)]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a trial is as good in every objective and better in one. Both are to be minimized."""
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def _objective(shown: SearchShown) -> Markup:
    if not any(each.objective(number) is not None for each in shown.drawn for number in range(len(_objectives(shown.record)))):
        return section("note", words="No trial has reported an objective yet.")
    names = [name for name, _ in _objectives(shown.record)]
    words = f"The objective of {len(shown.drawn):,} trials in order, and the best so far. The table of trials has the same in figures."
    front = f"Two objectives of {len(shown.drawn):,} trials. The table of trials has the same in figures."
    return section("objective", identifier=OBJECTIVE, names=names, words=words, front=FRONT if len(names) > 1 else "", front_words=front)


def _importance(shown: SearchShown) -> Markup:
    if not shown.parameters:
        return Markup()
    if not shown.importance:
        words = (
            f"At least {FEWEST_TRIALS} complete trials with different objectives are needed to tell which parameters "
            "matter."
        )
        return section("note", words=words)
    most = max(*shown.importance.values(), 1e-9)
    bars = [
        {"name": name, "value": f"{value:.2f}", "width": f"{max(value, 0.0) / most * WIDTH:.1f}"}
        for name, value in shown.importance.items()
    ]
    return section("importance", bars=bars, width=WIDTH, words=shown.measure)


def _slices(shown: SearchShown) -> Markup:
    known = any(each.objective(0) is not None for each in shown.drawn)
    if not known or not shown.parameters:
        return Markup()
    figures = [
        {
            "identifier": f"slice-{number}",
            "title": axis.name,
            "words": f"The objective for each value of {axis.name}. The table of trials has the same in figures.",
        }
        for number, axis in enumerate(shown.parameters[:MOST_ARGUMENTS])
    ]
    return section("slices", figures=figures)


def _trials(shown: SearchShown) -> Markup:
    record = shown.record
    names = list(dict.fromkeys(name for each in record.trials for name in each.parameters))[: 2 * MOST_ARGUMENTS]
    listed = list(record.trials[-MOST_LISTED:])
    best = record.best
    if best is not None and best not in listed:
        listed.insert(0, best)
    objectives = [name for name, _ in _objectives(record)]
    rows = [_row(shown, each, names, each is best) for each in listed]
    numbers = [2 + index for index in range(len(objectives))]
    head = ["trial", "state", *objectives, "took", "evaluations", *names, ""]
    cut = len(record.trials) - len(listed)
    left_out = f"{cut:,} earlier trials are not listed." if cut > 0 else ""
    return section("trials", head=head, rows=rows, numbers=numbers, left_out=left_out)


def _row(shown: SearchShown, trial: TrialRecord, names: Sequence[str], is_best: bool) -> dict[str, Any]:
    parameters = redacted(dict(trial.parameters))
    objectives = [_number(trial.objective(number)) for number in range(len(_objectives(shown.record)))]
    cells = [
        *objectives,
        NOT_KNOWN if trial.seconds is None else duration_text(trial.seconds),
        f"{len(trial.reports):,}",
        *(_shown(parameters[name]) if name in parameters else NOT_KNOWN for name in names),
        "best" if is_best else "",
    ]
    return {
        "number": f"{trial.number}",
        "name": trial.name,
        "address": shown.addresses.get(trial.number, ""),
        "state": trial.state.value,
        "reason": f": {trial.reason}" if trial.reason else "",
        "cells": cells,
    }


def _ways(shown: SearchShown) -> Markup:
    return section("reproducing", runs=[("", list(_commands(shown)))])


def _commands(shown: SearchShown) -> Iterator[tuple[str, str]]:
    """Yield what can be done with the search, and the command for it."""
    record, best = shown.record, shown.record.best
    if best is not None:
        yield "To look at the run of the best trial:", f"hexloop report {shlex.quote(os.path.join(record.folder, best.name))}"
    if record.wanted is not None and len(record.trials) - len(record.of(TrialState.RUNNING)) < record.wanted:
        yield "The search is not finished. It resumes, at the trial that it was in, with:", "hexloop search RECIPE --resume"


def _simple_importance(record: SearchRecord) -> tuple[dict[str, float], str]:
    complete = record.of(TrialState.COMPLETE)[-MOST_DRAWN:]
    names = dict.fromkeys(name for each in complete for name in each.parameters)
    values = {name: [each.parameters.get(name) for each in complete] for name in names}
    measure = (
        f"The share of the differences between {len(complete):,} complete trials that each parameter explains on its own: "
        "the adjusted correlation ratio of the objective's ranks over groups of similar values. What parameters do only "
        "together is not in it, so the shares need not add up to 1."
    )
    return importances(values, [each.objective(0) for each in complete]), measure


def _better(less: bool) -> str:
    return "less is better" if less else "more is better"


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.6g}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
