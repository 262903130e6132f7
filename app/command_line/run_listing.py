"""`hexloop runs list` and `hexloop runs show`: what runs are doing and have reached, in the words of the board."""

from __future__ import annotations

import math
import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from hexloop.app.assembly.storage import as_location, is_elsewhere
from hexloop.app.checkpoint_rows import format_age
from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.checkpoints.inspecting import aligned
from hexloop.app.pages.information import RecordedInformation
from hexloop.app.pages.labels import Labels, read_labels
from hexloop.app.pages.progress import Progress, progress_of, total_steps
from hexloop.app.pages.reading import RunRecord, read_runs
from hexloop.app.pages.sections import changed_arguments, facts_of, status_text
from hexloop.app.pages.states import RunState, last_heard, state_in, state_of
from hexloop.app.pages.watching import Listing, RunListing, WatchedRuns
from hexloop.app.printing import print_document, print_lines
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import finite_json
from hexloop.domain.wording import did_you_mean

USUAL_METRICS = ("loss", "eval_loss")
"""The values that are shown if none are chosen and a run has logged them."""

LONGEST_CELL = 60
"""Characters of a cell in the list."""

NOTHING = "-"

MOST_VALUES, MOST_CHECKPOINTS = 40, 20
"""How many logged values, and how many of the last checkpoints, `show` lists."""


@frozen
class ListedRun:
    """A row of the list. words: its state with what else is known of it. metrics: what it logged last, by name."""

    listing: RunListing
    state: RunState
    words: str
    progress: Progress
    metrics: Mapping[str, float | None]

    @property
    def name(self) -> str:
        """The folder of the run, relative to the one that is listed."""
        return self.listing.folder

    def cells(self, metrics: Sequence[str], now: float) -> tuple[str, ...]:
        """Return the cells of the row as text."""
        seen = self.listing.history.seen
        return (
            self.name,
            self.words if len(self.words) <= LONGEST_CELL else f"{self.words[:LONGEST_CELL]}...",
            self.progress.steps_text,
            self.progress.left_text,
            *(_number_text(self.metrics[name]) for name in metrics),
            NOTHING if seen is None else f"{format_age(max(now - seen, 0.0))} ago",
            ", ".join(self.listing.labels.tags),
        )

    def document(self) -> dict[str, Any]:
        """Return the row in JSON types; times in seconds since the epoch."""
        history, labels = self.listing.history, self.listing.labels
        sessions = history.sessions.entries
        return {
            "run": self.name,
            "state": self.state.value,
            "description": self.words,
            "step": self.progress.step,
            "total_steps": self.progress.total,
            "seconds_left": self.progress.seconds_left,
            "started": sessions[0].began if sessions else None,
            "last_report": history.seen,
            "metrics": dict(self.metrics),
            "tags": list(labels.tags),
            "notes": labels.notes,
            "hidden": labels.hidden,
        }


SORTS: Mapping[str, Callable[[ListedRun], Any]] = {
    "run": lambda run: run.name,
    "state": lambda run: run.state.value,
    "step": lambda run: run.progress.step,
    "left": lambda run: run.progress.seconds_left,
    "seen": lambda run: -run.listing.history.seen if run.listing.history.seen is not None else None,
}
"""What a list can be sorted by, besides the values that runs log."""


def list_runs(options: Namespace) -> ExitCode:
    """Print a table of the runs below a folder, the one that reported last first."""
    now, listing = time.time(), _listing(options.folder)
    logged = Counter(name for run in listing.runs for name in run.history.series)
    usual = [name for name in USUAL_METRICS if logged[name]]
    metrics = list(dict.fromkeys([*usual, *options.metrics]))
    _refuse_unknown([*options.metrics, *([options.sort] if options.sort not in SORTS else [])], logged)
    needed = list(logged) if options.json else [*metrics, options.sort]
    rows = [_row(options.folder, run, needed, now) for run in listing.runs]
    chosen = [row for row in rows if _is_chosen(row, options)]
    key: Callable[[ListedRun], Any] = SORTS.get(options.sort) or (lambda row: row.metrics[options.sort])
    known = [row for row in chosen if _is_known(key(row))]
    known.sort(key=key, reverse=options.reverse)
    shown = [*known, *(row for row in chosen if not _is_known(key(row)))]
    if options.json:
        print_document(finite_json({"folder": options.folder, "runs": [row.document() for row in shown]}))
    elif not shown:
        chosen_none = f"None of the {len(rows):,} runs in {options.folder} is what you chose."
        print_lines(chosen_none if rows else f"There is no run in {options.folder}.")
    else:
        head = ("run", "state", "step", "left", *metrics, "last report", "tags")
        numbers = (2, 3, *range(4, 4 + len(metrics)))
        table = aligned([head, *(row.cells(metrics, now) for row in shown)], right=numbers)
        print_lines(*table, *_remarks(listing, len(rows) - len(shown)))
    return ExitCode.DONE


def _listing(folder: str) -> Listing:
    """Return the runs below a folder. Raises ConfigurationError if it is not a folder of this machine."""
    if is_elsewhere(folder):
        raise ConfigurationError(f"You chose the folder {folder}; runs are listed in folders of this machine only.")
    path = as_location(folder)
    if not os.path.isdir(path):
        raise ConfigurationError(f"You chose the folder {folder}, but there is no such folder; check its name.")
    try:
        return WatchedRuns(Path(path)).listing()
    except OSError as error:
        raise ConfigurationError(f"The folder {folder} cannot be listed: {error.strerror or error}.") from error


