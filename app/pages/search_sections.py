"""The page of a search: how far it is, its objective over the trials, what the parameters do to it, and every trial."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from markupsafe import Markup

from hexloop.app.assembly.searches import installed_importances
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
from hexloop.app.pages.trials import RUNNING, ShownSearch, objective_of, state_text
from hexloop.domain.redaction import redacted
from hexloop.domain.search.records import MAXIMIZE, MINIMIZE, RecordedTrial
from hexloop.ports.search import TrialState

MOST_LISTED = 1_000
"""How many trials the table lists, the last ones and the best."""

MOST_EVALUATED = 1_000
"""How many complete trials tell which parameters matter, the last ones."""

LARGEST = 1e100
"""Numbers beyond this are not searched."""

MOST_DRAWN = 2_000
"""How many trials are drawn, the last ones."""

LONGEST_VALUE = 60
"""Characters of a parameter's value in the table."""

WIDTH = 200
"""The length of the longest bar of importance, in units of the drawing."""

OBJECTIVE, FRONT = "objective-chart", "front-chart"
"""The places of charts of the page."""

NOT_KNOWN = "-"


@frozen
class SearchView:
    """What sections of the page share.

    drawn: the trials of the charts. parameters: their axes. addresses: of the trials' pages, by number; empty in a
    report, which has no other pages. importance: by parameter, with the words that say how it was found.
    """

    record: ShownSearch
    drawn: Sequence[RecordedTrial]
    parameters: Sequence[Axis]
    addresses: Mapping[int, str]
    importance: Mapping[str, float]
    measure: str


def search_view(record: ShownSearch, addresses: Mapping[int, str]) -> SearchView:
    """Return what the page shows of a search."""
    drawn = record.trials[-MOST_DRAWN:]
    settings = [redacted(dict(each.parameters)) for each in drawn]
    names = dict.fromkeys(str(name) for each in settings for name in each)
    axes = [axis_of(name, [each.get(name) for each in settings]) for name in names]
    declared = record.definition.space if isinstance(record.definition.space, Mapping) else {}
    parameters = [_scaled(axis, declared.get(axis.name)) for axis in axes if axis is not None and axis.different > 1]
    found, measure = _importance_of(record)
    order = {name: -value for name, value in found.items()}
    parameters.sort(key=lambda axis: order.get(axis.name, 1.0))
    return SearchView(record, drawn, parameters, addresses, found, measure)


def _scaled(axis: Axis, described: object) -> Axis:
    """Return an axis that is logarithmic exactly if the space says so. described: its entry in the space, if known."""
    if not isinstance(described, Mapping) or "low" not in described:
        return axis
    return evolve(axis, logarithmic=described.get("log") is True)


def search_sections(shown: SearchView) -> list[tuple[str, str, Markup]]:
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


def search_document(shown: SearchView) -> dict[str, Any]:
    """Return what the scripts of the page draw."""
    objectives = [
        {"name": clean(name), "minimized": bool(less), "values": [objective_of(each, number) for each in shown.drawn]}
        for number, (name, less) in enumerate(shown.record.objectives)
    ]
    trials = {
        "numbers": [each.number for each in shown.drawn],
        "states": [state_text(each) for each in shown.drawn],
        "objectives": objectives,
        "front": [each.number for each in shown.record.front] if len(objectives) > 1 else [],
        "parameters": [axis_data(axis) for axis in shown.parameters[:MOST_ARGUMENTS]],
    }
    return {"runs": trial_labels(shown), "charts": [], "search": search_data(parallel_of(shown)), "trials": trials}


def parallel_of(shown: SearchView) -> Search | None:
    """Return the axes of the parallel coordinates; None for too few trials, or where there is nothing to compare."""
    axes = [
        axis_of(name, [objective_of(each, number) for each in shown.drawn])
        for number, (name, _) in enumerate(shown.record.objectives)
    ]
    results = [axis for axis in axes if axis is not None and axis.is_number and axis.different > 1]
    if len(shown.drawn) < FEWEST_RUNS or not results or not shown.parameters:
        return None
    return Search(shown.parameters[:MOST_ARGUMENTS], results, "trial", [state_text(each) for each in shown.drawn])


def trial_labels(shown: SearchView) -> list[str]:
    """Return a short name of each trial that is drawn, with its state unless it is complete."""
    return [
        f"trial {each.number}" + ("" if each.state is TrialState.COMPLETE else f" ({state_text(each)})")
        for each in shown.drawn
    ]


def _overview(shown: SearchView) -> Markup:
    record = shown.record
    counts = {state.value: len(record.ended(state)) for state in TrialState}
    done, counts[RUNNING] = sum(counts.values()), len(record.ended(None))
    wanted, seed = record.definition.trials, record.definition.seed
    seconds = sum(each.seconds for each in record.trials)
    rows = [
        ("trials", f"{done:,} ended" + (f" of {wanted:,}" if wanted else "")),
        ("of these", ", ".join(f"{count:,} {state}" for state, count in counts.items() if count) or NOT_KNOWN),
        ("objective", ", ".join(f"{name}, {_better(less)}" for name, less in record.objectives)),
        ("backend", record.definition.backend or NOT_KNOWN),
        ("seed", NOT_KNOWN if seed is None else f"{seed}"),
        ("time of all trials", duration_text(seconds) if seconds else NOT_KNOWN),
        ("folder", record.folder),
    ]
    best = record.best
    if best is not None:
        rows.insert(2, ("best trial", f"{best.number}, with {_number(objective_of(best, 0))}"))
    elif len(record.objectives) > 1:
        front = [each.number for each in record.front]
        rows.insert(2, ("trials that no other is better than", ", ".join(map(str, front[:20])) or NOT_KNOWN))
    parameters = (
        [] if best is None else [(name, _shown(value)) for name, value in redacted(dict(best.parameters)).items()]
    )
    return section("search_overview", rows=rows, parameters=parameters, number="" if best is None else best.number)


