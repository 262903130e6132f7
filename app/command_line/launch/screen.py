"""What the processes print, on one screen: lines under the label of their rank, and one progress bar below them."""

from __future__ import annotations

import os
import re
import time
from threading import RLock

from attrs import Factory, define, field

UP = b"\x1b[A"
ERASE = b"\r\x1b[J"
PIECES = re.compile(rb"\n|\r|\x1b\[A|(?:(?!\x1b\[A)[^\n\r])+")
LAST_WORDS = re.compile(rb"(?:\[rank\d+]: )?Traceback \(most recent call last\):|hexloop: (?!warning: |signal )")
"""How the report of an error begins, which is kept for the end: other ranks may still have something to say."""

PATIENCE = 5.0
"""Seconds for which it is kept while the process lives on."""


@define
class Screen:
    """The launcher's standard output and error, to which everything goes through here.

    drawn: whose bar stands there. joined: whether both are the same terminal or file. lock: of all that is on it.
    """

    drawn: Source | None = None
    joined: bool = Factory(lambda: _same_file(1, 2))
    _open: bool = False
    _behind_blanks: bool = False
    _broken: set[int] = field(factory=set)
    lock: RLock = field(factory=RLock)

    def line(self, stream: int, text: bytes) -> None:
        """A whole line, without its end; bars that stand on a terminal are drawn again below it."""
        with self.lock:
            source = self.drawn
            if source is None or not self._open or not (self.joined or source.stream == stream):
                self._write(stream, text + b"\n")
            elif os.isatty(source.stream) and (source.bar or source.row):
                self._write(stream, UP * source.row + ERASE + text + b"\n")
                self._write(source.stream, source.rows())
            elif not source.bar:
                self._write(stream, (b"\r" if self._behind_blanks else b"") + text + b"\n")
                self._behind_blanks = False
            else:
                self._write(stream, b"\n" + text + b"\n")
                self._open = False

    def draw(self, source: Source, text: bytes) -> None:
        """A piece of a bar, as it comes."""
        with self.lock:
            self.drawn, self._open = source, True
            self._behind_blanks = text.isspace() and text not in (b"\r", b"\n")
            self._write(source.stream, text)

    def say(self, text: str) -> None:
        """A line of the launcher's own."""
        self.line(2, f"hexloop: {text}".encode())

    def _write(self, stream: int, text: bytes) -> None:
        """Write all of it; where nobody reads any more, what is printed is dropped and the run goes on."""
        if stream in self._broken:
            return
        try:
            while text:
                text = text[os.write(stream, text) :]
        except OSError:
            self._broken.add(stream)


@define
class Source:
    """One stream of one process, taken apart into whole lines and what moves the cursor.

    label: stands before each line. kept: the report of an error, which `began` at that time. Progress bars are shown of
    rank 0 alone; those of the others would be drawn over it.
    """

    screen: Screen
    stream: int
    rank: int
    label: bytes
    kept: list[bytes] = field(factory=list)
    began: float | None = None
    _line: bytes = b""
    _carried: bytes = b""
    _moving: bool = False
    _fresh: bool = True
    _row: int = 0
    _bars: dict[int, bytes] = field(factory=dict)

    @property
    def bar(self) -> bytes:
        """The bar that stands in the row of the cursor, with its label; empty where there is none."""
        return self._bars.get(self._row, b"")

    @property
    def row(self) -> int:
        """How far below the first bar the cursor is."""
        return max(self._row, 0)

    def rows(self) -> bytes:
        """What draws all bars anew, from where the first one is to stand, and brings the cursor back to its row."""
        last = max(self.row, *self._bars, 0)
        return b"\n".join(self._bars.get(row, b"") for row in range(last + 1)) + UP * (last - self.row)

    def take(self, chunk: bytes) -> None:
        """The process printed `chunk`."""
        chunk = (self._carried + chunk).replace(b"\r\n", b"\n")
        self._carried = chunk[-1:] if chunk.endswith(b"\r") else b""
        for piece in PIECES.findall(chunk.removesuffix(b"\r") if self._carried else chunk):
            with self.screen.lock:  # what is noted of a bar is what stands on the screen
                self._piece(piece)

    def end(self) -> None:
        """The process prints nothing more: show what stands in an unfinished line."""
        if self._line:
            self._whole(self._line)
            self._line = b""
        if self.bar.strip():
            self._draw(b"\n")
        self._forget_bars()

    def release(self) -> bytes:
        """Show what was kept, and give it."""
        kept, self.kept, self.began = self.kept, [], None
        for line in kept:
            self.screen.line(self.stream, self.label + line)
        return b"\n".join(kept)

    def release_what_is_old(self) -> None:
        """Show what was kept long enough: the process seems to have survived it."""
        if self.began is not None and time.monotonic() - self.began > PATIENCE:
            self.release()

    def _piece(self, piece: bytes) -> None:
        if piece == b"\n":
            self._newline()
        elif piece == b"\r":
            if not self._moving and self._line:  # it stands there until it is written over
                self._moving, self._fresh, line, self._line = True, True, self._line, b""
                self._piece(line)
            self._moving = self._fresh = True
            self._draw(b"\r")
        elif piece == UP and (self._moving or self._bars):
            self._row, self._moving = self._row - 1, True
            self._draw(piece)
        elif not self._moving:
            self._line += piece
        elif self._fresh and not piece.strip():  # blanks that wipe a bar, and have to wipe the label as well
            self._bars.pop(self._row, None)
            self._draw(piece + b" " * len(self.label))
        else:
            piece = self.label + piece if self._fresh else piece
            self._bars[self._row] = piece if self._fresh else self.bar + piece
            self._fresh = False
            self._draw(piece)

    def _newline(self) -> None:
        if self._moving:
            self._row, self._moving, self._fresh = self._row + 1, False, True
            self._draw(b"\n")
        else:
            self._whole(self._line)
            self._line = b""

    def _whole(self, line: bytes) -> None:
        if self.bar == b"":
            self._forget_bars()
        if self.label:
            line = line.removeprefix(f"[rank{self.rank}]: ".encode())  # torch's own label, on tracebacks
        if self.stream == 2 and self.began is None and LAST_WORDS.match(line):
            self.began = time.monotonic()
        if self.began is not None:
            self.kept.append(line)
        else:
            self.screen.line(self.stream, self.label + line)

    def _draw(self, piece: bytes) -> None:
        if self.rank == 0:
            self.screen.draw(self, piece)

    def _forget_bars(self) -> None:
        self._row = 0
        self._bars.clear()
        if self.screen.drawn is self:
            self.screen.drawn = None


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:  # one of them is closed
        return False
