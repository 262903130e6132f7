"""Progress on standard error: bars on a terminal, lines elsewhere; and rows of metrics that are aligned."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, TextIO

from attrs import define, field

from hexloop.app.callbacks.beside_bars import COPIED_TO_TERMINAL, guarded_bar_class, is_terminal

SECONDS_BETWEEN_LINES = 10.0
ELAPSED_TIME_DIVISOR = 50
"""The next line is printed after 10 seconds, or after a fiftieth of the elapsed time if that is longer."""


def terminal_width() -> int:
    """Return the characters in a line of the terminal."""
    told = os.environ.get(COPIED_TO_TERMINAL, "")
    return int(told) if told.isdecimal() else shutil.get_terminal_size().columns


def new_bar(total: int, initial: int = 0, name: str = "", unit: str = "it", leave: bool = True) -> Any:
    """Return a bar of tqdm on a terminal, and lines with the same methods elsewhere.

    unit: the name of what is counted, in the singular. leave: whether it stays when it is closed.
    """
    if not is_terminal(sys.stderr):
        return ProgressLines(total, initial, name, unit, leave)
    return guarded_bar_class()(
        total=total, initial=initial, desc=name if unit == "sample" else None, unit="it" if unit == "step" else unit,
        leave=leave, dynamic_ncols=True,
    )  # fmt: skip


@contextmanager
def bar_of_the_rest(name: str, unit: str, shows: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how much is left. It shows that in a bar, which is made by the first call.

    shows: whether it does.
    """
    bars: list[Any] = []

    def show(left: int) -> None:
        if shows and not bars:
            bars.append(new_bar(left, name=name, unit=unit))
        for bar in bars:
            bar.update(bar.total - left - bar.n)

    try:
        yield show
    finally:
        for bar in bars:
            bar.close()


def write_above_bars(text: str, stream: TextIO) -> None:
    """Write a line to standard output or error; bars that are shown on the same terminal stay below it."""
    bars = sys.modules.get("tqdm")
    if bars is None:
        stream.write(f"{text}\n")
    else:
        bars.tqdm.write(text, file=stream)
    stream.flush()


@define(eq=False)
class ProgressLines:
    """Progress as lines on standard error, at a bounded rate, with the methods of a bar of tqdm that are used here.

    n: how many of `total` are done. clock: returns seconds from any point in time.
    """

    total: int
    n: int = 0
    name: str = ""
    unit: str = "step"
    leave: bool = True
    clock: Callable[[], float] = monotonic
    disable: bool = False
    _note: str = ""
    _first: int = field(init=False)
    _began: float = field(init=False)
    _due: float = field(init=False)
    _printed: bool = False

    def __attrs_post_init__(self) -> None:
        self._first, self._began = self.n, self.clock()
        self._due = self._began + SECONDS_BETWEEN_LINES

    def update(self, number: int = 1) -> None:
        """Count `number` more, and print a line if one is due."""
        self.n += number
        now = self.clock()
        if now >= self._due:
            self._print(now)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Add a text to the next lines."""
        self._note = text

    def write(self, text: str) -> None:
        """Print a line to standard output."""
        print(text, flush=True)

    def close(self) -> None:
        """Print the last line: always of what stays, and otherwise only if others were printed."""
        if not self.disable and (self.leave or self._printed):
            self._print(self.clock())
        self.disable = True

    def line(self, now: float) -> str:
        """Return the line: how many are done, the time, the rate, and the time that is left."""
        seconds, counted = now - self._began, self.n - self._first
        parts = [f"{self.name}: " * bool(self.name) + f"{self.unit} {self.n:,} of {self.total:,}"]
        if self.total:
            parts[0] += f" ({self.n / self.total:.0%})"
        parts.append(f"{duration_text(seconds)} so far" if self.n < self.total else duration_text(seconds))
        if counted > 0 and seconds > 0:
            parts.append(f"{counted / seconds:.3g} per second")
            if self.n < self.total:
                parts.append(f"{duration_text(seconds / counted * (self.total - self.n))} left")
        return ", ".join([*parts, *filter(None, [self._note])])

    def _print(self, now: float) -> None:
        self._printed = True
        self._due = now + max(SECONDS_BETWEEN_LINES, (now - self._began) / ELAPSED_TIME_DIVISOR)
        print(self.line(now), file=sys.stderr, flush=True)


def duration_text(seconds: float) -> str:
    """Return seconds in the unit that fits them: "2.1 ms", "3.52 s", "1:02:03"."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def size_text(size: int) -> str:
    """Return a number of bytes in the unit that fits it: "354 bytes", "1.2 kB", "34 MB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


# Rows of metrics

CELL = 10
"""The least width of a cell: that of a number with four digits and an exponent."""

LINES_BELOW_HEADER = 20
"""The header of the rows is repeated after this number of lines."""


def is_evaluation(logs: Mapping[str, Any]) -> bool:
    """Return whether a log is that of an evaluation: it has a time that is not the training's."""
    return any(name.endswith("_runtime") and name != "train_runtime" for name in logs)


class AlignedRows:
    """Rows of named cells below a header, in the width of the terminal. A row that is too wide continues below it.

    The header is repeated when the columns change, and after 20 lines, so that it stays in sight.
    """

    def __init__(self) -> None:
        self._columns: tuple[str, ...] = ()
        self._lines = 0

    def interrupt(self) -> None:
        """Count a line that was printed between the rows."""
        self._lines += 1

    def lines(self, row: Mapping[str, Any], width: int) -> list[str]:
        """Return the lines of a row, with the header if it is needed. width: characters in a line."""
        cells = {name: str(value) for name, value in row.items()}
        blocks = _blocks(cells, width)
        headed = len(blocks) == 1 and self._columns == tuple(cells) and self._lines < LINES_BELOW_HEADER
        self._columns, self._lines = tuple(cells), self._lines + 1 if headed else 0
        lines: list[str] = []
        for names in blocks:
            if not headed:
                lines.append("  ".join(name.rjust(CELL) for name in names))
            lines.append("  ".join(cells[name].rjust(max(CELL, len(name))) for name in names))
        return lines


def _blocks(cells: Mapping[str, str], width: int) -> list[list[str]]:
    """Return the names of the cells, as many in each list as fit into a line."""
    blocks: list[list[str]] = [[]]
    left = width
    for name, cell in cells.items():
        taken = max(CELL, len(name), len(cell)) + 2
        if blocks[-1] and taken > left + 2:
            blocks.append([])
            left = width
        blocks[-1].append(name)
        left -= taken
    return blocks
