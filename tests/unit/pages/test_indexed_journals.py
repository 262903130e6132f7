"""A journal with an index reads as one without it, and a false index is found out."""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import asdict
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.journal import JsonLinesJournal
from hexloop.app.pages import journal_lines
from hexloop.app.pages.journal_lines import RunLines, journal_note
from hexloop.domain import journal_index
from hexloop.domain.journal_index import INDEX, window_in, window_of, windows_in

VALUES: list[Any] = [0.5, -2.25, 3, -4, 0, "NaN", "Infinity", "text", None, True, 2**60, [1]]

steps = st.one_of(st.integers(0, 30), st.sampled_from([None, "3", -1, 2**60]))
values = st.dictionaries(
    st.sampled_from(["loss", "rate", "epoch", "samples trained on", "x" * 600]), st.sampled_from(VALUES), max_size=3
)
numbers = st.sampled_from(VALUES)
odd = st.one_of(
    st.builds(lambda step, given: ("logged", {"step": step, "values": given}), steps, values),
    st.builds(lambda step, given: ("logged", {"step": step, "samples": given, "values": {}}), steps, numbers),
    st.builds(lambda first, each: ("losses", {"first": first, "losses": each}), steps, st.lists(numbers)),
    st.builds(lambda step: ("step", {"step": step, "batches": ["x"]}), steps),
    st.builds(lambda step, run: ("began", {"step": step, "run": run, "settings": {}}), steps, st.sampled_from("ab")),
    st.sampled_from([("paused", {"step": 4}), ("ended", {"step": 4, "stopped": False, "reasons": []})]),
    st.builds(
        lambda phase: ("save", {"phase": phase, "checkpoint": "checkpoint-3"}), st.sampled_from(["began", "taken"])
    ),
)


def ordinary(first: int, count: int) -> list[tuple[str, dict[str, Any]]]:
    notes = []
    for step in range(first, first + count):
        notes.append(("losses", {"first": step, "losses": [1.0 / (step + 1)]}))
        notes.append(
            (
                "logged",
                {"step": step, "samples": 2 * step, "values": {"loss": 1.0 / (step + 1), "rate": 1, "epoch": 0.5}},
            )
        )
        if step % 5 == 0:
            notes.append(("logged", {"step": step, "values": {"eval_loss": "NaN" if step % 3 else 2.5}}))
    return notes


def write(path: Path, notes: list[tuple[str, dict[str, Any]]], at: float = 100.0, sessions: int = 1) -> None:
    for part in range(sessions):
        journal = JsonLinesJournal(path)
        for number, (kind, facts) in enumerate(notes[part::sessions] if sessions > 1 else notes):
            journal.note(kind, time=at + number, **facts)
        journal.close()


def read(path: Path, indexed: bool) -> RunLines:
    lines = RunLines(path, journal_note)
    lines._uses_index = indexed
    lines.refresh()
    return lines


def same(one: RunLines, other: RunLines) -> bool:
    return [asdict(run) for run in one.runs.values()] == [asdict(run) for run in other.runs.values()] and (
        one.read == other.read
    )


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_index, "WINDOW", 1500)
    monkeypatch.setattr(journal_index, "INDEXED_FROM", 0)


pieces = st.one_of(odd.map(lambda each: [each]), st.builds(ordinary, st.integers(0, 9), st.integers(1, 12)))


@given(st.lists(pieces, max_size=9), st.integers(1, 3), st.floats(0, 1))
def test_a_journal_reads_the_same_with_and_without_its_index(drawn: list[Any], sessions: int, checked: float) -> None:
    """Whatever is in it, over several sessions, and while it grows."""
    notes = [each for part in drawn for each in part]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal_index, "WINDOW", 1500)
        patched.setattr(journal_index, "INDEXED_FROM", 0)
        patched.setattr(journal_lines, "CHECKED", checked)
        path = Path(folder, "journal.jsonl")
        path.touch()
        write(path, notes, sessions=sessions)
        whole, indexed = read(path, False), read(path, True)
        assert indexed._uses_index
        assert same(indexed, whole)
        write(path, ordinary(3, 20), 900.0)
        indexed.refresh()
        assert same(indexed, read(path, False))


def long_journal(folder: Path, logs: int = 200) -> Path:
    path = folder / "journal.jsonl"
    write(path, [("began", {"step": 0, "run": "a", "settings": {}}), *ordinary(1, logs)])
    return path


def parsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many lines a reading parses."""
    count = []
    take_all = RunLines._take_all

    def counting(self: RunLines, lines: list[bytes]) -> None:
        count.append(len(lines))
        take_all(self, lines)

    with monkeypatch.context() as patched:
        patched.setattr(RunLines, "_take_all", counting)
        read(path, True)
    return sum(count)


def test_what_the_index_has_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the start of the run, and what follows the last window."""
    path = long_journal(tmp_path)
    assert parsed(path, monkeypatch) < 30
    (tmp_path / INDEX).unlink()
    assert parsed(path, monkeypatch) > 400
    assert (tmp_path / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_changed_journal_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first window on that is not that of the index; one that was replaced, as a whole."""
    path = long_journal(tmp_path)
    data = path.read_bytes()
    at = len(data) // 2
    changed = data[:at] + data[at:].replace(b'"rate": 1,', b'"rate": 7,')
    path.write_bytes(changed)
    assert same(read(path, True), read(path, False))
    assert parsed(path, monkeypatch) > 150
    path.write_bytes(data[300:])
    assert same(read(path, True), read(path, False))
    path.write_bytes(data[: len(data) // 3])
    assert same(read(path, True), read(path, False))


def test_a_short_journal_has_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is not indexed, as it is parsed at once; what is after it is."""
    monkeypatch.setattr(journal_index, "INDEXED_FROM", 20_000)
    path = long_journal(tmp_path, 50)
    assert path.stat().st_size < 20_000
    assert not (tmp_path / INDEX).exists()
    write(path, ordinary(51, 200))
    assert same(read(path, True), read(path, False))
    assert 50 < parsed(path, monkeypatch) < 250


def test_a_new_journal_has_a_new_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the index held of an earlier one is removed; a line that a crash left incomplete is skipped."""
    path = long_journal(tmp_path)
    path.unlink()
    path = long_journal(tmp_path, 100)
    starts = [window.start for window in windows_in((tmp_path / INDEX).read_bytes().splitlines())]
    assert starts == sorted(starts)
    assert starts[0] == 0
    index = tmp_path / INDEX
    index.write_bytes(index.read_bytes()[:-40])
    write(path, ordinary(101, 100))
    assert same(read(path, True), read(path, False))
    assert parsed(path, monkeypatch) < 60


def test_another_process_that_appends_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window in which it did is not indexed, and the following ones are."""
    path = tmp_path / "journal.jsonl"
    one, other = JsonLinesJournal(path), JsonLinesJournal(path)
    for number, (kind, facts) in enumerate([("began", {"run": "a", "step": 0}), *ordinary(1, 150)]):
        (other if number in (30, 31) else one).note(kind, time=float(number), **facts)
    assert same(read(path, True), read(path, False))
    assert parsed(path, monkeypatch) < 80


FALSE = {
    "another value": lambda document: document["parts"][0].__setitem__(5, document["parts"][0][5] + 1),
    "fewer notes": lambda document: document["parts"][0].__setitem__(2, 1),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_index_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By windows picked at random, which are parsed; then the journal is read without it, from its start."""
    monkeypatch.setattr(journal_lines, "CHECKED", 1.0)
    path, index = long_journal(tmp_path), tmp_path / INDEX
    lines = index.read_bytes().splitlines()
    document = json.loads(lines[5])
    FALSE[name](document)
    index.write_bytes(b"\n".join([*lines[:5], json.dumps(document).encode(), *lines[6:]]) + b"\n")
    found = read(path, True)
    assert not found._uses_index
    assert same(found, read(path, False))


WRONG = (b"9", b"", b"[", b'"', b"null", b"-1", b"\xff", b"\n", b"e9")


def test_no_index_is_too_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its bytes are, the journal is read, without an error and as it is."""
    path, index = long_journal(tmp_path, 60), tmp_path / INDEX
    good, draw = index.read_bytes(), random.Random(5)
    expected = read(path, False)
    monkeypatch.setattr(journal_lines, "CHECKED", 1.0)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(draw.choice((1, 3))):
            at = draw.randrange(len(data))
            data[at : at + draw.choice((0, 1, 4))] = draw.choice(
                (b"9", b"", b"[", b'"', b"null", b"-1", b"\xff", b"\n", b"e9")
            )
        index.write_bytes(bytes(data))
        assert same(read(path, True), expected)
    index.unlink()
    index.symlink_to(path)
    assert same(read(path, True), expected)


def windowed(start: int, end: int, parts: Any, digest: Any = "") -> bytes:
    return json.dumps({"start": start, "end": end, "digest": digest, "parts": parts}).encode()


NOT_WINDOWS = [
    *(b"", b"[]", b"5", b'{"start": 0}', b"[" * 9999, b" " * (3 << 20)),
    windowed(0, 5, []),
    windowed(0, 5, 5),
    windowed(0, 5, [["lines", 4]]),
    windowed(0, 5, [["lines"]]),
    windowed(0, 5, [["lines", "5"]]),
    windowed(0, 5, [["lines", 5]], digest=5),
    windowed(0, 99_999_999, [["lines", 99_999_999]]),
]


@pytest.mark.parametrize("line", NOT_WINDOWS, ids=lambda line: line[:60].decode())
def test_lines_that_are_not_windows_are_refused(line: bytes) -> None:
    """With a ValueError; the windows around them are used."""
    with pytest.raises(ValueError, match=r".+"):
        window_in(line)
    good = window_of(7, [b'{"kind": "ended"}'])
    assert list(windows_in([line, good.line()[:-1], line])) == [good]