def _objective(shown: SearchView) -> Markup:
    if not any(
        objective_of(each, number) is not None for each in shown.drawn for number in range(len(shown.record.objectives))
    ):
        return section("note", words="No trial has reported an objective yet.")
    names = [name for name, _ in shown.record.objectives]
    count, table = f"{len(shown.drawn):,}", "The table of trials has the same in figures."
    words = f"The objective of {count} trials in order, and the best so far. {table}"
    front = f"Two objectives of {count} trials. {table}"
    return section(
        "objective",
        identifier=OBJECTIVE,
        names=names,
        words=words,
        front=FRONT if len(names) > 1 else "",
        front_words=front,
    )


def _importance(shown: SearchView) -> Markup:
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


def _slices(shown: SearchView) -> Markup:
    known = any(objective_of(each, 0) is not None for each in shown.drawn)
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


def _trials(shown: SearchView) -> Markup:
    record = shown.record
    names = list(dict.fromkeys(name for each in record.trials for name in each.parameters))[: 2 * MOST_ARGUMENTS]
    listed = list(record.trials[-MOST_LISTED:])
    best = record.best
    if best is not None and best not in listed:
        listed.insert(0, best)
    objectives = [name for name, _ in record.objectives]
    rows = [_row(shown, each, names, each is best) for each in listed]
    numbers = [2 + index for index in range(len(objectives) + 2)]  # and the time, and the evaluations
    head = ["trial", "state", *objectives, "took", "evaluations", *names, ""]
    cut = len(record.trials) - len(listed)
    left_out = f"{cut:,} earlier trials are not listed." if cut > 0 else ""
    return section("trials", head=head, rows=rows, numbers=numbers, left_out=left_out)


def _row(shown: SearchView, trial: RecordedTrial, names: Sequence[str], is_best: bool) -> dict[str, Any]:
    parameters = redacted(dict(trial.parameters))
    objectives = [_number(objective_of(trial, number)) for number in range(len(shown.record.objectives))]
    cells = [
        *objectives,
        duration_text(trial.seconds) if trial.seconds else NOT_KNOWN,
        f"{len(trial.reports):,}",
        *(_shown(parameters[name]) if name in parameters else NOT_KNOWN for name in names),
        "best" if is_best else "",
    ]
    return {
        "number": f"{trial.number}",
        "name": trial.name,
        "address": shown.addresses.get(trial.number, ""),
        "state": state_text(trial),
        "reason": _because(trial),
        "cells": cells,
    }


def _because(trial: RecordedTrial) -> str:
    """Return why a trial ended as it did, after its state."""
    if not trial.reason:
        return ""
    rest = trial.reason.removeprefix(f"{state_text(trial)} ")
    return f" {rest}" if rest != trial.reason else f": {rest}"


def _ways(shown: SearchView) -> Markup:
    return section("reproducing", runs=[("", list(_commands(shown)))])


def _commands(shown: SearchView) -> Iterator[tuple[str, str]]:
    """Yield what can be done with the search, and the command for it."""
    record, best = shown.record, shown.record.best
    if best is not None:
        yield (
            "To look at the run of the best trial:",
            f"hexloop report {shlex.quote(os.path.join(record.folder, best.name))}",
        )
    wanted = record.definition.trials
    if wanted is not None and len(record.trials) - len(record.ended(None)) < wanted:
        yield (
            "The search is not finished. It resumes, at the trial that it was in, with:",
            "hexloop search RECIPE --resume",
        )


def _importance_of(record: ShownSearch) -> tuple[Mapping[str, float], str]:
    """Return how much each parameter matters for the first objective, and how that was found."""
    rated = [
        (each, value)
        for each in record.ended(TrialState.COMPLETE)[-MOST_EVALUATED:]
        if (value := objective_of(each, 0)) is not None
    ]
    complete, objective = [each for each, _ in rated], [value for _, value in rated]
    names = dict.fromkeys(name for each in complete for name in each.parameters)
    values = {name: [each.parameters.get(name) for each in complete] for name in names}
    everywhere = {name: each for name, each in values.items() if _is_known(each) and len(set(map(repr, each))) > 1}
    if len(complete) >= FEWEST_TRIALS and len(set(objective)) > 1 and everywhere:
        direction = MINIMIZE if record.objectives[0][1] else MAXIMIZE
        found = installed_importances(everywhere, objective, direction)
        if found is not None:
            words = (
                f"By optuna, for {len(complete):,} complete trials: how much each parameter decides whether a trial is "
                "among the best. The values sum to 1. Parameters that some trials do not have are left out."
            )
            return found, words
    measure = (
        f"The share of the differences between {len(complete):,} complete trials that each parameter explains on its "
        "own: the adjusted correlation ratio of the objective's ranks over groups of similar values. What parameters "
        "do only together is not in it, so the shares need not add up to 1."
    )
    return importances(values, objective), measure


def _is_known(values: Sequence[Any]) -> bool:
    """Return whether all trials have a parameter, with a finite number or a short word."""
    return all(
        isinstance(each, bool)
        or (isinstance(each, int | float) and abs(each) < LARGEST)
        or (isinstance(each, str) and len(each) <= LONGEST_VALUE)
        for each in values
    )


def _better(less: bool) -> str:
    return "less is better" if less else "more is better"


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.6g}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
