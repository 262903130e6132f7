"""The table of many runs: what each is doing, what it logged last, and the arguments that differ between them.

A page gets the whole table once, and then the rows that have changed.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from attrs import define, field

from hexloop.app.pages.history import RecordedSession, RunEnding
from hexloop.app.pages.progress import RUNNING_FOR, total_steps
from hexloop.app.pages.states import RunState, last_heard, state_in, state_of
from hexloop.app.pages.templates import clean
from hexloop.app.pages.watching import Listing, RunListing
from hexloop.domain.redaction import redacted

MOST_METRICS, MOST_ARGUMENTS = 40, 40
"""How many columns of each kind there are: the values that most runs log, and the arguments that differ most often."""

LONGEST_VALUE = 80
"""Characters of an argument's value in the table."""

MOST_REMOVED = 1_000
"""How many removed runs are remembered; a page that missed more gets the whole table."""

NOT_LISTED = frozenset({"output_dir", "run_name", "logging_dir"})
"""Arguments that differ between all runs and say nothing about them."""

FACTS = (
    "folder", "state", "detail", "step", "total", "pace", "started", "seen", "tags", "notes", "hidden", "metrics",
    "arguments",
)  # fmt: skip
"""The cells of a row, in order. Times are in seconds since the epoch, the pace in seconds per step."""


@define
class Row:
    """A row that pages may have. source: what it is from. revision: at which it changed last."""

    source: RunListing
    text: str
    revision: int


@define
class RunTable:
    """The table of the runs below `root`, as JSON, and what has changed in it since a version that a page has."""

    root: str
    metrics: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    revision: int = 0
    _columns_changed: int = 0
    _rows: dict[str, Row] = field(factory=dict)
    _removed: dict[str, int] = field(factory=dict)
    _state: tuple[Any, ...] = ()
    _nonce: str = field(factory=lambda: secrets.token_hex(4))

    @property
    def version(self) -> str:
        """The version of the table, for `document`."""
        return f"{self._nonce}.{self.revision}"

    def update(self, listing: Listing, now: float) -> None:
        """Take what was read of the runs. now: in seconds since the epoch."""
        runs = listing.runs
        changed = len(runs) != len(self._rows) or any(
            (row := self._rows.get(each.folder)) is None or row.source is not each for each in runs
        )
        revision, columns_changed = self.revision + 1, False
        if changed:
            columns = _metrics_of(runs), _arguments_of(runs)
            columns_changed = columns != (self.metrics, self.arguments)
            self.metrics, self.arguments = columns
        touched = columns_changed
        for each in runs:
            known = self._rows.get(each.folder)
            if known is not None and known.source is each and not columns_changed and _is_over(each):
                continue
            text = json.dumps(self._row(each, now), separators=(",", ":"), allow_nan=False)
            if known is None or known.text != text:
                self._rows[each.folder] = Row(each, text, revision)
                self._removed.pop(each.folder, None)
                touched = True
            else:
                known.source = each
        for folder in self._rows.keys() - {each.folder for each in runs}:
            del self._rows[folder]
            self._removed[folder] = revision
            touched = True
        if len(self._removed) > MOST_REMOVED:
            self._removed.clear()
            columns_changed = True
        state = (listing.waiting, listing.is_complete, listing.cut)
        if touched or state != self._state:
            self.revision, self._state = revision, state
            self._columns_changed = revision if columns_changed else self._columns_changed

    def document(self, known: str = "") -> str:
        """Return the table as JSON: as a whole, or the rows that have changed since the version `known`."""
        nonce, _, number = known.partition(".")
        since = int(number) if nonce == self._nonce and number.isascii() and number.isdecimal() else -1
        is_whole = not self._columns_changed <= since <= self.revision
        rows = [row.text for row in self._rows.values() if is_whole or row.revision > since]
        removed = [folder for folder, at in self._removed.items() if not is_whole and at > since]
        waiting, is_complete, cut = self._state or (0, True, False)
        facts: dict[str, Any] = {
            "folder": clean(self.root),
            "facts": FACTS,
            "metrics": list(map(clean, self.metrics)),
            "arguments": list(map(clean, self.arguments)),
            "whole": is_whole,
            "removed": removed,
            "waiting": waiting,
            "complete": is_complete,
            "cut": cut,
        }
        return f'{json.dumps(facts)[:-1]}, "rows": [{",".join(rows)}]}}'

    def _row(self, run: RunListing, now: float) -> list[Any]:
        """Return the cells of a row; see `FACTS`."""
        history, total = run.history, total_steps(run.history)
        heard = None
        if now - (history.seen or 0.0) >= RUNNING_FOR:
            heard = last_heard(f"{self.root}/{run.folder}", history)
        sessions: list[RecordedSession] = history.sessions.entries
        state = RunState.UNKNOWN if run.problem else state_in(history, now, heard)
        words = run.problem or state_of(history, total, now, heard)
        if state is RunState.LOST:  # without an age, which would change by itself
            words = state.value
        return [
            run.folder,
            state.value,
            clean(words) if words != state.value else "",
            history.last_step,
            total,
            None if run.pace is None else float(f"{run.pace:.3g}"),
            _time(sessions[0].began if sessions else None),
            _time(history.seen),
            list(map(clean, run.labels.tags)),
            clean(run.labels.notes),
            int(run.labels.hidden),
            [_number(run.last_value(name)) for name in self.metrics],
            [_value(name, history.settings.get(name)) for name in self.arguments],
        ]


