"""A journal on the local disk, one JSON object per line; one in memory; and one that records nothing."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

from attrs import Factory, frozen

from hexloop.domain.folders import place_of
from hexloop.domain.journal_index import INDEX, WindowsAhead
from hexloop.domain.json_documents import finite_json, read_json
from hexloop.domain.limits import limits
from hexloop.domain.ranges import MOST, Count
from hexloop.domain.schemas import Open, structured
from hexloop.ports.logger import Fact


@frozen
class AnyNote(Open):
    """A note of any kind."""

    kind: str


@frozen
class BeganNote(Open):
    """The start of a run, or of a session of it."""

    run: str | None = None
    step: Count = 0
    settings: dict[str, Any] = Factory(dict)
    random: str | None = None


@frozen
class StepNote(Open):
    """An optimizer step."""

    step: Count
    batches: list[str | None] = Factory(list)
    random: str | None = None


@frozen
class LossesNote(Open):
    """The losses of consecutive steps."""

    first: Count
    losses: list[Any]


@frozen
class LoggedNote(Open):
    """What was logged."""

    step: Count
    values: dict[str, Any]
    random: str | None = None


@frozen
class SaveNote(Open):
    """A phase of a save. weights: the digest of each file with weights."""

    phase: str
    checkpoint: str | None = None
    weights: dict[str, str] | None = None


@frozen
class PausedNote(Open):
    """A pause."""

    step: Count


@frozen
class CommandNote(Open):
    """What became of a command of the board."""

    sequence: Count
    outcome: str
    action: str | None = None


@frozen
class EndedNote(Open):
    """The end of a session."""

    step: Count


SCHEMAS: dict[
    str,
    type[AnyNote | BeganNote | StepNote | LossesNote | LoggedNote | SaveNote | PausedNote | CommandNote | EndedNote],
] = {
    "began": BeganNote,
    "step": StepNote,
    "losses": LossesNote,
    "logged": LoggedNote,
    "save": SaveNote,
    "paused": PausedNote,
    "command": CommandNote,
    "ended": EndedNote,
}
"""The schema of each kind of note."""


class JsonLinesJournal:
    """Journal adapter that appends to the file `path`, created with its folders at the first note.

    A note is one system call, so a killed process leaves at most its last line incomplete; the next process to append
    ends that line first. A link in the place of the file is not followed. Notes are lost only if the machine itself
    fails. JSON has no NaN or infinity: these are written as the strings "NaN", "Infinity" and "-Infinity".
    Beside the file is its index, which may be lost or removed at any time; see `hexloop.domain.journal_index`.

    Args:
        path: the file, which is created with its folders.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._file: int | None = None
        self._index: int | None = None
        self._ahead: WindowsAhead | None = None
        self._is_new = False
        self._lock = threading.Lock()

    def note(self, kind: str, **facts: Fact) -> None:
        """Append one line, which is in the file when this returns.

        Raises:
            OSError: if it cannot be written.
        """
        line = json.dumps({"kind": kind, **finite_json(facts)}, allow_nan=False).encode() + b"\n"
        with self._lock:
            if self._file is None:
                self._file = self._opened(self._path.name)  # it holds the arguments of the run
                self._ahead = WindowsAhead(os.lseek(self._file, 0, os.SEEK_END))
                self._is_new = self._ahead.start == 0
            rest = line
            while rest:
                rest = rest[os.write(self._file, rest) :]
            try:
                self._add_to_index(self._file, line)
            except OSError:
                self._ahead = None  # a journal is read without its index, only more slowly

    def _opened(self, name: str) -> int:
        """Open a file beside the journal to append to it. The hidden folder may be a link that another user made."""
        folder, _ = place_of(self._path)
        return folder.open_lines(name, 0o600)

    def _add_to_index(self, file: int, line: bytes) -> None:
        """Index the lines up to this one if they are enough."""
        window = None if self._ahead is None else self._ahead.add(line)
        if self._ahead is None or window is None:
            return
        reached = os.lseek(file, 0, os.SEEK_CUR)
        if reached != window.end:  # another process has appended meanwhile
            self._ahead = WindowsAhead(reached)
            return
        if self._index is None:
            self._index = self._opened(INDEX)
            if self._is_new:  # what it holds is about an earlier journal
                os.ftruncate(self._index, 0)
        os.write(self._index, window.line())

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            for descriptor in (self._file, self._index):
                if descriptor is not None:
                    os.close(descriptor)
            self._file = self._index = self._ahead = None


def read(path: str | os.PathLike[str]) -> list[dict[str, Fact]]:
    """Return the notes of a file; see `notes_in`.

    Args:
        path: the file of a journal.
    """
    return list(notes_in(path))


