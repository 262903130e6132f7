"""`hexloop runs diff`: at which step two runs diverge, and what diverges first."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define

from hexloop.app.command_line import ExitCode
from hexloop.app.printing import print_document, print_lines
from hexloop.app.wiring.adapters import checked_notes_in
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.journal import ObservationKind, RunComparison, Timeline, compare, timelines
from hexloop.domain.run_folder import JOURNAL, own_file
from hexloop.ports.journal import Fact

WIDTH = 60
"""How many characters of a value are printed."""

MOST_NAMED = 20
"""How many runs a message names."""

NAMES = {kind: kind.name.lower().replace("_", " ") for kind in ObservationKind}


def diff(options: Namespace) -> ExitCode:
    """Print where the two runs diverge. Return FAILED if they do, DONE otherwise."""
    problems: list[str] = []
    one, other = (_timeline(given, problems) for given in (options.one, options.other))
    if one is None or other is None:
        raise ConfigurationError(problems)
    comparison = compare(one, other)
    if options.json:
        print_document(_document(comparison, one, other))
    else:
        print_lines(*_lines(comparison, one, other, (options.one, options.other)))
    return ExitCode.FAILED if comparison.divergences else ExitCode.DONE


@define
class WrongNotes:
    """The lines of a journal that are not valid notes: their number, and what is wrong with the first."""

    path: str
    count: int = 0
    first: str = ""

    def add(self, line: int, problem: str) -> None:
        """Count a line."""
        self.count, self.first = self.count + 1, self.first or f"line {line}: {problem}"

    def tell(self) -> None:
        """Print them on standard error, if there are any."""
        if self.count:
            one = self.count == 1
            lines = (
                "a line is not a valid note and was" if one else f"{self.count:,} lines are not valid notes and were"
            )
            print_lines(f"hexloop: {self.path}: {lines} not compared; the first is {self.first}.", to=sys.stderr)


def _timeline(given: str, problems: list[str]) -> Timeline | None:
    """Return the run that `given` names; None, with a problem added, if there is none."""
    path, at, name = (given, "", "") if os.path.exists(given) or "@" not in given else given.rpartition("@")
    path = str(own_file(path, JOURNAL)) if os.path.isdir(path) else path
    wrong = WrongNotes(path)
    try:
        runs = timelines(checked_notes_in(path, wrong.add))
    except OSError as error:
        problems.append(
            f"You chose the run {given}, but its journal cannot be read ({error}); name the output folder of a run "
            "that was trained with journal='events' or 'steps'."
        )
        return None
    wrong.tell()
    found = [run for run in runs if run.startswith(name)]
    if not found or (at and len(found) > 1):
        there = ", ".join([*list(runs)[:MOST_NAMED], *["and others"] * (len(runs) > MOST_NAMED)]) or "none"
        problems.append(f"You chose the run {given}, but the runs in {path} are {there}; name one of them.")
        return None
    return runs[found[-1]]


def _lines(comparison: RunComparison, one: Timeline, other: Timeline, given: tuple[str, str]) -> Iterator[str]:
    first, last = comparison.first, comparison.last
    if not comparison.compared:
        yield f"{given[0]} and {given[1]} have nothing in common to compare; log or save at the same steps."
    elif first is None:
        yield f"{given[0]} and {given[1]} are equal at every step that was compared, up to step {last:,}."
    else:
        yield f"{given[0]} and {given[1]} diverge at step {first.step:,}: first in the {NAMES[first.kind]}."
    for divergence in comparison.divergences:
        until = "" if divergence.equal_until is None else f"; equal until step {divergence.equal_until:,}"
        where = f"not equal at step {divergence.step:,} ({divergence.name})"
        yield f"  {NAMES[divergence.kind]:<14}{where}{_values(divergence.one, divergence.other)}{until}"
    different = {divergence.kind for divergence in comparison.divergences}
    for kind, count in comparison.compared.items():
        if kind not in different:
            yield f"  {NAMES[kind]:<14}equal at {'the one step' if count == 1 else f'all {count:,} steps'} compared"
    if one.last_step != other.last_step:
        yield f"  {given[0]} reached step {one.last_step:,}, {given[1]} step {other.last_step:,}"
    if comparison.settings:
        yield "They have different settings:"
        for name, values in comparison.settings.items():
            yield f"  {name}: {_shown(values[0])} and {_shown(values[1])}"


def _values(one: Fact, other: Fact) -> str:
    """Return the two values for a message; nothing for digests, whose values are meaningless."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        different = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
        return f" in {', '.join(different)}"
    if isinstance(one, str) and isinstance(other, str) and len(one) == len(other) == 16:
        return ""
    return f": {_shown(one)} and {_shown(other)}"


def _shown(value: Fact) -> str:
    text = json.dumps(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."


def _document(comparison: RunComparison, one: Timeline, other: Timeline) -> dict[str, Any]:
    return {
        "runs": [one.run, other.run],
        "last_steps": [one.last_step, other.last_step],
        "compared": {NAMES[kind]: count for kind, count in comparison.compared.items()},
        "partings": [
            {
                "what": NAMES[divergence.kind],
                "step": divergence.step,
                "name": divergence.name,
                "values": [divergence.one, divergence.other],
                "equal_until": divergence.equal_until,
            }
            for divergence in comparison.divergences
        ],
        "settings": {name: list(values) for name, values in comparison.settings.items()},
    }
