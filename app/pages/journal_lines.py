"""Reading the lines of journals and logs while a run appends to them: all of them, what is new, or both ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from attrs import define, field

from hexloop.app.pages.history import RunHistory, step_in
from hexloop.domain import journal_index
from hexloop.domain.folders import open_in_run
from hexloop.domain.journal_index import INDEX, Block, Window, block_in, blocks_of, digest_of, parts_of, windows_in
from hexloop.domain.json_documents import read_json
from hexloop.domain.limits import limits
from hexloop.domain.regular_files import CHUNK

MOST_RUNS = 100
"""How many runs of one journal are kept, the newest."""

HEAD, TAIL = 256 << 10, 16 << 10
"""Bytes of the start and of the end of a file that are read to tell what a run is doing."""

SHORT_HEAD = 16 << 10
"""Bytes of the start that are read first, as the first note is seldom longer."""

LONGEST_NAME = 100
"""Characters of a run's name that are kept."""

SHORT = 64 << 10
"""Bytes of a line up to which it is read without counting what is in it, which takes three times as long."""

BATCH, BATCH_BYTES = 1_000, 1 << 20
"""How many lines are parsed at once, and how many bytes of them. It takes half of the time of one by one."""

MOST_VALUES = 500_000
"""How many values a line may have; a note of a run has a few hundred, or one for each step between two logs."""

CHECKED = 0.01
"""The share of windows whose lines are parsed to compare them with the index, besides the first."""

Convert = Callable[[Any], Mapping[str, Any] | None]
"""Returns the note that a parsed line stands for, or None if it is not one."""


@define
class LinesRead:
    """What became of the lines of a file. skipped: bytes in the middle of a file that is too long to read."""

    notes: int = 0
    not_notes: int = 0
    too_long: int = 0
    skipped: int = 0

    def remarks(self, name: str) -> Iterator[str]:
        """Yield a sentence for all that was left out."""
        if self.not_notes:
            yield f"{self.not_notes:,} lines of {name} are left out: they are not complete, or not notes of a run."
        if self.too_long:
            yield f"{self.too_long:,} lines of {name} are left out: they are longer than {limits().line_bytes:,} bytes."
        if self.skipped:
            yield (
                f"{self.skipped:,} bytes in the middle of {name} are left out: it is longer than "
                f"{limits().log_bytes:,} bytes, the limit log_bytes."
            )