def _refuse_unknown(names: Sequence[str], logged: Mapping[str, int]) -> None:
    known = [*SORTS, *logged]
    problems = [
        f"You chose {name}, but no run has logged a value of that name; "
        + did_you_mean(name, known, f"they have logged {', '.join(sorted(logged)) or 'nothing'}.")
        for name in names
        if name not in logged
    ]
    if problems:
        raise ConfigurationError(problems)


def _row(folder: str, run: RunListing, metrics: Sequence[str], now: float) -> ListedRun:
    history, total = run.history, total_steps(run.history)
    heard = last_heard(os.path.join(as_location(folder), run.folder), history)
    state = RunState.UNKNOWN if run.problem else state_in(history, now, heard)
    words = run.problem or state_of(history, total, now, heard)
    values = {name: run.last_value(name) for name in metrics}
    return ListedRun(run, state, words, progress_of(history, now, total), values)


def _is_chosen(row: ListedRun, options: Namespace) -> bool:
    labels = row.listing.labels
    return (
        (options.all or not labels.hidden)
        and (not options.states or row.state.value in options.states)
        and set(options.tags) <= set(labels.tags)
    )


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _number_text(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.4g}" if math.isfinite(value) else "not finite"


def _remarks(listing: Listing, left_out: int) -> Iterator[str]:
    if left_out:
        yield f"{left_out:,} more are hidden, or not what you chose; --all lists hidden ones."
    if listing.cut:
        yield "There are more runs than are listed; name a folder further down."


def show(options: Namespace) -> ExitCode:
    """Print what is known about a run."""
    (record,) = read_runs([options.run], quick=True)
    labels = Labels() if is_elsewhere(record.folder) else read_labels(as_location(record.folder))
    now = time.time()
    if options.json:
        print_document(finite_json(_document(record, labels, now)))
    else:
        print_lines(*_lines(record, labels, now))
    return ExitCode.DONE


def _lines(record: RunRecord, labels: Labels, now: float) -> Iterator[str]:
    facts = {"name": record.label, **facts_of(record, now)}
    del facts["curves from"]
    facts |= {"tags": ", ".join(labels.tags)} if labels.tags else {}
    facts |= dict(_machine(record.history.information)) if record.history.information is not None else {}
    facts |= {"command": record.history.command} if record.history.command else {}
    yield from aligned([(name, value) for name, value in facts.items() if value not in (NOTHING, "")])
    if labels.notes:
        yield from ("", "Notes", *(f"  {line}" for line in labels.notes.splitlines()))
    if values := list(_values(record)):
        yield from ("", "Logged values")
        yield from (f"  {line}" for line in aligned([("", "last", "lowest", "highest"), *values], right=(1, 2, 3)))
        more = len(record.history.series) - len(values)
        yield from [f"  and {more:,} more; --json has all"] * (more > 0)
    if rows := record.checkpoints[-MOST_CHECKPOINTS:]:
        which = f", the last {MOST_CHECKPOINTS}" if len(rows) < len(record.checkpoints) else ""
        yield from ("", f"Checkpoints (not verified){which}")
        yield from (f"  {line}" for line in aligned([_checkpoint_cells(row, now) for row in rows], right=(1, 2)))
    if changed := changed_arguments(record):
        yield from ("", "Arguments that differ from the defaults")
        yield from (f"  {line}" for line in aligned([("", "value", "default"), *changed]))
    yield from (f"hexloop: {remark}" for remark in record.remarks)


def _values(record: RunRecord) -> Iterator[tuple[str, ...]]:
    for name, series in list(record.history.series.items())[:MOST_VALUES]:
        if (summary := series.summary()) is not None:
            last = "not finite" if series.ends_in_gap else f"{summary.last[1]:.5g}"
            yield name, last, f"{summary.lowest[1]:.5g}", f"{summary.highest[1]:.5g}"


def _checkpoint_cells(row: Any, now: float) -> tuple[str, ...]:
    name, _, age, size, metric, _, _, marks = row.cells(now)
    status = status_text(row)
    return name, age, size, metric, status if status != "not verified" else "", marks


def _machine(information: RecordedInformation) -> Iterator[tuple[str, str]]:
    yield "host", information.host
    yield "code", information.code
    if information.parameters is not None:
        yield "model", f"{information.model} with {information.parameters:,} parameters"
    if information.training_samples is not None:
        yield "training samples", f"{information.training_samples:,}"


def _document(record: RunRecord, labels: Labels, now: float) -> dict[str, Any]:
    history, progress = record.history, progress_of(record.history, now, record.total_steps)
    heard = last_heard(record.folder, history)
    values = {name: series.summary() for name, series in history.series.items()}
    return {
        "run": history.name,
        "folder": record.folder,
        "state": state_in(history, now, heard).value,
        "description": state_of(history, record.total_steps, now, heard),
        "step": progress.step,
        "total_steps": progress.total,
        "seconds_left": progress.seconds_left,
        "restarts": history.restarts,
        "last_report": history.seen,
        "tags": list(labels.tags),
        "notes": labels.notes,
        "metrics": {
            name: {"last": each.last[1], "step": each.last[0], "lowest": each.lowest[1], "highest": each.highest[1]}
            for name, each in values.items()
            if each is not None
        },
        "checkpoints": [row.document() for row in record.checkpoints],
        "arguments": {name: value for name, value, _ in changed_arguments(record)},
        "command": history.command,
        "remarks": list(record.remarks),
    }