def _is_over(run: RunListing) -> bool:
    """Return whether the state of a run changes only with its files."""
    sessions: list[RecordedSession] = run.history.sessions.entries
    return not sessions or sessions[-1].outcome is not RunEnding.LOST


def _metrics_of(runs: Iterable[RunListing]) -> tuple[str, ...]:
    """Return the names of the values that most runs have logged last, in order of what they are."""
    counts = Counter(name for run in runs for name in run.history.series)
    names = [name for name, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:MOST_METRICS]]
    return tuple(sorted(names, key=_rank))


def _rank(name: str) -> tuple[int, str]:
    """Return the place of a metric: losses and evaluations first, the figures of the trainer last."""
    if name == "loss":
        return 0, name
    if name.startswith("eval_"):
        return (3 if name.endswith(("_runtime", "per_second")) else 1), name
    return (4 if name.startswith("train_") or name == "total_flos" else 2), name


def _arguments_of(runs: Sequence[RunListing]) -> tuple[str, ...]:
    """Return the arguments that differ between runs, those that differ most often if there are many."""
    bases = {id(base): base for run in runs if (base := _base(run)) is not None}
    different: Counter[str] = Counter()
    for run in runs:
        if isinstance(run.history.settings, ChainMap):
            different.update(run.history.settings.maps[0].keys())
    if len(bases) > 1:
        names = {name for base in bases.values() for name in base}
        first, *others = bases.values()
        for name in names:
            if any(_differs(first, base, name) for base in others):
                different[name] += 1
    found = [name for name, _ in different.most_common() if name not in NOT_LISTED]
    return tuple(sorted(found[:MOST_ARGUMENTS]))


def _base(run: RunListing) -> Mapping[str, Any] | None:
    settings = run.history.settings
    return settings.maps[-1] if isinstance(settings, ChainMap) and settings.maps[-1] else None


def _differs(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    return (name in one) != (name in other) or one.get(name) != other.get(name)


def _time(seconds: float | None) -> int | None:
    return round(seconds) if seconds is not None and math.isfinite(seconds) else None


def _number(value: float | None) -> float | str | None:
    if value is None:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else "not finite"


def _value(name: str, value: Any) -> Any:
    """Return an argument's value for a cell: a number, a truth value, or a text."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value if abs(value) < 2**53 else str(value)
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    return _text(name, value if isinstance(value, str) else json.dumps(value, default=str))


@lru_cache(10_000)
def _text(name: str, value: str) -> str:
    shown = clean(str(redacted({name: value})[name]))
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[:LONGEST_VALUE]}..."
