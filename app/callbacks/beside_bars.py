"""Output of any library while progress bars are drawn: whole lines, which appear above the bars.

Standard output and error are one terminal. A line that is written while a bar stands in the cursor's row would continue
that row. While a bar is drawn, `write` of the two streams is therefore replaced, on the objects themselves, because
handlers of logging keep them. What C libraries write to the file descriptors is not seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from threading import RLock
from typing import Any

from attrs import define, field

COPIED_TO_TERMINAL = "HEXLOOP_TERMINAL"
"""The environment variable in which `hexloop launch` passes the width of its terminal to its workers."""


def is_terminal(stream: Any) -> bool:
    """Return whether a stream can draw a bar in place: it is a terminal, or copied to one by `hexloop launch`."""
    return bool(os.environ.get(COPIED_TO_TERMINAL)) or is_terminal_itself(stream)


def is_terminal_itself(stream: Any) -> bool:
    """Return whether a stream is a terminal that can draw a bar in place, not a file, a pipe or a dumb terminal."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # no stream at all, as under pythonw, or a closed one
        return False


ERASE = "\r\x1b[J"
"""Erases the cursor's row and those below it."""

LONGEST_PENDING = 1 << 16
"""Characters without a newline that are held back."""


@define(eq=False)
class GuardedStream:
    """A stream whose `write` is replaced. draws: whether this process draws the bars; otherwise another one does.

    write_as_before: the `write` of the stream. A process that was forked from this one does not draw: it must not wait
    for the lock of the bars, which another thread may have held at that moment.
    """

    stream: Any
    draws: bool
    write_as_before: Callable[[str], int] = field(init=False)
    _process: int = field(factory=os.getpid)
    _pending: str = ""
    _lock: Any = field(init=False)
    _pieces: list[str] | None = None

    def __attrs_post_init__(self) -> None:
        # The lock of the bars, so that no other one is waited for while it is held.
        self._lock = _lock_of_bars() if self.draws else RLock()
        self.write_as_before = self.stream.write
        self.stream.write = self.write

    def write(self, text: str) -> int:
        """Write a text: lines above the bars, and the rest once its line is complete."""
        if not isinstance(text, str) or _is_of_bars(sys._getframe(1).f_globals.get("__name__", "")):
            return self._write_now(text)
        if self._process != os.getpid():
            self._process, self.draws, self._pending, self._lock = os.getpid(), False, "", RLock()
        with self._lock:
            *lines, self._pending = (self._pending + text).split("\n")
            if len(self._pending) > LONGEST_PENDING:
                lines, self._pending = [*lines, self._pending], ""
            if lines:
                self._write_lines("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))
        return len(text)

    def release(self) -> None:
        """Restore `write`, unless it has been replaced again, and write what is held back."""
        if vars(self.stream).get("write") == self.write:
            del self.stream.write
        pending, self._pending = self._pending, ""
        if pending and self._process == os.getpid():
            self.write_as_before(pending)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Write what is written within the context in one piece, so that no other process writes in between."""
        if self._pieces is not None:
            yield
            return
        self._pieces = []
        try:
            yield
        finally:
            pieces, self._pieces = self._pieces, None
            self.write_as_before("".join(pieces))
            self.stream.flush()

    def _write_now(self, text: str) -> int:
        if self._pieces is None or self._process != os.getpid():
            return self.write_as_before(text)
        self._pieces.append(text)
        return len(text)

    def _write_lines(self, text: str) -> None:
        from tqdm import tqdm

        if self.draws and not is_terminal_itself(self.stream):  # `hexloop launch` knows how tqdm does it
            tqdm.write(text, file=self.stream)
            return
        with self.at_once():
            self._write_now(f"{ERASE}{text}\n")
            for bar in list(getattr(tqdm, "_instances", ())) if self.draws else ():
                if hasattr(bar, "start_t") and bar.fp in (sys.stdout, sys.stderr):
                    bar.refresh(nolock=True)


def _lock_of_bars() -> Any:
    from tqdm import tqdm

    return tqdm.get_lock()  # type: ignore[no-untyped-call]


def _is_of_bars(module: str) -> bool:
    """Return whether a module writes bars, or lines after erasing them."""
    return module == "tqdm" or module.startswith("tqdm.")


@define(eq=False)
class Guard:
    """Guards standard output and error while at least one bar needs it."""

    _needed: int = 0
    _streams: list[GuardedStream] = field(factory=list)

    def at_once(self, stream: Any) -> AbstractContextManager[None]:
        """Write to a stream, if it is guarded, in one piece; see `GuardedStream.at_once`."""
        found = next((each for each in self._streams if each.stream == getattr(stream, "_wrapped", stream)), None)
        return nullcontext() if found is None else found.at_once()

    @property
    def is_on(self) -> bool:
        """Whether a bar is drawn on this terminal, by this process or another one of the run."""
        return bool(self._streams)

    def start(self, draws: bool) -> None:
        """Guard the streams that are terminals, for one more bar; draws: see `GuardedStream`."""
        self._needed += 1
        if self._needed == 1:
            is_shown = is_terminal if draws else is_terminal_itself
            for stream in dict.fromkeys((sys.stdout, sys.stderr)):
                if is_shown(stream) and _can_be_guarded(stream):
                    self._streams.append(GuardedStream(stream, draws))

    def stop(self) -> None:
        """Restore the streams when no bar needs them to be guarded."""
        self._needed -= 1
        if self._needed == 0:
            streams, self._streams = self._streams, []
            for each in streams:
                each.release()


GUARD = Guard()
"""That of this process."""


def _can_be_guarded(stream: Any) -> bool:
    """Return whether the attribute `write` of a stream can be set."""
    return hasattr(stream, "__dict__") and "write" not in vars(stream)


def announce(text: str) -> None:
    """Write a line to standard error at once, also in the middle of another one, as handlers of signals have to."""
    start = ERASE if GUARD.is_on and is_terminal_itself(sys.stderr) else "\n"
    os.write(2, f"{start}{text}\n".encode())


@cache
def guarded_bar_class() -> type[Any]:
    """Return the class of bars that guard the streams from their construction until they are closed."""
    from tqdm.auto import tqdm

    class GuardedBar(tqdm):  # type: ignore[type-arg]
        """A bar of tqdm, above which other output appears as whole lines."""

        is_guarding = False

        def __init__(self, *args: Any, **keywords: Any) -> None:
            GUARD.start(draws=True)
            try:
                super().__init__(*args, **keywords)
            except BaseException:
                GUARD.stop()
                raise
            self.is_guarding = True

        def display(self, *args: Any, **keywords: Any) -> Any:
            """Draw the bar in one piece."""
            with GUARD.at_once(self.fp):
                return super().display(*args, **keywords)

        def close(self) -> None:
            """Close the bar, and restore the streams with the last one."""
            try:
                super().close()
            finally:
                if self.is_guarding:
                    self.is_guarding = False
                    GUARD.stop()

    return GuardedBar
