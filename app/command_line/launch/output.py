"""The output of the worker processes: read from pipes, labelled with the rank, printed and written to log files.

`LaunchAttempt` reads the pipes, an `OutputStream` splits what it reads into lines and progress bars, and the `Screen`
prints them: lines above one progress bar.
"""

from __future__ import annotations

import os
import re
import selectors
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event, RLock, Thread
from typing import BinaryIO

from attrs import Factory, define, field
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from hexloop.domain.regular_files import open_lines

UP = b"\x1b[A"
ERASE = b"\r\x1b[J"
PIECES = re.compile(rb"\n|\r|\x1b\[A|(?:(?!\x1b\[A)[^\n\r])+")
ERROR_REPORT = re.compile(rb"(?:\[rank\d+]: )?Traceback \(most recent call last\):|hexloop: (?!warning: |signal )")
"""The first line of an error report. Reports are held back and printed last, after the output of other ranks."""

HOLD_TIME = 5.0
"""Seconds for which a report is held back while the process is alive."""


@define
class Screen:
    """The launcher's standard output and error, which only this class writes to.

    drawn: the stream whose bar is displayed. joined: whether both are the same terminal or file. lock: protects
    everything that is displayed.
    """

    drawn: OutputStream | None = None
    joined: bool = Factory(lambda: _same_file(1, 2))
    _open: bool = False
    _after_blanks: bool = False
    _broken: set[int] = field(factory=set)
    lock: RLock = field(factory=RLock)

    def line(self, stream: int, text: bytes) -> None:
        """Print a complete line, given without its newline. Bars on a terminal are redrawn below it."""
        with self.lock:
            output = self.drawn
            if output is None or not self._open or not (self.joined or output.stream == stream):
                self._write(stream, text + b"\n")
            elif os.isatty(output.stream) and (output.bar or output.row):
                self._write(stream, UP * output.row + ERASE + text + b"\n")
                self._write(output.stream, output.rows())
            elif not output.bar:
                self._write(stream, (b"\r" if self._after_blanks else b"") + text + b"\n")
                self._after_blanks = False
            else:
                self._write(stream, b"\n" + text + b"\n")
                self._open = False

    def draw(self, output: OutputStream, text: bytes) -> None:
        """Print a piece of a bar."""
        with self.lock:
            self.drawn, self._open = output, True
            self._after_blanks = text.isspace() and text not in (b"\r", b"\n")
            self._write(output.stream, text)

    def report(self, text: str) -> None:
        """Print a message of the launcher."""
        self.line(2, f"hexloop: {text}".encode())

    def _write(self, stream: int, text: bytes) -> None:
        """Write all bytes. After the first error, such as a closed pipe, output is dropped and the run continues."""
        if stream in self._broken:
            return
        try:
            while text:
                text = text[os.write(stream, text) :]
        except OSError:
            self._broken.add(stream)


