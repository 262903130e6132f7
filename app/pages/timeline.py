"""The time line of runs: when each was trained, when it was stopped, lost and resumed, and when it saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from hexloop.app.callbacks.console import duration_text
from hexloop.app.pages.history import Outcome, Save, Session
from hexloop.app.pages.markup import Markup, joined, table, tag
from hexloop.app.pages.reading import RunRecord

WIDTH, HEIGHT = 1000, 28
"""The size of a run's bar in units of the drawing."""

MOST_MARKS = 400
"""How many saves and sessions of a run are drawn."""

MOST_ROWS = 200
"""How many sessions of a run, or saves, are listed."""

RUNNING_FOR = 600.0
"""Seconds without a report after which a run is taken for lost."""

CLASSES = {Outcome.FINISHED: "finished", Outcome.STOPPED: "stopped", Outcome.FAILED: "failed", Outcome.LOST: "lost"}


def moment(seconds: float | None) -> str:
    """Return a time since the epoch as text, in UTC; "-" if it is unknown or not a time."""
    if seconds is None:
        return "-"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "-"


def outcome_of(session: Session, now: float) -> str:
    """Return how a session ended, in words, or that it may still run."""
    if session.outcome is Outcome.LOST and session.seen is not None and now - session.seen < RUNNING_FOR:
        return "running, or killed a moment ago"
    words = {
        Outcome.LOST: "killed, or its machine failed: it did not report its end",
        Outcome.FAILED: "ended by an error",
    }.get(session.outcome, session.outcome.value)
    return f"{words}: {'; '.join(session.reasons)}" if session.reasons else words


def timeline_part(records: Sequence[RunRecord], now: float) -> Markup:
    """Return the bars of all runs on one scale of time, and the table of their sessions."""
    times = [
        time
        for record in records
        for each in record.history.sessions.entries
        for time in (each.began, each.seen)
        if time
    ]
    parts: list[Markup] = []
    if times and max(times) > min(times):
        for record in records:
            parts += [tag("p", record.label, class_="row-label"), _bar(record, min(times), max(times), now)]
        span = f"From {moment(min(times))} to {moment(max(times))} UTC, {duration_text(max(times) - min(times))}. "
        parts.append(
            tag("p", span, "A bar is the time in which a process trained; a short line is a checkpoint.", class_="note")
        )
    rows = [row for record in records for row in _rows(record, now)]
    head = ("run", "started (UTC)", "steps", "trained for", "then", "repeated steps", "interruption before")
    return joined(parts, table(head, rows, "Starts, restarts and preemptions", numbers=(2, 3, 5, 6)))


def _bar(record: RunRecord, start: float, end: float, now: float) -> Markup:
    scale = WIDTH / (end - start)
    shapes = [tag("rect", x="0", y="12", width=str(WIDTH), height="4", class_="rail")]
    for each in record.history.sessions.entries[-MOST_MARKS:]:
        if each.began is None or each.seen is None:
            continue
        left, width = (each.began - start) * scale, max((each.seen - each.began) * scale, 2.0)
        title = tag("title", f"steps {each.first:,} to {each.last:,}: {outcome_of(each, now)}")
        shape = tag(
            "rect", x=f"{left:.1f}", y="4", width=f"{width:.1f}", height="20", class_=f"session {CLASSES[each.outcome]}"
        )
        shapes.append(tag("g", title, shape))
    for save in record.history.saves.entries[-MOST_MARKS:]:
        if (at := save.phases.get("published")) is not None and start <= at <= end:
            x = f"{(at - start) * scale:.1f}"
            shapes.append(
                tag("g", tag("title", save.checkpoint), tag("line", x1=x, x2=x, y1="0", y2="28", class_="save"))
            )
    words = f"Time line of {record.label}: {len(record.history.sessions.entries)} sessions; the table below lists them."
    return tag(
        "svg", shapes, viewBox=f"0 0 {WIDTH} {HEIGHT}", preserveAspectRatio="none", class_="timeline", role="img",
        aria_label=words,
    )  # fmt: skip


def _rows(record: RunRecord, now: float) -> Iterator[tuple[str, ...]]:
    before: Session | None = None
    for each in record.history.sessions.entries[-MOST_ROWS:]:
        pause = "-"
        if before is not None and before.seen is not None and each.began is not None:
            pause = duration_text(max(each.began - before.seen, 0.0))
        yield (
            record.label,
            moment(each.began),
            f"{each.first:,} to {each.last:,}",
            "-" if each.seconds is None else duration_text(each.seconds),
            outcome_of(each, now),
            f"{each.repeated:,}" if each.repeated else "-",
            pause,
        )
        before = each


def saves_part(records: Sequence[RunRecord]) -> Markup:
    """Return what each save cost: how long training waited, and after what time the checkpoint was durable."""
    rows, shown = [], 0
    for record in records:
        saves: list[Save] = record.history.saves.entries
        shown += len(saves)
        rows += [_save_row(record.label, save) for save in saves[-MOST_ROWS:]]
    if not rows:
        return tag("p", "The journal has no saves.", class_="note")
    waited = [save.waited for record in records for save in record.history.saves.entries if save.waited is not None]
    words = f"{shown:,} saves; training waited {duration_text(sum(waited))} for them" if waited else f"{shown:,} saves"
    if waited:
        words += f", at most {duration_text(max(waited))} for one"
    cut = f" The last {MOST_ROWS} of each run are listed." if shown > len(rows) else ""
    head = ("run", "checkpoint", "size", "training waited", "durable after", "written at", "result")
    listed = table(head, rows, "What each save cost", numbers=(2, 3, 4, 5))
    return joined(
        tag("p", f"{words}.{cut}"), tag("details", tag("summary", "Every save"), listed, open=len(rows) <= 12)
    )


def _save_row(label: str, save: Save) -> tuple[str, ...]:
    from hexloop.app.checkpoint_rows import format_bytes

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