@define
class RunLines:
    """The runs in a file of lines. `refresh` reads what was appended since the last call.

    convert: returns the note that a parsed line stands for. runs: by name, those that started last at the end.
    dropped: how many runs were left out.
    """

    path: Path
    convert: Convert
    runs: dict[str, RunHistory] = field(factory=dict)
    read: LinesRead = field(factory=LinesRead)
    dropped: int = 0
    _current: RunHistory | None = None
    _offset: int = 0
    _identity: tuple[int, int] | None = None
    _uses_index: bool = True

    def refresh(self) -> bool:
        """Read the lines that are new, and return whether there were any. A replaced file is read from its start.

        Raises OSError if the file does not exist, or is not a regular file.
        """
        descriptor = open_in_run(self.path)
        try:
            status = os.fstat(descriptor)
            if self._identity != (status.st_dev, status.st_ino) or status.st_size < self._offset:
                self._forget()
                self._identity = (status.st_dev, status.st_ino)
            before = self._offset
            if self._uses_index and not self._take_windows(descriptor, status.st_size):  # it is false
                self._forget()
                self._uses_index = False
            self._take_lines(descriptor, status.st_size)
            return self._offset > before
        finally:
            os.close(descriptor)

    def _forget(self) -> None:
        self.runs, self.read, self.dropped, self._current, self._offset = {}, LinesRead(), 0, None, 0

    def _take_windows(self, descriptor: int, size: int) -> bool:
        """Take what is new as far as it is in the index; return False if that does not describe the journal."""
        if (
            self.convert is not journal_note
            or not journal_index.INDEXED_FROM < size - self._offset <= limits().log_bytes
        ):
            return True
        checks, is_first = Random(), True
        for window in _windows_beside(self.path, self._offset, size):
            if window.start > self._offset:
                self._take_lines(descriptor, window.start)
            if window.start != self._offset:
                return True
            data = os.pread(descriptor, window.end - window.start, window.start)
            if digest_of(data) != window.digest or not data.endswith(b"\n"):
                return True  # it was written for another journal; the rest is parsed
            if (is_first or checks.random() < CHECKED) and parts_of(data.split(b"\n")[:-1]) != window.parts:
                return False
            try:
                self._take_parts(window.parts, data)
            except ValueError:
                return False
            self._offset, is_first = window.end, False
        return True

    def _take_parts(self, parts: Sequence[Sequence[Any]], data: bytes) -> None:
        """Take the parts of a window. Raises ValueError if one is not valid."""
        place = 0
        for part in parts:
            lines, place = data[place : place + part[1]], place + part[1]
            if part[0] != "block":
                self._take_all(lines.split(b"\n")[:-1])
                continue
            self._take_block(block_in(part))

    def _take_lines(self, descriptor: int, size: int) -> None:
        """Take the lines from the offset up to a byte, as far as they are complete."""
        pending, reached, held = list[bytes](), 0, 0
        for line, reached in self._lines(descriptor, size):
            pending.append(line)
            held += len(line)
            if len(pending) >= BATCH or held > BATCH_BYTES:
                self._take_all(pending)
                pending, held, self._offset = [], 0, max(reached, self._offset)
        self._take_all(pending)
        self._offset = max(reached, self._offset)

    def read_edges(self) -> None:
        """Read only the first note and the last lines, in a time that does not depend on the length of the file.

        Curves and sessions are then incomplete, but what the last run is doing is known, and its last evaluation if it
        is not too far from the end. Raises OSError as `refresh` does.
        """
        descriptor = open_in_run(self.path)
        try:
            size = os.fstat(descriptor).st_size
            start = 0
            for end in (min(size, SHORT_HEAD), min(size, HEAD)):
                for line, start in lines_between(descriptor, start, end, self.read):
                    self._take(line)
                    if self._current is not None:
                        break
                if self._current is not None:
                    break
            rest = lines_between(descriptor, max(size - TAIL, start), size, self.read)
            if size - TAIL > start:
                next(rest, None)  # it has lost its start
            self._take_all([line for line, _ in rest])
            if self._current is not None and not any(name.startswith("eval_") for name in self._current.series):
                self._take_evaluation(descriptor, max(size - HEAD, start), max(size - TAIL, start))
        finally:
            os.close(descriptor)

    def _take_evaluation(self, descriptor: int, start: int, end: int) -> None:
        """Take the values of the last evaluation in a part of a file, if the run evaluates."""
        assert self._current is not None
        if str(self._current.settings.get("eval_strategy", "no")) == "no" or end <= start:
            return
        data = os.pread(descriptor, end - start, start)
        found = data.rfind(b'"eval_')
        line = data[data.rfind(b"\n", 0, max(found, 0)) + 1 : data.find(b"\n", found)]
        note = self._note(line) if found >= 0 else None
        step, values = (None, None) if note is None else (step_in(note.get("step")), note.get("values"))
        if step is not None and isinstance(values, Mapping):
            evaluated = {name: value for name, value in values.items() if str(name).startswith("eval_")}
            self._current.add_logged(min(step, self._current.last_step), evaluated)

    def _lines(self, descriptor: int, size: int) -> Iterator[tuple[bytes, int]]:
        """Yield the complete lines from the offset on, each with the offset after it."""
        half = limits().log_bytes // 2
        if self._offset < half < size - half:
            yield from lines_between(descriptor, self._offset, half, self.read)
            self.read.skipped += size - half - max(half, self._offset)
            self._offset = size - half
            rest = lines_between(descriptor, self._offset, size, self.read)
            next(rest, None)  # it has lost its start
            yield from rest
        else:
            yield from lines_between(descriptor, self._offset, size, self.read)

    def _take_all(self, lines: list[bytes]) -> None:
        """Take lines in order: notes of steps, losses and logs after each other at once."""
        notes = self._notes(lines)
        start = 0
        for block, count in blocks_of(notes):
            if block is not None:
                self._take_block(block)
            else:
                for line, note in zip(lines[start : start + count], notes[start : start + count], strict=True):
                    self._take_note(line, note)
            start += count

    def _take_block(self, block: Block) -> None:
        if self._current is None:
            self._current = self.runs.setdefault("", RunHistory(""))
        self._current.take_block(block)
        self.read.notes += block.notes

    def _take(self, line: bytes) -> None:
        self._take_note(line, self._note(line))

    def _take_note(self, line: bytes, note: Mapping[str, Any] | None) -> None:
        if note is None:
            self.read.not_notes += bool(line.strip())
            return
        self.read.notes += 1
        if note["kind"] == "began":
            name = str(note.get("run"))[:LONGEST_NAME]
            self._current = self.runs.pop(name, None) or RunHistory(name)
            self.runs[name] = self._current  # at the end
            if len(self.runs) > MOST_RUNS:
                del self.runs[next(iter(self.runs))]
                self.dropped += 1
        elif self._current is None:
            self._current = self.runs.setdefault("", RunHistory(""))
        self._current.take(note)

    def _notes(self, lines: list[bytes]) -> list[Mapping[str, Any] | None]:
        """Return the note of each line. Lines are parsed one by one if one of them may be damaged or is long."""
        if max(map(len, lines), default=0) <= SHORT:
            try:
                documents = json.loads(b"[%b]" % b",".join(lines))
            except (ValueError, RecursionError):
                documents = []
            if len(documents) == len(lines):
                return list(map(self.convert, documents))
        return list(map(self._note, lines))

    def _note(self, line: bytes) -> Mapping[str, Any] | None:
        if not line.startswith(b"{") or line.count(b",") + line.count(b"[") + line.count(b"{") > MOST_VALUES:
            return None
        try:
            # What is shown need not be strict JSON, and a short line cannot exhaust anything.
            return self.convert(json.loads(line) if len(line) <= SHORT else read_json(line))
        except (ValueError, RecursionError):
            return None


