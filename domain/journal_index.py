"""An index of a journal: what windows of its lines add up to, so that a long one is shown without parsing it.

A journal has its index beside it, with a line for each window: the bytes of the window, a digest of them, and its
parts in order. A part is `["lines", bytes]`, lines to be parsed, or `["block", bytes, ...]`: consecutive notes of
steps, losses and logs, as columns. An index is only ever a shortcut: a reader checks it against the journal, and
parses what it does not cover.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import groupby
from operator import ge
from typing import Any

from attrs import define, field, frozen

INDEXED_FROM = 1 << 20
"""Bytes of a journal that are not indexed, as they are parsed at once. Most journals have no more."""

WINDOW = 128 << 10
"""Bytes from which on a window of lines ends. Indexing one takes one or two milliseconds."""

LONGEST_WINDOW = 1 << 20
"""Bytes of a window that is indexed; one with longer lines is not."""

INDEX = "journal.index"
"""The name of the index, in the folder of the journal."""

FEWEST_NOTES = 8
"""How many notes make a block at least."""

LONGEST_NAME = 500
"""Characters of the name of a curve in a block."""

MOST_EXACT = 2**53
"""Steps and whole numbers from here on are not in blocks: they have no exact float."""

LOSS_OF_STEP = "loss of each step"
"""The name of the curve of the losses that journal='steps' records."""

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How journals and logs write what JSON has no number for."""

SAMPLES, TOKENS, EPOCH = "samples trained on", "num_input_tokens_seen", "epoch"
"""The names of how far a run is, counted otherwise than in steps."""

POSITIONS = frozenset({SAMPLES, TOKENS, EPOCH})
"""These are no curves, but axes over which curves are drawn."""

NO_CURVES = frozenset({"step"})
"""Logged values of which nothing is drawn."""

Column = tuple[array, array]  # type: ignore[type-arg]
"""Steps, ascending, as 64-bit integers, and a value for each, as 64-bit floats."""


class _OddNoteError(Exception):
    """A note that is not added up; it is left to be parsed."""


@define
class Block:
    """Consecutive notes of steps, losses and logs of one session. Times are in seconds since the epoch.

    step: the last one that was made or logged. times: of the logs, by step. curves: the values by name.
    """

    notes: int
    first: float
    last: float
    step: int
    times: Column
    curves: dict[str, Column] = field(factory=dict)

    def document(self) -> list[Any]:
        """Return the block as JSON values. A curve with the steps of the times does not repeat them."""
        shared = self.times[0]
        curves = {
            name: ["" if steps == shared else _text(steps), _text(values)]
            for name, (steps, values) in self.curves.items()
        }
        return [self.notes, self.first, self.last, self.step, [_text(shared), _text(self.times[1])], curves]


@frozen
class Window:
    """The bytes of a journal from `start` to `end`: whole lines, with their digest. parts: as in the file."""

    start: int
    end: int
    digest: str
    parts: Sequence[Sequence[Any]]

    def line(self) -> bytes:
        """Return the window as a line of the index."""
        values = {"start": self.start, "end": self.end, "digest": self.digest, "parts": self.parts}
        return json.dumps(values).encode() + b"\n"