@define
class OutputStream:
    """One output stream of one process, split into complete lines and pieces that move the cursor.

    label: printed before each line. held: the lines of an error report that are held back since `reported_at`. Progress
    bars are printed for rank 0 only, as those of other ranks would overwrite them.
    """

    screen: Screen
    stream: int
    rank: int
    label: bytes
    held: list[bytes] = field(factory=list)
    reported_at: float | None = None
    _line: bytes = b""
    _carried: bytes = b""
    _moving: bool = False
    _fresh: bool = True
    _row: int = 0
    _bars: dict[int, bytes] = field(factory=dict)
    _returns_since_erased: int | None = None
    _above: bool = False
    _skipped_rows: int | None = None

    @property
    def bar(self) -> bytes:
        """The bar in the cursor's row, with its label; empty if there is none."""
        return self._bars.get(self._row, b"")

    @property
    def row(self) -> int:
        """The cursor's row, counted from the first bar."""
        return max(self._row, 0)

    def rows(self) -> bytes:
        """Return the bytes that redraw all bars, starting in the first bar's row, and restore the cursor's row."""
        last = max(self.row, *self._bars, 0)
        return b"\n".join(self._bars.get(row, b"") for row in range(last + 1)) + UP * (last - self.row)

    def take(self, chunk: bytes) -> None:
        """Process bytes that the worker printed."""
        chunk = (self._carried + chunk).replace(b"\r\n", b"\n")
        self._carried = chunk[-1:] if chunk.endswith(b"\r") else b""
        for piece in PIECES.findall(chunk.removesuffix(b"\r") if self._carried else chunk):
            with self.screen.lock:  # keeps the recorded bars consistent with the display
                self._piece(piece)

    def end(self) -> None:
        """Print an unfinished line, as the process prints nothing more."""
        self._end_rows(b"")
        if self._line:
            self._whole(self._line)
            self._line = b""
        if self.bar.strip():
            self._draw(b"\n")
        self._forget_bars()

    def release(self) -> bytes:
        """Print the lines that are held back, and return them."""
        held, self.held, self.reported_at = self.held, [], None
        for line in held:
            self.screen.line(self.stream, self.label + line)
        return b"\n".join(held)

    def release_if_old(self) -> None:
        """Print lines that have been held back long enough: the process seems to have survived the error."""
        if self.reported_at is not None and time.monotonic() - self.reported_at > HOLD_TIME:
            self.release()

    def _piece(self, piece: bytes) -> None:
        if self._starts_line(piece):
            self._moving, self._above = False, True
        if self._skipped_rows is not None and piece != b"\n":
            self._end_rows(piece)
        if piece == b"\n":
            self._newline()
        elif piece == b"\r":
            if not self._moving and self._line:  # it stays until it is overwritten
                self._moving, self._fresh, line, self._line = True, True, self._line, b""
                self._piece(line)
            self._moving = self._fresh = True
            self._draw(b"\r")
        elif piece == UP and (self._moving or self._bars):
            self._row, self._moving = self._row - 1, True
            self._draw(piece)
        elif not self._moving:
            self._line += piece
        elif self._fresh and not piece.strip():  # blanks that erase a bar must erase the label too
            self._bars.pop(self._row, None)
            self._returns_since_erased = None if self._bars else 0
            self._draw(piece + b" " * len(self.label))
        else:
            piece = self.label + piece if self._fresh else piece
            self._bars[self._row] = piece if self._fresh else self.bar + piece
            self._fresh = False
            self._draw(piece)

    def _starts_line(self, piece: bytes) -> bool:
        """Return whether a piece is a line that is written where all bars were erased, and not the next bar.

        A bar that is drawn again starts with a return of its own, after the one that ends the erasing.
        """
        if self._returns_since_erased is None or piece == UP:
            return False
        if piece == b"\r":
            self._returns_since_erased += 1
            return False
        once, self._returns_since_erased = self._returns_since_erased == 1, None
        return once and self._moving and self._row <= 0 and bool(piece.strip())

    def _newline(self) -> None:
        if self._moving:
            self._row, self._moving, self._fresh = self._row + 1, False, True
            self._draw(b"\n")
        elif self._skipped_rows is not None:
            self._skipped_rows += 1
        else:
            self._whole(self._line)
            self._line = b""
            self._above, self._skipped_rows = False, 0 if self._above else None

    def _end_rows(self, piece: bytes) -> None:
        """Print the newlines that follow a line above the bars: as empty lines, unless a bar is drawn below them.

        tqdm draws its bars in any order, and moves to the row of each by newlines.
        """
        rows, self._skipped_rows = self._skipped_rows or 0, None
        if piece == b"\r" and rows:
            self._row, self._moving = rows, True
            self._draw(b"\n" * rows)
        else:
            for _ in range(rows):
                self._whole(b"")

    def _whole(self, line: bytes) -> None:
        if self.bar == b"":
            self._forget_bars()
        if self.label:
            line = line.removeprefix(f"[rank{self.rank}]: ".encode())  # torch's own label, on tracebacks
        if self.stream == 2 and self.reported_at is None and ERROR_REPORT.match(line):
            self.reported_at = time.monotonic()
        if self.reported_at is not None:
            self.held.append(line)
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


STREAMS = (1, 2)
CHUNK = 2**16
PAUSE = 0.5
"""Seconds between checks of the error reports that are held back."""