def lines_between(descriptor: int, start: int, end: int, read: LinesRead) -> Iterator[tuple[bytes, int]]:
    """Yield the lines that end in this part of an open file, each with the offset after it. The last may be incomplete.

    An incomplete line is left to be read later, and one that is too long is counted in `read`.
    """
    held, offset, dropping = bytearray(), start, False
    os.lseek(descriptor, start, os.SEEK_SET)
    position, longest = start, limits().line_bytes
    while position < end and (chunk := os.read(descriptor, min(CHUNK, end - position))):
        position += len(chunk)
        *ended, rest = chunk.split(b"\n")
        if held and ended:
            ended[0] = bytes(held) + ended[0]
            held.clear()
        for line in ended:
            offset += len(line) + 1
            if dropping or len(line) > longest:
                read.too_long += 1
                dropping = False
                continue
            yield line, offset
        held += rest
        if len(held) > longest:
            offset += len(held)
            held.clear()
            dropping = True


def _windows_beside(journal: Path, start: int, size: int) -> Iterator[Window]:
    """Yield the windows of the index of a journal of this size, from byte `start` on."""
    try:
        descriptor = open_in_run(journal.with_name(INDEX))
    except OSError:
        return
    try:
        own = os.fstat(descriptor).st_size
        if own > 2 * size:  # columns take less room than lines
            return
        for window in windows_in(line for line, _ in lines_between(descriptor, 0, own, LinesRead())):
            if window.end > size:
                return
            if window.start >= start:
                yield window
    finally:
        os.close(descriptor)


def journal_note(document: Any) -> Mapping[str, Any] | None:
    """Return a line of a journal as a note: it is one."""
    return document if isinstance(document, dict) and isinstance(document.get("kind"), str) else None


def log_note(document: Any) -> Mapping[str, Any] | None:
    """Return a line of the logger `json_lines` as a note of a journal."""
    if not isinstance(document, dict):
        return None
    if document.get("event") in ("started", "resumed"):
        return {**document, "kind": "began"}
    if "step" in document and "event" not in document:
        return {"kind": "logged", "step": document["step"], "values": document}
    return None
