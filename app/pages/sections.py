"""The sections of a page in words and tables: runs, time line, checkpoints, results, how to reproduce and resume."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.recorded import settings_of, untouched
from hexloop.app.assembly.storage import joined as path_joined
from hexloop.app.callbacks.console import duration_text
from hexloop.app.checkpoint_rows import CheckpointRow, format_age, format_bytes
from hexloop.app.environment import DistributedEnvironment
from hexloop.app.pages.history import IrregularStep, RecordedSession, RunEnding, RunHistory, Save, number_of
from hexloop.app.pages.progress import progress_of
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.states import last_heard, outcome_of, session_state, state_of
from hexloop.app.pages.templates import section
from hexloop.domain.checkpoints.survey import FolderStatus
from hexloop.domain.redaction import is_secret_name, redacted
from hexloop.domain.state import Cause

LONGEST_VALUE = 300
"""Characters of an argument's value that are shown."""

MOST_CHECKPOINTS = 300
"""How many checkpoints of a run are listed."""

MOST_OTHERS = 5
"""How many of the other runs in a folder are named, the last ones."""

MOST_ROWS = 200
"""How many sessions of a run, saves, or steps whose loss was not usable, are listed, the last ones."""

MOST_MARKS = 400
"""How many saves and sessions of a run are drawn."""

WIDTH, HEIGHT = 1000, 28
"""The size of a run's bar on the time line in units of the drawing."""

NOT_KNOWN = "-"


def moment(seconds: float | None) -> str:
    """Return a time since the epoch as text, in UTC; "-" if it is unknown or not a time."""
    if seconds is None:
        return "-"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "-"


def overview_section(records: Sequence[RunRecord], now: float) -> Markup:
    """Return the table of the runs: how far each is, how good, and on what it was trained."""
    facts = [facts_of(record, now) for record in records]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows = [(name, *(each.get(name, NOT_KNOWN) for each in facts)) for name in names]
    caption = "Runs" if len(records) > 1 else "The run"
    return section("table", head=("", *(record.label for record in records)), rows=rows, caption=caption)


def facts_of(record: RunRecord, now: float) -> dict[str, str]:
    """Return how far a run is, how good, and on what it was trained, in words."""
    history, total = record.history, record.total_steps
    progress = progress_of(history, now, total)
    sessions: list[RecordedSession] = history.sessions.entries
    trained = sum(each.seconds or 0.0 for each in sessions)
    facts = {
        "state": state_of(history, total, now, last_heard(record.folder, history)),
        "steps": progress.steps_text,
        "time left": progress.left_text,
        "started (UTC)": moment(sessions[0].began) if sessions else NOT_KNOWN,
        "last report (UTC)": moment(history.seen),
        "trained for": duration_text(trained) if trained else NOT_KNOWN,
        "restarts": f"{history.restarts:,}",
        "last loss": last_of(history, "loss"),
        "best metric": best_of(record),
        "checkpoints": _checkpoint_counts(record.checkpoints),
        "folder": record.folder,
        "run": history.name or NOT_KNOWN,
        "curves from": record.source or "nothing: the run has logged no values",
    }
    if record.others:
        more = f" and {len(record.others) - MOST_OTHERS} more" if len(record.others) > MOST_OTHERS else ""
        facts["other runs in the folder"] = f"{', '.join(record.others[-MOST_OTHERS:])}{more}"
    return facts | {name.replace("_", " "): str(value) for name, value in record.environment.items()}


def last_of(history: RunHistory, name: str) -> str:
    """Return the value that was logged last under a name, in words."""
    series = history.series.get(name)
    summary = None if series is None else series.summary()
    finite = NOT_KNOWN if summary is None else f"{summary.last[1]:.5g} at step {summary.last[0]:,}"
    if series is None or not series.ends_in_gap:
        return finite
    return f"not finite at step {series.gaps[-1]:,}" + (f"; before, {finite}" if summary is not None else "")


def best_of(record: RunRecord) -> str:
    """Return the best metric of a run, in words."""
    best = number_of(record.state.get("best_metric"))
    step = record.state.get("best_global_step")
    if best is None:
        return NOT_KNOWN
    name = str(record.history.settings.get("metric_for_best_model", "")).removeprefix("eval_")
    known = name and name != "None"
    return f"{f'eval_{name} ' if known else ''}{best:.5g}" + (f" at step {step:,}" if isinstance(step, int) else "")