@define
class LaunchAttempt:
    """The pipes of all local workers of one attempt, and the thread that reads them."""

    screen: Screen
    streams: dict[tuple[int, int], OutputStream] = field(factory=dict)
    _readers: dict[int, tuple[OutputStream, BinaryIO | None]] = field(factory=dict)
    _writers: list[int] = field(factory=list)
    _ended: Event = field(factory=Event)
    _wake: tuple[int, int] = Factory(os.pipe)
    _thread: Thread | None = None

    def pipe(self, rank: int, stream: int, output: OutputStream, file: BinaryIO | None) -> str:
        """Create a pipe for one stream of a worker and return the path at which the worker opens it."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.streams[rank, stream] = output
        self._readers[reader] = output, file
        self._writers.append(writer)
        return f"/dev/fd/{writer}"

    def start(self) -> None:
        """Start reading, after the workers have opened their ends of the pipes."""
        for writer in self._writers:
            os.close(writer)
        self._writers.clear()
        self._thread = Thread(target=self._read, name="output of workers", daemon=True)
        self._thread.start()

    def end(self, last: int | None) -> None:
        """Print all remaining output after the workers have exited, the error report of the rank `last` at the end.

        An identical report of another rank is not repeated.
        """
        self._ended.set()
        os.write(self._wake[1], b"!")
        if self._thread is not None:
            self._thread.join()
        final = self.streams.get((last, 2)) if last is not None else None
        for output in self.streams.values():
            if final is not None and output is not final and output.held == final.held:
                output.held = []
            if output is not final:
                output.release()
        if final is not None:
            final.release()
        for descriptor in (*self._readers, *self._writers, *self._wake):
            os.close(descriptor)
        self._readers.clear()
        self._writers.clear()

    def reported(self, rank: int) -> float | None:
        """Return when the rank started to report an error; None if it has not."""
        return self.streams[rank, 2].reported_at

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for reader in self._readers:
                selector.register(reader, selectors.EVENT_READ)
            selector.register(self._wake[0], selectors.EVENT_READ)
            while True:
                ended = self._ended.is_set()  # checked first, so that everything printed until then is read below
                ready = [key.fd for key, _ in selector.select(0 if ended else PAUSE) if key.fd in self._readers]
                # A log is read before the bar that is redrawn below it.
                for reader in sorted(ready, key=lambda reader: self._readers[reader][0].stream):
                    if not self._take(reader):
                        selector.unregister(reader)
                for output, _ in self._readers.values():
                    output.release_if_old()
                if ended and not ready:
                    break
        for output, _ in self._readers.values():
            output.end()

    def _take(self, reader: int) -> bool:
        """Read from the pipe; return False at its end."""
        output, file = self._readers[reader]
        chunk = os.read(reader, CHUNK)
        output.take(chunk)
        if file is not None:
            try:
                file.write(chunk)
            except OSError as error:  # logging must not stop the run
                self._readers[reader] = output, None
                self.screen.report(f"{file.name} is no longer written: {error}")
        return bool(chunk)


class WorkerOutput(LogsSpecs):
    """Tells torch's agent where the workers of each attempt write their output."""

    def __init__(self, screen: Screen, log_folder: str | None) -> None:
        super().__init__(log_folder)
        self.screen = screen
        self.attempt: LaunchAttempt | None = None
        self._files: dict[int, BinaryIO] = {}

    @property
    def root_log_dir(self) -> str:
        """The folder of the log files; empty if there are none."""
        return self._root_log_dir or ""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the pipes of the workers, given their environment variables by local rank."""
        self.attempt = LaunchAttempt(self.screen)
        paths: dict[int, dict[int, str]] = {stream: {} for stream in STREAMS}
        for local_rank, variables in envs.items():
            variables["TORCHELASTIC_ERROR_FILE"] = ""
            rank = int(variables["RANK"])
            for stream in STREAMS:
                output = OutputStream(self.screen, stream, rank, _label(variables))
                paths[stream][local_rank] = self.attempt.pipe(rank, stream, output, self._file(rank))
        return LogsDest(paths[1], paths[2], error_files=dict.fromkeys(envs, os.devnull))

    def end(self, last: int | None = None) -> None:
        """Print all remaining output of the last attempt; see `LaunchAttempt.end`."""
        if self.attempt is not None:
            attempt, self.attempt = self.attempt, None
            attempt.end(last)

    def close(self) -> None:
        """Print all remaining output and close the log files."""
        self.end()
        for file in self._files.values():
            file.close()

    def _file(self, rank: int) -> BinaryIO | None:
        if not self._root_log_dir:
            return None
        if rank not in self._files:
            folder = Path(self._root_log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self._files[rank] = os.fdopen(open_lines(folder / f"rank-{rank}.log"), "ab", buffering=0)
        return self._files[rank]


def _label(variables: Mapping[str, str]) -> bytes:
    """Return the label of a worker's lines; empty if it is the only worker."""
    world_size, rank = variables["WORLD_SIZE"], variables["RANK"]
    return f"[rank {rank:>{len(str(int(world_size) - 1))}}] ".encode() if world_size != "1" else b""
