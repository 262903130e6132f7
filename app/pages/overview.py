"""How far runs are, with which a page starts; and on what machines, from which code and data they were trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from hexloop.app.assembly.storage import is_elsewhere
from hexloop.app.callbacks.console import duration_text
from hexloop.app.checkpoint_rows import format_bytes
from hexloop.app.pages.information import RecordedInformation
from hexloop.app.pages.labels import Labels, read_labels
from hexloop.app.pages.progress import progress_of
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.sections import NOT_KNOWN, best_of, last_of
from hexloop.app.pages.states import RunState, last_heard, state_in, state_of
from hexloop.app.pages.templates import section
from hexloop.domain.state import Cause

COLOURS = {
    RunState.RUNNING: "verified",
    RunState.FINISHED: "verified",
    RunState.PAUSED: "unfinished",
    RunState.STOPPED: "unfinished",
    RunState.FAILED: "damaged",
    RunState.LOST: "damaged",
    RunState.UNKNOWN: "unknown",
}
"""The class of each state: good, bad, or neither."""


def progress_section(records: Sequence[RunRecord], now: float) -> Markup:
    """Return the state of each run, percent, steps, time left, how good it is: of several in a table."""
    runs = [_progress(record, now) for record in records]
    if len(runs) == 1:
        return section("progress", runs=runs)
    names = list(dict.fromkeys(name for run in runs for name, _ in run["facts"]))
    rows = [{**run, "cells": [dict(run["facts"]).get(name, NOT_KNOWN) for name in names]} for run in runs]
    return section("progress_of_several", names=names, runs=rows)


def _progress(record: RunRecord, now: float) -> dict[str, Any]:
    history, progress = record.history, progress_of(record.history, now, record.total_steps)
    heard = last_heard(record.folder, history)
    state = state_of(history, record.total_steps, now, heard)
    return {
        "label": record.label,
        "state": state,
        "colour": COLOURS[state_in(history, now, heard)],
        "percent": None if progress.fraction is None else int(progress.fraction * 100),
        "facts": [(name, value) for name, value in _facts(record, progress.steps_text, progress.left_text) if value],
    }


def _facts(record: RunRecord, steps: str, left: str) -> Iterator[tuple[str, str]]:
    history = record.history
    trained = sum(each.seconds or 0.0 for each in history.sessions.entries)
    spent = sum(history.time_spent.values())
    labels = Labels() if is_elsewhere(record.folder) else read_labels(record.folder)
    yield "steps", steps
    yield "time left", left.replace(NOT_KNOWN, "")
    yield "trained for", duration_text(trained) if trained else ""
    yield "last loss", last_of(history, "loss").replace(" at step ", ", step ") if "loss" in history.series else ""
    best = best_of(record)
    yield "best", "" if best == NOT_KNOWN else best.replace(" at step ", ", step ")
    yield "goodput", f"{history.time_spent[Cause.STEP] / spent:.1%}" if spent else ""
    yield "tags", ", ".join(labels.tags)
    yield "notes", labels.notes


def information_section(records: Sequence[RunRecord]) -> Markup:
    """Return the table of machines, code and sizes, and that of packages; nothing if no run has recorded them."""
    known = [record for record in records if record.history.information != RecordedInformation()]
    if not known:
        return Markup()
    facts = [dict(_information(record.history.information)) for record in known]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows = [(name, *(each.get(name, NOT_KNOWN) for each in facts)) for name in names]
    packages = [record.history.information.packages for record in known]
    distributions = sorted({name for each in packages for name in each}, key=str.lower)
    versions = [(name, *(each.get(name, NOT_KNOWN) for each in packages)) for name in distributions]
    different = [row for row in versions if len(set(row[1:])) > 1]
    labels = [record.label for record in known]
    return section("information", labels=labels, rows=rows, different=different, versions=versions)


def _information(known: RecordedInformation) -> Iterator[tuple[str, str]]:
    cores = "" if known.cpus is None else f"{known.cpus:,} cores"
    memory = "" if known.memory is None else f"{format_bytes(known.memory)} of memory"
    devices = f" ({known.devices:,} ranks)" if known.devices and known.devices > 1 else ""
    trained = (
        "" if known.trainable_parameters in (None, known.parameters) else f"{known.trainable_parameters:,} trained"
    )
    parameters = "" if known.parameters is None else f"{known.parameters:,} parameters"
    size = "" if known.model_bytes is None else format_bytes(known.model_bytes)
    samples = (("training", known.training_samples), ("evaluation", known.evaluation_samples))
    facts = (
        ("host", known.host),
        ("machine", ", ".join(filter(None, [known.processor, cores, memory]))),
        ("system", ", ".join(filter(None, [known.system, known.python and f"Python {known.python}"]))),
        ("device", f"{known.device}{devices}"),
        ("code", known.code),
        ("model", ", ".join(filter(None, [known.model, parameters, trained, size]))),
        ("data", ", ".join(f"{count:,} {name} samples" for name, count in samples if count is not None)),
    )
    yield from ((name, value) for name, value in facts if value)