def _checkpoint_counts(rows: Sequence[CheckpointRow]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[status_text(row)] = counts.get(status_text(row), 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "none"


def status_text(row: CheckpointRow) -> str:
    """Return the condition of a checkpoint in the words of a page."""
    words = {FolderStatus.GOOD: "verified", FolderStatus.BAD: "damaged"}
    return words.get(row.found.status, row.found.status.value)


def reason_text(row: CheckpointRow) -> str:
    """Return why a checkpoint is not good, without its name and without the word that `status_text` has."""
    return row.found.reason.removeprefix("is damaged: ")


def irregular_section(records: Sequence[RunRecord]) -> Markup:
    """Return the table of steps whose loss or gradient norm was not usable; nothing if there are none."""
    rows, dropped = list[tuple[str, ...]](), 0
    for record in records:
        steps: list[IrregularStep] = record.history.irregular.entries
        dropped += record.history.irregular.dropped + max(len(steps) - MOST_ROWS, 0)
        rows += [_irregular_row(record.label, each) for each in steps[-MOST_ROWS:]]
    if not rows:
        return Markup()
    return section("irregular", rows=rows, left_out=f"{dropped:,} further steps are not listed." if dropped else "")


def groups_section(records: Sequence[RunRecord]) -> Markup:
    """Return the table of the parameter groups that rules made; nothing if there are none."""
    rows = [
        (
            record.label,
            each.rule or "no rule",
            each.patterns or NOT_KNOWN,
            each.optimizer,
            *(NOT_KNOWN if count is None else f"{count:,}" for count in (each.tensors, each.parameters)),
            *(NOT_KNOWN if number is None else f"{number:g}" for number in (each.learning_rate, each.weight_decay)),
        )
        for record in records
        for each in record.history.groups
    ]
    if not rows:
        return Markup()
    head = ("run", "rule", "patterns", "optimizer", "tensors", "parameters", "peak learning rate", "weight decay")
    return section("table", head=head, rows=rows, caption="Parameter groups", numbers=(4, 5, 6, 7))


CAUSES = {
    Cause.STEP: "steps (goodput)",
    Cause.DATA: "waiting for data",
    Cause.SAVING: "saving",
    Cause.EVALUATING: "evaluating",
    Cause.COMPILING: "compiling",
    Cause.STARTING: "starting",
    Cause.RESTARTING: "restarting, and repeating steps",
    Cause.PAUSED: "paused",
    Cause.OTHER: "other: callbacks, logs, the program",
}
"""What the time of a run goes into, in the words of a page."""


def time_section(records: Sequence[RunRecord]) -> Markup:
    """Return what the time of the runs went into, and the profiles that they left; nothing if neither is known."""
    measured = [record for record in records if record.history.time_spent]
    rows = [(words, *(_time_cell(record, cause) for record in measured)) for cause, words in CAUSES.items()]
    totals = ["all", *(duration_text(sum(record.history.time_spent.values())) for record in measured)]
    profiles = [
        (record.label, f"{each.first:,} to {each.last:,}", *(path_joined(record.folder, path) for path in paths))
        for record in records
        for each in record.history.profiles.entries[-MOST_ROWS:]
        for paths in [(each.trace, each.table)]
    ]
    if not measured and not profiles:
        return Markup()
    labels = [record.label for record in measured]
    return section("time", labels=labels, rows=[*rows, totals] if measured else [], profiles=profiles)


def _time_cell(record: RunRecord, cause: Cause) -> str:
    seconds = record.history.time_spent
    part = seconds[cause]
    return f"{part / sum(seconds.values()):.1%} ({duration_text(part)})" if part else NOT_KNOWN


def _irregular_row(label: str, step: IrregularStep) -> tuple[str, ...]:
    done = step.done if step.back_to is None else f"{step.done}; the run continued from step {step.back_to:,}"
    return label, f"{step.step:,}", step.what, step.value, step.samples, done


def timeline_section(records: Sequence[RunRecord], now: float) -> Markup:
    """Return the bars of all runs on one scale of time, and the table of their sessions."""
    times = [
        time
        for record in records
        for each in record.history.sessions.entries
        for time in (each.began, each.seen)
        if time
    ]
    bars, span = list[Any](), ""
    if times and max(times) > min(times):
        bars = [_bar(record, min(times), max(times), now) for record in records]
        span = (
            f"From {moment(min(times))} to {moment(max(times))} UTC, {duration_text(max(times) - min(times))}. "
            "A bar is the time in which a process trained; a short line is a checkpoint."
        )
    rows = [row for record in records for row in _session_rows(record, now)]
    return section("timeline", bars=bars, width=WIDTH, height=HEIGHT, span=span, rows=rows)


def _bar(record: RunRecord, start: float, end: float, now: float) -> dict[str, Any]:
    scale = WIDTH / (end - start)
    entries: list[RecordedSession] = record.history.sessions.entries
    sessions = [
        {
            "title": f"steps {each.first:,} to {each.last:,}: {outcome_of(each, now, *last)}",
            "x": f"{(each.began - start) * scale:.1f}",
            "width": f"{max((each.seen - each.began) * scale, 2.0):.1f}",
            "state": session_state(each, now, *last).value,
        }
        for each in entries[-MOST_MARKS:]
        if each.began is not None and each.seen is not None
        for last in [_last_of(record, each)]
    ]
    saves = [
        {"title": save.checkpoint, "x": f"{(at - start) * scale:.1f}"}
        for save in record.history.saves.entries[-MOST_MARKS:]
        if (at := save.phases.get("published")) is not None and start <= at <= end
    ]
    words = f"Time line of {record.label}: {len(record.history.sessions.entries)} sessions; the table below lists them."
    return {"label": record.label, "words": words, "sessions": sessions, "saves": saves}


def _last_of(record: RunRecord, session: RecordedSession) -> tuple[bool, float | None]:
    """Return whether a session is the last of its run, and if it is, when it last read commands."""
    is_last = session is record.history.sessions.entries[-1]
    return is_last, last_heard(record.folder, record.history) if is_last else None


def _session_rows(record: RunRecord, now: float) -> Iterator[tuple[str, ...]]:
    before: RecordedSession | None = None
    for each in record.history.sessions.entries[-MOST_ROWS:]:
        pause = "-"
        if before is not None and before.seen is not None and each.began is not None:
            pause = duration_text(max(each.began - before.seen, 0.0))
        yield (
            record.label,
            moment(each.began),
            f"{each.first:,} to {each.last:,}",
            "-" if each.seconds is None else duration_text(each.seconds),
            outcome_of(each, now, *_last_of(record, each)),
            f"{each.repeated:,}" if each.repeated else "-",
            pause,
        )
        before = each


def checkpoints_section(records: Sequence[RunRecord], now: float) -> Markup:
    """Return the table of checkpoints, with the reason for each that is not good."""
    rows = [
        _checkpoint_row(record.label, row, now) for record in records for row in record.checkpoints[-MOST_CHECKPOINTS:]
    ]
    if not rows:
        return section("note", words="There is no checkpoint.")
    cut = sum(max(len(record.checkpoints) - MOST_CHECKPOINTS, 0) for record in records)
    return section("checkpoints", rows=rows, left_out=f"{cut:,} earlier checkpoints are not listed." if cut else "")


def _checkpoint_row(label: str, row: CheckpointRow, now: float) -> dict[str, Any]:
    manifest = row.found.manifest
    cells = (
        label,
        row.found.name,
        NOT_KNOWN if manifest is None else f"{manifest.step:,}",
        format_age(None if row.written is None else now - row.written),
        format_bytes(row.found.size),
        NOT_KNOWN if row.metric is None else f"{row.metric[0]} {row.metric[1]:.5g}",
    )
    reason = f": {reason_text(row)}" if row.found.reason else ""
    marks = ", ".join(["newest"] * row.newest + ["best"] * row.best)
    return {"cells": cells, "status": status_text(row), "reason": reason, "marks": marks}


def saves_section(records: Sequence[RunRecord]) -> Markup:
    """Return what each save cost: how long training waited, and after what time the checkpoint was durable."""
    rows, shown = [], 0
    for record in records:
        saves: list[Save] = record.history.saves.entries
        shown += len(saves)
        rows += [_save_row(record.label, save) for save in saves[-MOST_ROWS:]]
    if not rows:
        return section("note", words="The journal has no saves.")
    waited = [save.waited for record in records for save in record.history.saves.entries if save.waited is not None]
    words = f"{shown:,} saves; training waited {duration_text(sum(waited))} for them" if waited else f"{shown:,} saves"
    if waited:
        words += f", at most {duration_text(max(waited))} for one"
    cut = f" The last {MOST_ROWS} of each run are listed." if shown > len(rows) else ""
    return section("saves", words=f"{words}.{cut}", rows=rows, open=len(rows) <= 12)


def _save_row(label: str, save: Save) -> tuple[str, ...]:
    writing = save.phases.get("written", 0.0) - save.phases.get("first_byte", 0.0)
    known = "written" in save.phases and "first_byte" in save.phases and save.size is not None and writing > 0
    result = f"failed: {save.error}" if save.error else "published" if "published" in save.phases else "not published"
    return (
        label,
        save.checkpoint,
        format_bytes(save.size),
        "-" if save.waited is None else duration_text(save.waited),
        "-" if save.total is None else duration_text(save.total),
        f"{format_bytes(round((save.size or 0) / writing))}/s" if known else "-",
        result,
    )


def arguments_section(records: Sequence[RunRecord]) -> Markup:
    """Return the arguments that differ between runs; for one run, those that differ from the defaults; and all."""
    settings = [redacted(record.history.settings) for record in records]
    if not any(settings):
        return section("note", words="The journal has no arguments.")
    names = sorted({str(name) for each in settings for name in each})
    labels = [record.label for record in records]
    rows = [(name, *(_value(each, name) for each in settings)) for name in names]
    if len(records) > 1:
        different = [row for row in rows if len(set(row[1:])) > 1]
        caption, without = "Arguments that differ", "The runs have equal arguments."
        head = ["argument", *labels]
    else:
        different = _changed(records[0].history.defaults, rows)
        caption, without = "Arguments that differ from the defaults", "All arguments have their defaults."
        head = ["argument", "value", "default"]
    return section(
        "arguments", head=head, different=different, caption=caption, without=without, labels=labels, rows=rows
    )


def changed_arguments(record: RunRecord) -> list[tuple[str, ...]]:
    """Return name, value and default of the arguments of a run that differ from the defaults."""
    settings = redacted(record.history.settings)
    return _changed(record.history.defaults, [(name, _value(settings, name)) for name in sorted(map(str, settings))])


def _changed(known: Mapping[str, Any] | None, rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the arguments of a run that differ from their defaults. known: the defaults that its journal has."""
    defaults = _defaults() if known is None else {str(name): _value(known, name) for name in redacted(known)}
    changed = [(*row, defaults[row[0]]) for row in rows if row[0] in defaults and defaults[row[0]] != row[1]]
    if known is None:  # earlier releases wrote the same for a secret that is set and for one that is not
        changed = [row for row in changed if not is_secret_name(row[0]) or row[1] == "<CHECKPOINT_KEY>"]
    return changed


def _value(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return NOT_KNOWN
    value = settings[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}... ({len(text):,} characters)"


def _defaults() -> dict[str, str]:
    """Return the defaults of the training arguments on this machine, for a journal that does not have them."""
    made = untouched(TrainingArguments, {"output_dir": ""})
    made.distributed_environment = DistributedEnvironment(n_gpu=0)  # to look for a GPU takes longer than the report
    defaults = settings_of(made)
    return {name: _value(defaults, name) for name in TrainingArguments.__dataclass_fields__ if name in defaults}


def results_section(records: Sequence[RunRecord]) -> Markup:
    """Return the pictures, metrics and texts that the runs left in their folders; nothing if there are none."""
    tables, pictures, texts = list[Any](), list[Any](), list[Any]()
    for record in records:
        found = record.results
        prefix = f"{record.label}: " if len(records) > 1 else ""
        for name, values in found.metrics.items():
            rows = [(key, f"{value:.6g}" if isinstance(value, float) else str(value)) for key, value in values.items()]
            tables.append((f"{prefix}{name}", rows))
        pictures += [(f"{prefix}{name}", media_type, data) for name, (media_type, data) in found.pictures.items()]
        texts += [(f"{prefix}{name}", [each[:LONGEST_VALUE] for each in lines]) for name, lines in found.texts.items()]
    if not tables and not pictures and not texts:
        return Markup()
    return section("results", tables=tables, pictures=pictures, texts=texts)


def reproducing_section(records: Sequence[RunRecord]) -> Markup:
    """Return how each run can be started again, resumed, and compared with a repetition."""
    return section("reproducing", runs=[(record.label, list(_ways(record))) for record in records])


def _ways(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield what can be done with a run, and the commands or lines for it."""
    command, newest = record.history.command, record.newest_good
    seed = {name: record.history.settings.get(name) for name in ("seed", "data_seed", "full_determinism")}
    versions = ", ".join(f"{name} {value}" for name, value in record.environment.items())
    known = ", ".join(f"{name}={value}" for name, value in seed.items() if value not in (None, "None"))
    if command:
        yield f"The run was started with this command{f', with {known}' if known else ''}:", command
    elif known:
        yield "The run's seeds (its command was not recorded):", known
    if versions:
        yield "Results are bit-identical only where these are the same:", versions
    finished = any(each.outcome is RunEnding.FINISHED for each in record.history.sessions.entries[-1:])
    start = "The run is finished. With more steps or epochs, it" if finished else "It"
    if newest is None:
        yield (
            "It cannot be resumed, because it has no good checkpoint. To start again, run its command:",
            command or "-",
        )
    elif command.startswith("hexloop ") and " train " in f" {command} ":
        resume = command if " --resume" in command else f"{command} --resume"
        yield f"{start} resumes from {newest.found.name} with:", resume
    else:
        path = path_joined(record.folder, newest.found.name)
        yield f"{start} resumes, in the script that trains it, with:", f"trainer.train(resume_from_checkpoint={path!r})"
    again = f"hexloop runs diff {shlex.quote(record.given)} OUTPUT_DIR_OF_THE_REPETITION"
    yield "To compare a repetition with it, step by step:", again
