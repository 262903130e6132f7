"""The parts of a page in words and tables: runs, checkpoints, arguments, results, and how to reproduce and resume."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.recorded import settings_of, untouched
from hexloop.app.callbacks.console import duration_text
from hexloop.app.checkpoint_rows import CheckpointRow, format_age, format_bytes
from hexloop.app.environment import DistributedEnvironment
from hexloop.app.pages.history import Outcome, RunHistory, Session, number_of
from hexloop.app.pages.markup import Markup, joined, picture_element, table, tag, text_lines
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.timeline import RUNNING_FOR, moment, outcome_of
from hexloop.app.wiring.storage import joined as path_joined
from hexloop.domain.checkpoints.survey import FolderStatus
from hexloop.domain.redaction import is_secret_name, redacted

LONGEST_VALUE = 300
"""Characters of an argument's value that are shown."""

MOST_CHECKPOINTS = 300
"""How many checkpoints of a run are listed."""

MOST_OTHERS = 5
"""How many of the other runs in a folder are named, the last ones."""

NOT_KNOWN = "-"


def overview_part(records: Sequence[RunRecord], now: float) -> Markup:
    """Return the table of the runs: how far each is, how good, and on what it was trained."""
    facts = [_facts(record, now) for record in records]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows = [(name, *(each.get(name, NOT_KNOWN) for each in facts)) for name in names]
    return table(("", *(record.label for record in records)), rows, "Runs" if len(records) > 1 else "The run")


def state_of(history: RunHistory, total: int | None, now: float) -> str:
    """Return what a run is doing, or how it ended, in words."""
    sessions: list[Session] = history.sessions.entries
    if not sessions:
        return "unknown: there is no journal"
    words = outcome_of(sessions[-1], now)
    if history.paused_at is not None and sessions[-1].outcome is Outcome.LOST:
        silent = now - (history.seen or 0.0) >= RUNNING_FOR
        return f"paused at step {history.paused_at:,}{', or killed since' if silent else ''}"
    if sessions[-1].outcome is Outcome.FINISHED and total and history.last_step < total:
        return "finished early"
    return words


def _facts(record: RunRecord, now: float) -> dict[str, str]:
    history, total = record.history, record.total_steps
    sessions: list[Session] = history.sessions.entries
    trained = sum(each.seconds or 0.0 for each in sessions)
    facts = {
        "state": state_of(history, total, now),
        "steps": f"{history.last_step:,}" + (f" of {total:,} ({history.last_step / total:.0%})" if total else ""),
        "started (UTC)": moment(sessions[0].began) if sessions else NOT_KNOWN,
        "last report (UTC)": moment(history.seen),
        "trained for": duration_text(trained) if trained else NOT_KNOWN,
        "restarts": f"{max(len(sessions) - 1, 0) + history.sessions.dropped:,}",
        "last loss": _last(history, "loss"),
        "best metric": _best(record),
        "checkpoints": _checkpoint_counts(record.checkpoints),
        "folder": record.folder,
        "run": history.name or NOT_KNOWN,
        "curves from": record.source or "nothing: the run has logged no values",
    }
    if record.others:
        more = f" and {len(record.others) - MOST_OTHERS} more" if len(record.others) > MOST_OTHERS else ""
        facts["other runs in the folder"] = f"{', '.join(record.others[-MOST_OTHERS:])}{more}"
    return facts | {name.replace("_", " "): str(value) for name, value in record.environment.items()}


def _last(history: RunHistory, name: str) -> str:
    series = history.series.get(name)
    summary = None if series is None else series.summary()
    finite = NOT_KNOWN if summary is None else f"{summary.last[1]:.5g} at step {summary.last[0]:,}"
    if series is None or not series.ends_in_gap:
        return finite
    return f"not finite at step {series.gaps[-1]:,}" + (f"; before, {finite}" if summary is not None else "")


def _best(record: RunRecord) -> str:
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


