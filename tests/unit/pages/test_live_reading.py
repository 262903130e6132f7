"""Reading a run again and again while it grows: the same as reading it once, at the cost of what is new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages import journal_lines
from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.journal_lines import RunLines, journal_note
from hexloop.app.pages.reading import RunReader, locate, read_runs

ODD: list[Any] = ["NaN", "-Infinity", None, True, "text", 10**400, 2**60, -3, [1], {"a": 1}]


def lines(*notes: Any) -> bytes:
    return b"".join(json.dumps(note).encode() + b"\n" for note in notes)


def logged(step: Any, **values: Any) -> dict[str, Any]:
    return {"kind": "logged", "time": 100.0 + (step if type(step) is int else 0), "step": step, "values": values}


def reader_of(folder: Path) -> RunReader:
    located = locate(str(folder), [])
    assert located is not None
    return RunReader(located)


def test_a_growing_run_reads_as_a_whole_one(tmp_path: Path) -> None:
    """In pieces that end anywhere, with a resume, a damaged line, and curves that repeat steps."""
    data = lines({"kind": "began", "run": "a", "step": 0, "time": 1.0})
    data += lines(*(logged(step, loss=1 / step, rate=step) for step in range(1, 60)))
    data += b'{"kind": "logged", "step": \xff}\n{"kind": "logged"\n' + lines(logged(60, loss="NaN"))
    data += lines({"kind": "began", "run": "a", "step": 40, "time": 2.0})
    data += lines(*(logged(step, loss=0.5) for step in range(41, 90)), {"kind": "paused", "step": 89})
    (tmp_path / "journal.jsonl").touch()
    reader = reader_of(tmp_path)
    for start in range(0, len(data), 701):
        with (tmp_path / "journal.jsonl").open("ab") as journal:
            journal.write(data[start : start + 701])
        last = reader.read(True, [])
    assert last is not None
    assert asdict(last) == asdict(read_runs([str(tmp_path)], quick=True)[0])
    assert last.history.paused_at == 89


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reading parses the appended lines alone, and a file that was replaced is read from its start."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(
        lines({"kind": "began", "run": "a", "step": 0}, *(logged(step, loss=1.0) for step in range(1, 50)))
    )
    reader, parsed = reader_of(tmp_path), list[Any]()
    reader.read(True, [])

    def counting(document: Any) -> Any:
        parsed.append(document)
        return journal_note(document)

    for each in reader._kept.values():
        each.convert = counting
    with path.open("ab") as journal:
        journal.write(lines(logged(50, loss=2.0)))
    record = reader.read(True, [])
    assert record is not None
    assert [note["step"] for note in parsed] == [50]
    assert list(record.history.series["loss"].steps) == list(range(1, 51))
    path.unlink()
    path.write_bytes(lines({"kind": "began", "run": "b", "step": 0}, logged(1, loss=3.0)))
    record = reader.read(True, [])
    assert record is not None
    assert (record.history.name, list(record.history.series["loss"].values)) == ("b", [3.0])


def test_values_of_checkpoints_do_not_grow_with_each_reading(tmp_path: Path) -> None:
    """What a state has logged before the journal starts is added to each record, not to what is kept."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines({"kind": "began", "run": "a", "step": 5}, logged(6, loss=1.0)))
    reader = reader_of(tmp_path)
    record = reader.read(True, [], "one")
    reader._states["a"] = {"log_history": [{"step": 2, "loss": 4.0}, {"step": 9, "loss": 9.0}]}
    for _ in range(2):
        record = reader.read(True, [], "one")
        assert record is not None
        assert list(record.history.series["loss"].steps) == [2, 6]
    assert reader.points == 2  # with its time


steps = st.one_of(st.integers(0, 40), st.sampled_from([-1, True, "3", None, 2**60, 10**30]))
values = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-5, 5), st.sampled_from(ODD))


@given(
    st.integers(0, 30),
    st.lists(st.tuples(steps, st.dictionaries(st.sampled_from(["loss", "rate", "epoch"]), values)), max_size=12),
    st.booleans(),
)
def test_logs_that_are_taken_at_once_equal_those_taken_one_by_one(
    first: int, drawn: list[tuple[Any, dict[str, Any]]], ordinary: bool
) -> None:
    """Whatever steps and values they have, among many ordinary ones."""
    notes = [logged(first + number, loss=0.5 * number, rate=1) for number in range(20)]
    odd = [logged(step, **given) for step, given in drawn]
    notes = [*notes[:10], *odd, *notes[10:], *notes[5:15]]
    if ordinary:
        notes = [{**note, "time": 5.0} for note in notes]
    single, together = RunHistory("a"), RunLines(Path("none"), journal_note)
    for note in notes:
        single.take(note)
    together._take_all([line for line in lines(*notes).split(b"\n") if line])
    found = next(iter(together.runs.values()))
    assert asdict(found) == {**asdict(single), "name": ""}
    assert together.read.notes == len(notes)


def test_lines_that_only_fit_together_are_left_out(tmp_path: Path) -> None:
    """A batch whose pieces are valid as a whole is not taken for what its lines are not."""
    run = RunLines(tmp_path / "x", journal_note)
    run._take_all([b'{"kind": "logged"', b'"step": 1}', b'{"kind": "ended", "step": 1}'])
    assert (run.read.not_notes, run.read.notes) == (2, 1)
    assert journal_lines.BATCH > 1
