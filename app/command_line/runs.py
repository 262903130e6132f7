"""`hexloop runs diff`: at which step two runs diverge, and what diverges first."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

from attrs import define, field

from hexloop.app.assembly.adapters import checked_notes, line_batches
from hexloop.app.command_line import ExitCode
from hexloop.app.printing import print_document, print_lines
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.journal import (
    MOST_NAMES,
    ObservationKind,
    RunComparison,
    Timeline,
    Timelines,
    compare,
    observed_in,
)
from hexloop.domain.run_folder import JOURNAL, own_file
from hexloop.ports.logger import Fact

WIDTH = 60
"""How many characters of a value are printed."""

MOST_NAMED = 20
"""How many runs a message names."""

NAMES = {kind: kind.name.lower().replace("_", " ") for kind in ObservationKind}


OBSERVED = re.compile(
    rb'^\{"kind": "(logged|step|losses)", "time": [1-9][0-9]*(?:\.[0-9]+)?, (.*)$',
    re.MULTILINE,
)
"""A line of a kind that one thread writes in a fixed order: its kind, and all but the time."""


CUTS = (b'{"kind": "began", ', b'{"kind": "irregular", ')
"""The starts of lines that may make what is before them void."""


def diff(options: Namespace) -> ExitCode:
    """Print where the two runs diverge. Return FAILED if they do, DONE otherwise."""
    problems: list[str] = []
    sides = [JournalSide(given) for given in (options.one, options.other)]
    read_together(*sides)
    one, other = (side.chosen(problems) for side in sides)
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


@define
class JournalSide:
    """One of two journals that are read together. given: the run in it, as the user named it.

    lines: those that were read, and wait to be compared with those of the other journal. contents: what is compared of
    each. numbers: theirs in the file.
    """

    given: str
    path: str = field(init=False)
    name: str = field(init=False)
    named: bool = field(init=False)
    runs: Timelines = field(factory=Timelines, init=False)
    wrong: WrongNotes = field(init=False)
    failure: OSError | None = field(default=None, init=False)
    lines: list[bytes] = field(factory=list, init=False)
    contents: list[tuple[bytes, bytes]] = field(factory=list, init=False)
    numbers: Sequence[int] = field(factory=list, init=False)
    _batches: Iterator[list[bytes]] = field(init=False)
    _read: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        is_path = os.path.exists(self.given) or "@" not in self.given
        path, at, self.name = (self.given, "", "") if is_path else self.given.rpartition("@")
        self.path, self.named = str(own_file(path, JOURNAL)) if os.path.isdir(path) else path, bool(at)
        self.wrong, self._batches = WrongNotes(self.path), line_batches(self.path)

    def fill(self) -> bool:
        """Read on until lines wait; return whether any do. Notes of other kinds are taken as they come."""
        while not self.lines:
            try:
                lines = next(self._batches, None)
            except OSError as error:
                self.failure, lines = error, None
            if lines is None:
                return False
            numbers = range(self._read + 1, self._read + len(lines) + 1)
            self._read += len(lines)
            starts = [index for index, line in enumerate(lines) if line.startswith(CUTS)]
            if starts:  # what follows belongs to another session
                self.take(lines[: starts[-1] + 1], numbers)
                lines, numbers = lines[starts[-1] + 1 :], numbers[starts[-1] + 1 :]
            contents = OBSERVED.findall(b"\n".join(lines))
            if len(contents) == len(lines):
                self.lines, self.contents, self.numbers = lines, contents, numbers
            elif any(
                b'"began"' in line or b'"irregular"' in line for line in lines
            ):  # or one that was written otherwise
                self.take(lines, numbers)
            else:
                is_observed = [OBSERVED.match(line) is not None for line in lines]
                self.lines, self.contents = list(compress(lines, is_observed)), contents
                self.numbers = list(compress(numbers, is_observed))
                others = [not each for each in is_observed]
                self.take(list(compress(lines, others)), list(compress(numbers, others)))
        return True

    def drop(self, count: int) -> None:
        """Forget the first lines that wait."""
        self.lines, self.contents = self.lines[count:], self.contents[count:]
        self.numbers = self.numbers[count:]

    def take(self, lines: Sequence[bytes], numbers: Sequence[int]) -> None:
        """Add the notes in lines, and count those that are not valid."""
        notes, problems = checked_notes(lines)
        self.runs.take(notes)
        self.report(problems, numbers)

    def report(self, problems: Sequence[tuple[int, str]], numbers: Sequence[int]) -> None:
        """Count lines that are not valid notes."""
        for index, problem in problems:
            self.wrong.add(numbers[index], problem)

    def chosen(self, problems: list[str]) -> Timeline | None:
        """Return the run that is meant; None, with a problem added, if there is none."""
        if self.failure is not None:
            problems.append(
                f"You chose the run {self.given}, but its journal cannot be read ({self.failure}); name the output "
                "folder of a run that was trained with journal='events' or 'steps'."
            )
            return None
        self.wrong.tell()
        runs = self.runs.by_name
        found = [run for run in runs if run.startswith(self.name)]
        if not found or (self.named and len(found) > 1):
            there = ", ".join([*list(runs)[:MOST_NAMED], *["and others"] * (len(runs) > MOST_NAMED)]) or "none"
            problems.append(
                f"You chose the run {self.given}, but the runs in {self.path} are {there}; name one of them."
            )
            return None
        chosen = runs[found[-1]]
        if chosen.left_out:
            words = f"{chosen.left_out:,} values were not compared, because the run has more than {MOST_NAMES:,} names"
            print_lines(f"hexloop: {self.path}: {words}.", to=sys.stderr)
        return chosen


def read_together(one: JournalSide, other: JournalSide) -> None:
    """Read two journals. Where their lines are equal but for the time, those of one are parsed for both."""
    sides = one, other
    while one.fill() & other.fill():
        count = min(len(one.lines), len(other.lines))
        if one.contents[:count] == other.contents[:count]:
            notes, problems = checked_notes(one.lines[:count])
            observed = list(observed_in(notes))
            for side in sides:
                side.runs.add(observed)
                side.report(problems, side.numbers)
        else:
            for side in sides:
                side.take(side.lines[:count], side.numbers)
        for side in sides:
            side.drop(count)
    for side in sides:
        while side.fill():
            side.take(side.lines, side.numbers)
            side.drop(len(side.lines))


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