def notes_in(path: str | os.PathLike[str]) -> Iterator[dict[str, Fact]]:
    """Yield the notes of a file, in order, without lines that are incomplete or not notes.

    Raises OSError if the file does not exist, is a link or not a regular file, has a line that is longer than the limit
    `line_bytes`, or is longer than the limit `log_bytes`.
    """
    for line in _lines_of(path):
        try:
            note = _strictly_read(line)
        except ValueError:
            continue
        if isinstance(note, dict) and isinstance(note.get("kind"), str):
            yield note


BATCH, BATCH_BYTES = 128, 1 << 18
"""How many lines are parsed at once, and how many bytes; more take longer, as they leave the caches of a processor."""

MOST_VALUES = 500_000
"""How many values a line may have; a note of a run has a few hundred, or one for each step between two logs."""

PLAIN_BYTES = 1_000
"""Bytes of a line up to which a number cannot exceed the limit `document_digits`."""

_INFINITE = frozenset({math.inf, -math.inf})


def _lines_of(path: str | os.PathLike[str]) -> Iterator[bytes]:
    folder, name = place_of(path)
    return folder.lines(name, most=limits().log_bytes)


def line_batches(path: str | os.PathLike[str]) -> Iterator[list[bytes]]:
    """Yield the lines of a journal in order, some at a time.

    Raises OSError as `notes_in` does, and, with the number EFBIG, beyond the limit `log_bytes`.
    """
    batch, size = list[bytes](), 0
    for line in _lines_of(path):
        batch.append(line)
        size += len(line)
        if len(batch) == BATCH or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def checked_notes(lines: Sequence[bytes]) -> tuple[list[dict[str, Fact]], list[tuple[int, str]]]:
    """Return the notes in lines whose facts are of the kinds that `hexloop.domain.journal` lists, in order.

    Also returns the index of each line that is JSON but not such a note, with every problem in it. Lines that are
    incomplete, and notes of kinds that are not listed, are skipped silently.
    """
    notes, problems = list[dict[str, Fact]](), list[tuple[int, str]]()
    for index, (line, document) in enumerate(zip(lines, _parsed_together(lines), strict=True)):
        if document is not None and _is_plain(document, line):
            if document["kind"] in SCHEMAS:
                notes.append(document)
            continue
        try:
            note = _strictly_read(line)
        except ValueError:
            continue
        try:
            schema = SCHEMAS.get(structured(note, AnyNote).kind)
            if schema is not None:
                structured(note, schema)
                notes.append(note)
        except ValueError as error:
            problems.append((index, str(error)))
    return notes, problems


def _parsed_together(lines: Sequence[bytes]) -> Sequence[Any]:
    """Return the value of each line, parsed at once and leniently; None where lines are to be read by themselves."""
    data = b"[%b]" % b",".join(lines)
    if b"\\u" not in data and len(data) <= 2 * BATCH_BYTES:
        with suppress(ValueError, RecursionError):
            documents: list[Any] = json.loads(data.decode(), parse_constant=_refuse_constant)
            if len(documents) == len(lines):
                return documents
    return [None] * len(lines)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _is_plain(note: Any, line: bytes) -> bool:
    """Return whether a line that was read leniently is a note that its schema and strict reading accept.

    It has no key twice: then it would have more keys than the note.
    """
    try:
        kind, random = note["kind"], note.get("random", "")
        if kind not in SCHEMAS and type(kind) is str:
            return True  # it is not checked, and does not count
        if len(line) > PLAIN_BYTES or type(random) is not str:
            return False
        keys = line.count(b'":') - len(note)
        if kind == "logged":
            step, values = note["step"], note["values"]
            return _is_count(step) and keys == len(values) and _INFINITE.isdisjoint(values.values())
        if kind == "step":
            batches = note["batches"]
            known = type(batches) is list and set(map(type, batches)) <= {str, NoneType}
            return known and keys == 0 and _is_count(note["step"]) and note["learning_rate"] not in _INFINITE
        losses = note["losses"]
        return kind == "losses" and keys == 0 and _is_count(note["first"]) and _INFINITE.isdisjoint(losses)
    except (TypeError, KeyError, AttributeError):  # it has another form, or a value that cannot be hashed
        return False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _strictly_read(line: bytes) -> Any:
    """Return the value of a line. Raises ValueError as `read_json` does, and for one of too many values."""
    if line.count(b",") + line.count(b"[") + line.count(b"{") > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values")
    return read_json(line)


class MemoryJournal:
    """Journal adapter for tests and for programs that read their own run.

    `notes` holds one dictionary per note, with its kind under "kind".
    """

    def __init__(self) -> None:
        self.notes: list[dict[str, Fact]] = []

    def note(self, kind: str, **facts: Fact) -> None:
        """Append to `notes`."""
        self.notes.append({"kind": kind, **facts})

    def close(self) -> None:
        """No-op; `notes` stays."""


class NoJournal:
    """Journal adapter that records nothing."""

    def note(self, kind: str, **facts: Fact) -> None:
        """No-op."""

    def close(self) -> None:
        """No-op."""