def checkpoints_part(records: Sequence[RunRecord], now: float) -> Markup:
    """Return the table of checkpoints, with the reason for each that is not good."""
    rows, cut = [], 0
    for record in records:
        cut += max(len(record.checkpoints) - MOST_CHECKPOINTS, 0)
        for row in record.checkpoints[-MOST_CHECKPOINTS:]:
            manifest = row.found.manifest
            marks = ", ".join(["newest"] * row.newest + ["best"] * row.best)
            status = tag("span", status_text(row), class_=f"status {status_text(row).replace(' ', '-')}")
            rows.append(
                (
                    record.label,
                    row.found.name,
                    NOT_KNOWN if manifest is None else f"{manifest.step:,}",
                    format_age(None if row.written is None else now - row.written),
                    format_bytes(row.found.size),
                    NOT_KNOWN if row.metric is None else f"{row.metric[0]} {row.metric[1]:.5g}",
                    joined(status, f": {reason_text(row)}" if row.found.reason else ""),
                    marks,
                )
            )
    if not rows:
        return tag("p", "There is no checkpoint.", class_="note")
    head = ("run", "checkpoint", "step", "age", "size", "metric", "state", "")
    note = tag("p", f"{cut:,} earlier checkpoints are not listed.", class_="note") if cut else ""
    return joined(table(head, rows, "Checkpoints", numbers=(2, 3, 4)), note)


def arguments_part(records: Sequence[RunRecord]) -> Markup:
    """Return the arguments that differ between runs; for one run, those that differ from the defaults; and all."""
    settings = [redacted(record.history.settings) for record in records]
    if not any(settings):
        return tag("p", "The journal has no arguments.", class_="note")
    names = sorted({str(name) for each in settings for name in each})
    labels = [record.label for record in records]
    rows = [(name, *(_value(each, name) for each in settings)) for name in names]
    listed = table(("argument", *labels), rows, "All arguments")
    everything = tag("details", tag("summary", f"All {len(rows):,} arguments"), listed)
    if len(records) > 1:
        different = [row for row in rows if len(set(row[1:])) > 1]
        first = (
            table(("argument", *labels), different, "Arguments that differ")
            if different
            else tag("p", "The runs have equal arguments.")
        )
        return joined(first, everything)
    known = records[0].history.defaults
    defaults = _defaults() if known is None else {str(name): _value(known, name) for name in redacted(known)}
    changed = [(*row, defaults[row[0]]) for row in rows if row[0] in defaults and defaults[row[0]] != row[1]]
    if known is None:  # earlier releases wrote the same for a secret that is set and for one that is not
        changed = [row for row in changed if not is_secret_name(row[0]) or row[1] == "<CHECKPOINT_KEY>"]
    first = table(("argument", "value", "default"), changed, "Arguments that differ from the defaults")
    return joined(first if changed else tag("p", "All arguments have their defaults."), everything)


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


def results_part(records: Sequence[RunRecord]) -> Markup:
    """Return the pictures, metrics and texts that the runs left in their folders; nothing if there are none."""
    tables, pictures, texts = list[Markup](), list[Markup](), list[Markup]()
    for record in records:
        found = record.results
        prefix = f"{record.label}: " if len(records) > 1 else ""
        for name, values in found.metrics.items():
            rows = [(key, f"{value:.6g}" if isinstance(value, float) else str(value)) for key, value in values.items()]
            tables.append(table(("value", "result"), rows, f"{prefix}{name}", numbers=(1,)))
        for name, (media_type, data) in found.pictures.items():
            picture = picture_element(f"{prefix}{name}", media_type, data)
            pictures.append(tag("figure", picture, tag("figcaption", f"{prefix}{name}"), class_="picture"))
        for name, lines in found.texts.items():
            text = tag("pre", text_lines(line[:LONGEST_VALUE] for line in lines), tabindex="0")
            texts.append(tag("figure", tag("figcaption", f"{prefix}{name}"), text))
    return joined(tables, tag("div", pictures, class_="plots") if pictures else "", texts)


def reproducing_part(records: Sequence[RunRecord]) -> Markup:
    """Return how each run can be started again, resumed, and compared with a repetition."""
    return joined([_reproducing(record, len(records) > 1) for record in records])


def _reproducing(record: RunRecord, several: bool) -> Markup:
    heading = [tag("h3", record.label)] if several else []
    return joined(
        heading, [joined(tag("p", words), tag("pre", command, tabindex="0")) for words, command in _ways(record)]
    )


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
    finished = any(each.outcome is Outcome.FINISHED for each in record.history.sessions.entries[-1:])
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
