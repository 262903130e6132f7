"""A journal on the local disk, one JSON object per line; one in memory; and one that records nothing."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

from hexloop.adapters.schemas import Open, structured
from hexloop.domain.json_documents import finite_json, read_json
from hexloop.domain.ranges import Count
from hexloop.domain.regular_files import lines_of, open_lines
from hexloop.ports.journal import Fact

__path__: list[str] = []  # lets hexloop._moved serve old paths such as hexloop.adapters.journal.json_lines


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
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: int | None = None
        self._lock = threading.Lock()

    def note(self, kind: str, **facts: Fact) -> None:
        """Append one line, which is in the file when this returns. Raises OSError."""
        line = json.dumps({"kind": kind, **finite_json(facts)}, allow_nan=False).encode() + b"\n"
        with self._lock:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open_lines(self._path, 0o600)  # it holds the arguments of the run
            while line:
                line = line[os.write(self._file, line) :]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


def read(path: str | os.PathLike[str]) -> list[dict[str, Fact]]:
    """Return the notes of a file; see `notes_in`."""
    return list(notes_in(path))


def notes_in(path: str | os.PathLike[str]) -> Iterator[dict[str, Fact]]:
    """Yield the notes of a file, in order, without lines that are incomplete or not notes.

    Raises OSError if the file does not exist, is a link or not a regular file, or has a line that is longer than the
    limit `line_bytes`.
    """
    for line in lines_of(path):
        try:
            note = read_json(line)
        except ValueError:
            continue
        if isinstance(note, dict) and isinstance(note.get("kind"), str):
            yield note


def checked_notes_in(path: str | os.PathLike[str], report: Callable[[int, str], None]) -> Iterator[dict[str, Fact]]:
    """Yield the notes of a file whose facts are of the kinds that `hexloop.domain.journal` lists, in order.

    report: called with the number of each line that is JSON but not such a note, and every problem in it. Lines that
    are incomplete are skipped silently, and notes of kinds that are not listed are not checked.
    Raises OSError as `notes_in` does.
    """
    for number, line in enumerate(lines_of(path), 1):
        try:
            note = read_json(line)
        except ValueError:
            continue
        try:
            schema = SCHEMAS.get(structured(note, AnyNote).kind)
            if schema is not None:
                structured(note, schema)
        except ValueError as error:
            report(number, str(error))
        else:
            yield note


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
