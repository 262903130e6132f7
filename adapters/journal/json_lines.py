"""A journal on the local disk: one JSON object a line, in a file that only ever grows."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from hexloop.ports.journal import Fact


class JsonLinesJournal:
    """Answers the Journal port with the file `path`, which is made, with its folders, at the first note.

    A note is one call of the operating system, so that a killed process leaves at most its last line torn; whoever goes
    on ends that line first. Only the death of the machine can lose notes that were taken. JSON has no infinity: such
    numbers are the strings "NaN", "Infinity" and "-Infinity".
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: int | None = None
        self._taking = threading.Lock()

    def note(self, kind: str, **facts: Fact) -> None:
        """Append one line, which the file has when this returns. Raises OSError."""
        line = json.dumps({"kind": kind, **_plain(facts)}, allow_nan=False).encode() + b"\n"
        with self._taking:
            if self._file is None:
                self._file = _open(self._path)
            while line:
                line = line[os.write(self._file, line) :]

    def close(self) -> None:
        """Close the file."""
        with self._taking:
            if self._file is not None:
                os.close(self._file)
                self._file = None


def read(path: str | os.PathLike[str]) -> list[dict[str, Fact]]:
    """The notes of a file, in order, its torn lines left out. Raises OSError where there is no such file."""
    notes = []
    with open(path, "rb") as file:
        for line in file:
            try:
                note = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(note, dict) and isinstance(note.get("kind"), str):
                notes.append(note)
    return notes


def _open(path: Path) -> int:
    """The file, ready to be appended to, its last line ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    end = os.lseek(file, 0, os.SEEK_END)
    if end > 0:
        os.lseek(file, end - 1, os.SEEK_SET)
        if os.read(file, 1) != b"\n":
            os.write(file, b"\n")
    return file


def _plain(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    return {name: _value(fact) for name, fact in facts.items()}


def _value(fact: Fact) -> Fact:
    """The fact, with a name for each number that JSON has none for."""
    if isinstance(fact, float) and not math.isfinite(fact):
        return "NaN" if math.isnan(fact) else "Infinity" if fact > 0 else "-Infinity"
    if isinstance(fact, Mapping):
        return _plain(fact)
    if isinstance(fact, list | tuple):
        return [_value(each) for each in fact]
    return fact
