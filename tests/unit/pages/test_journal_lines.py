"""Reading journals and logs while a run appends to them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexloop.adapters.journal import JsonLinesJournal, line_batches, notes_in
from hexloop.app.pages.journal_lines import MOST_RUNS, TAIL, RunLines, journal_note, log_note
from hexloop.app.pages.lines import last_lines
from hexloop.domain.limits import reading_limits
from hexloop.domain.regular_files import NotRegularError
from hexloop.domain.run_folder import JOURNAL


def line(kind: str, **facts: Any) -> bytes:
    return json.dumps({"kind": kind, **facts}).encode() + b"\n"


def log(step: int, **values: Any) -> bytes:
    return line("logged", step=step, time=float(step), values=values)


def steps(lines: RunLines, run: str = "one", name: str = "loss") -> list[int]:
    return list(lines.runs[run].series[name].steps)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line("began", run="one", step=0, time=0.0) + log(1, loss=3.0))
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_new_lines_are_read_once(journal: Path) -> None:
    """A line that is being written is read when it is complete; a file that was replaced, from its start."""
    lines = RunLines(journal, journal_note)
    assert lines.refresh()
    assert not lines.refresh()
    whole = log(2, loss=2.0)
    append(journal, whole[:20])
    lines.refresh()
    assert steps(lines) == [1]
    append(journal, whole[20:])
    assert lines.refresh()
    assert steps(lines) == [1, 2]
    assert lines.read.notes == 3
    assert list(lines.read.remarks("journal.jsonl")) == []

    journal.rename(journal.with_name("old"))
    journal.write_bytes(line("began", run="two", step=0) + log(7, loss=1.0) * 9)
    assert lines.refresh()
    assert list(lines.runs) == ["two"]


def test_reading_piece_by_piece_is_reading_at_once(journal: Path) -> None:
    """At whatever byte a piece ends."""
    append(
        journal, b"garbage\n" + log(2, loss=2.0) + line("began", run="two", step=0) + log(5, loss=1.0) + b'{"kind": "lo'
    )
    data = journal.read_bytes()
    whole = RunLines(journal, journal_note)
    whole.refresh()
    growing = journal.with_name("growing")
    growing.write_bytes(b"")
    pieces = RunLines(growing, journal_note)
    for start in range(0, len(data), 7):
        append(growing, data[start : start + 7])
        pieces.refresh()
    assert (pieces.runs, pieces.read) == (whole.runs, whole.read)
    assert whole.read.not_notes == 1


def test_garbage_is_counted_and_left_out(journal: Path) -> None:
    """Lines that are not JSON, not notes, nested deeply, in no encoding, or too long."""
    garbage = [b"\x00\xff", b"[" * 5000, b"{" * 5000, b"5", b'{"kind": 3}', b'{"kind": "a"', b'{"a": 1e999}']
    append(journal, b"\n".join(garbage) + b"\n\n" + log(2, loss=2.0))
    with reading_limits(line_bytes=200):
        append(journal, b'{"kind": "' + b"x" * 1000 + b'"}\n' + log(3, loss=2.0))
        lines = RunLines(journal, journal_note)
        lines.refresh()
        (first, second) = lines.read.remarks("journal.jsonl")
    assert steps(lines) == [1, 2, 3]
    assert first.startswith("5 lines of journal.jsonl are left out: they are not complete")
    assert second == "3 lines of journal.jsonl are left out: they are longer than 200 bytes."


def test_a_line_without_an_end_takes_no_memory(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dropped as it is read, and what follows it is read."""
    monkeypatch.setattr("hexloop.app.pages.journal_lines.CHUNK", 64)
    append(journal, b"x" * 3000 + b"\n" + log(2, loss=2.0))
    with reading_limits(line_bytes=100):
        lines = RunLines(journal, journal_note)
        lines.refresh()
    assert steps(lines) == [1, 2]
    assert lines.read.too_long == 1


def test_the_middle_of_a_file_that_is_too_long_is_left_out(journal: Path) -> None:
    """Its start says what the run is, and its end how it is doing. A remark says what is missing."""
    append(journal, b"".join(log(step, loss=1.0) for step in range(2, 300)))
    with reading_limits(log_bytes=2000):
        lines = RunLines(journal, journal_note)
        lines.refresh()
        (remark,) = lines.read.remarks("journal.jsonl")
        append(journal, log(300, loss=1.0))
        lines.refresh()
    assert remark.startswith(f"{journal.stat().st_size - len(log(300, loss=1.0)) - 2000:,} bytes in the middle")
    found = steps(lines)
    assert found[:3] == [1, 2, 3]
    assert found[-3:] == [298, 299, 300]
    assert len(found) < 40


def test_the_ends_of_a_long_file_tell_what_a_run_is_doing(journal: Path) -> None:
    """Without reading the rest: the time does not depend on its length."""
    append(journal, b"".join(log(step, loss=1.0) for step in range(2, 6000)))
    append(journal, line("ended", step=5999, time=9.0, stopped=False, reasons=[]))
    assert journal.stat().st_size > 4 * TAIL
    lines = RunLines(journal, journal_note)
    lines.read_edges()
    run = lines.runs["one"]
    assert (run.last_step, run.sessions.entries[-1].outcome.value) == (5999, "finished")
    assert len(run.series["loss"]) < 2000
    assert lines.read.not_notes == 0