def window_of(start: int, lines: Sequence[bytes]) -> Window:
    """Return the window of the lines that start at byte `start`, each without its end."""
    data = b"".join(line + b"\n" for line in lines)
    return Window(start, start + len(data), digest_of(data), parts_of(lines))


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest of the bytes of a window."""
    return sha256(data).hexdigest()[:16]  # processors have instructions for it


def window_in(line: bytes) -> Window:
    """Return the window in a line of an index. Raises ValueError if it is not one."""
    if len(line) > 2 * LONGEST_WINDOW:
        raise ValueError("it is too long")
    try:
        document = json.loads(line)
        start, end, digest, parts = (document[name] for name in ("start", "end", "digest", "parts"))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not a window") from error
    found = parts if type(parts) is list else []
    sizes = [part[1] for part in found if isinstance(part, list) and len(part) in (2, 8)]
    if not all(type(number) is int for number in (start, end, *sizes)) or type(digest) is not str:
        raise ValueError("it is not a window")
    if not 0 <= start < end <= start + LONGEST_WINDOW or len(sizes) != len(found) or min(sizes, default=0) < 1:
        raise ValueError("it is not a window")
    if sum(sizes) != end - start:
        raise ValueError("its parts are not the window")
    return Window(start, end, digest, parts)


def block_in(part: Sequence[Any]) -> Block:
    """Return the block in a part that was read from an index. Raises ValueError if it is not valid."""
    _, size, notes, first, last, step, times, curves = part
    known = type(notes) is int and 0 < notes <= size and type(step) is int and 0 <= step < MOST_EXACT
    if not known or not all(type(time) is float and math.isfinite(time) for time in (first, last)):
        raise ValueError("it is not a block")
    if not isinstance(curves, dict) or any(len(name) > LONGEST_NAME for name in curves):
        raise ValueError("it has other curves")
    known_times = _column(times, array("q"))
    columns = {name: _column(each, known_times[0]) for name, each in curves.items()}
    return Block(notes, first, last, step, known_times, columns)


def parts_of(lines: Sequence[bytes]) -> list[list[Any]]:
    """Return the parts of a window that has these lines."""
    parts: list[list[Any]] = []
    place = 0
    for block, count in blocks_of(list(map(_parsed, lines))):
        size = sum(len(line) + 1 for line in lines[place : place + count])
        place += count
        if block is not None:
            parts.append(["block", size, *block.document()])
        elif parts and parts[-1][0] == "lines":
            parts[-1][1] += size
        else:
            parts.append(["lines", size])
    return parts


def blocks_of(notes: Sequence[Mapping[str, Any] | None]) -> Iterator[tuple[Block | None, int]]:
    """Yield what consecutive notes add up to, in order, and how many they are; None for those to be taken one by one.

    notes: None for a line that is not a note.
    """
    for is_ordinary, group in groupby(notes, _is_ordinary):
        alike = list(group)
        block = None
        if is_ordinary and len(alike) >= FEWEST_NOTES:
            with suppress(_OddNoteError, OverflowError):
                block = _block_of([note for note in alike if note is not None])
        yield block, len(alike)


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    try:
        note = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) else None


def _is_ordinary(note: Mapping[str, Any] | None) -> bool:
    """Return whether a note may be in a block."""
    if note is None or note.get("kind") not in ("logged", "losses", "step"):
        return False
    time = note.get("time")
    return type(time) is float and math.isfinite(time)


def _block_of(notes: Sequence[Mapping[str, Any]]) -> Block:
    """Add up notes. Raises _OddNoteError if one of them does something that a column does not."""
    times, curves, last = (array("q"), array("d")), dict[str, Column](), None
    for note in notes:
        kind, values = note["kind"], note.get("values")
        step = _step(note.get("first" if kind == "losses" else "step"))
        if kind == "losses":
            _add_each(curves.setdefault(LOSS_OF_STEP, (array("q"), array("d"))), step, note.get("losses"))
            continue
        last = step
        if kind == "step":
            continue
        if not isinstance(values, dict):
            raise _OddNoteError
        _add(times, step, note["time"])
        for name, value in values.items():
            number = _number(value)
            if number is None or name in NO_CURVES:
                continue
            if name not in curves:
                if len(name) > LONGEST_NAME:
                    raise _OddNoteError
                curves[name] = array("q"), array("d")
            _add(curves[name], step, number)
        if type(samples := note.get("samples")) is int and 0 <= samples < MOST_EXACT:
            _add(curves.setdefault(SAMPLES, (array("q"), array("d"))), step, float(samples))
    if last is None:
        raise _OddNoteError
    return Block(len(notes), notes[0]["time"], notes[-1]["time"], last, times, curves)


def _add_each(column: Column, first: int, values: object) -> None:
    if not isinstance(values, list):
        raise _OddNoteError
    for number, value in enumerate(values):
        known = _number(value)
        if known is not None:
            _add(column, first + number, known)


def _add(column: Column, step: int, value: float) -> None:
    """Add a point; one at the same step is replaced, as by the log of an evaluation."""
    steps, values = column
    if steps and steps[-1] >= step:
        if steps[-1] > step:
            raise _OddNoteError
        values[-1] = value
        return
    steps.append(step)
    values.append(value)


def _step(value: object) -> int:
    if type(value) is not int or not 0 <= value < MOST_EXACT:
        raise _OddNoteError
    return value


def _number(value: object) -> float | None:
    """Return a logged value as a number; None if it is not one."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(_step(abs(value))) if value >= 0 else -float(_step(abs(value)))
    return NOT_FINITE.get(value) if isinstance(value, str) else None


def _text(column: array[Any]) -> str:
    return b64encode(_little(column).tobytes()).decode()


def _column(texts: object, shared: array[int]) -> Column:
    """Return steps and values from their texts; without a text, the shared steps. Raises ValueError if not valid."""
    if not isinstance(texts, list) or len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        raise ValueError("it is not a column")
    values = _little(array("d", b64decode(texts[1], validate=True)))
    steps = _little(array("q", b64decode(texts[0], validate=True))) if texts[0] else shared
    if len(steps) != len(values):
        raise ValueError("it has other steps")
    if steps is not shared and any(map(ge, steps, steps[1:])):
        raise ValueError("its steps do not ascend")
    if steps and not 0 <= steps[0] <= steps[-1] < 2 * MOST_EXACT:
        raise ValueError("it has other steps")
    return steps, values


def _little(column: array[Any]) -> array[Any]:
    """Return a column whose bytes are in the order of the file, or were."""
    if sys.byteorder == "little":
        return column
    swapped = array(column.typecode, column)
    swapped.byteswap()
    return swapped


@define
class WindowsAhead:
    """The lines of a journal that are being written, until they are a window. start: the byte at which they start."""

    start: int
    lines: list[bytes] = field(factory=list)
    size: int = 0

    def add(self, line: bytes) -> Window | None:
        """Add a line with its end; return the window that it completes, if it does."""
        if self.start < INDEXED_FROM:
            self.start += len(line)
            return None
        self.lines.append(line[:-1])
        self.size += len(line)
        if self.size < WINDOW:
            return None
        window = window_of(self.start, self.lines) if self.size <= LONGEST_WINDOW else None
        self.start, self.lines, self.size = self.start + self.size, [], 0
        return window


def windows_in(lines: Iterable[bytes]) -> Iterator[Window]:
    """Yield the windows in the lines of an index that are valid and after those before them."""
    reached = 0
    for line in lines:
        try:
            window = window_in(line)
        except ValueError:
            continue  # such as one that a crash left incomplete
        if window.start >= reached:
            reached = window.end
            yield window