@pytest.mark.parametrize("length", [0, 1, 10, 100, 1000, TAIL - 1000, TAIL - 100, TAIL, TAIL + 100])
def test_ends_that_meet_are_read_once(journal: Path, length: int) -> None:
    """A short file is read as a whole; of a longer one, no line is taken that lost its start."""
    size = journal.stat().st_size
    append(journal, log(2, loss=2.0, name="x" * max(length - size, 0)) + log(3, loss=1.0))
    lines = RunLines(journal, journal_note)
    lines.read_edges()
    assert steps(lines) in ([1, 2, 3], [2, 3], [3])
    assert (steps(lines) == [1, 2, 3]) or length > TAIL - 1000
    assert lines.read.not_notes == 0


def test_a_journal_whose_first_note_is_long_is_known(tmp_path: Path) -> None:
    """Its arguments may be longer than what is read of the end."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(line("began", run="one", step=0, settings={"a": "x" * 3 * TAIL}) + log(1, loss=1.0) * 2000)
    lines = RunLines(path, journal_note)
    lines.read_edges()
    assert list(lines.runs) == ["one"]


def test_notes_of_steps_only_move_the_run(journal: Path) -> None:
    """With journal='steps' most notes are of this kind; no curve is drawn from them."""
    append(journal, b"".join(line("step", step=step, time=float(step), batches=["x"]) for step in range(2, 50)))
    lines = RunLines(journal, journal_note)
    lines.refresh()
    assert (lines.runs["one"].last_step, lines.runs["one"].seen) == (49, 49.0)


def test_several_runs_of_a_journal_are_kept_apart(journal: Path) -> None:
    """The last to start is at the end; a resumed one continues."""
    append(journal, line("began", run="two", step=0) + log(5, loss=1.0))
    append(journal, line("began", run="one", step=1) + log(2, loss=2.0))
    lines = RunLines(journal, journal_note)
    lines.refresh()
    assert list(lines.runs) == ["two", "one"]
    assert (steps(lines, "one"), steps(lines, "two")) == ([1, 2], [5])


def test_runs_beyond_a_number_are_dropped(journal: Path) -> None:
    """The oldest, and how many is counted."""
    append(journal, b"".join(line("began", run=f"run {number}", step=0) for number in range(MOST_RUNS + 4)))
    lines = RunLines(journal, journal_note)
    lines.refresh()
    assert (len(lines.runs), lines.dropped, next(iter(lines.runs))) == (MOST_RUNS, 5, "run 4")


def test_notes_before_the_first_start_are_a_run_without_a_name(tmp_path: Path) -> None:
    """As in a journal that lost its start."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(log(3, loss=1.0))
    lines = RunLines(path, journal_note)
    lines.refresh()
    assert steps(lines, "") == [3]


def test_logs_of_json_lines_are_read_as_notes(tmp_path: Path) -> None:
    """Starts, resumes and records."""
    path = tmp_path / "log.jsonl"
    records = [
        {"event": "started", "run": "one", "step": 0, "total_steps": 9},
        {"step": 2, "epoch": 0.5, "loss": 3.0},
        {"step": 4, "epoch": 1.0, "loss": 2.0},
        {"event": "resumed", "run": "one", "step": 2, "total_steps": 9},
        {"step": 4, "epoch": 1.0, "loss": 1.0},
        ["no record"],
        {"event": "unknown"},
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    lines = RunLines(path, log_note)
    lines.refresh()
    run = lines.runs["one"]
    assert list(run.series["loss"].values) == [3.0, 1.0]
    assert (run.total_steps, len(run.sessions.entries), lines.read.not_notes) == (9, 2, 2)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "missing"])
def test_only_regular_files_are_read(journal: Path, kind: str) -> None:
    """A pipe would block, and a link may lead to a file that is not meant."""
    path = journal.with_name("other")
    if kind == "link":
        path.symlink_to(journal)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(OSError, match=r"link|regular|No such file"):
        RunLines(path, journal_note).refresh()


def test_a_hidden_folder_that_is_a_link_is_not_followed(journal: Path, tmp_path: Path) -> None:
    """It may lead to another user's run; every reader of a journal refuses it, and so does its writer."""
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    planted = run / JOURNAL
    (other / planted.name).write_bytes(journal.read_bytes())
    planted.parent.symlink_to(other)
    before = os.listdir(other)
    uses: list[Callable[[Path], object]] = [
        lambda path: RunLines(path, journal_note).refresh(),
        lambda path: RunLines(path, journal_note).read_edges(),
        lambda path: next(notes_in(path)),
        lambda path: next(line_batches(path)),
        last_lines,
        lambda path: JsonLinesJournal(path).note("began", run="one"),
    ]
    for use in uses:
        with pytest.raises(NotRegularError, match="link"):
            use(planted)
    assert os.listdir(other) == before
