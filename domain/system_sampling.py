"""Samples what the machine of a rank does, in a thread with a bounded cost, into a file of a bounded size."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from hexloop.domain.folders import Folder
from hexloop.domain.json_documents import read_json
from hexloop.domain.regular_files import lines_in
from hexloop.domain.run_folder import system_file
from hexloop.domain.system_metrics import (
    LONGEST_LINE,
    MOST_BYTES,
    MOST_SAMPLES,
    Sample,
    SessionStart,
    line_of,
    sample_entry,
    start_entry,
    thinned,
)
from hexloop.ports.process import Clock

SHORTEST = 0.5
"""Seconds between two samples, at least."""

LARGEST_SHARE = 0.001
"""The share of a processor that sampling takes at most, by which the time between two samples grows."""

MOST_FAILURES = 3
"""Samples in a row that cannot be written, after which the file is given up."""

MOST_LINES = 4 * MOST_SAMPLES
"""Lines that are read of a file."""

CLOSING = 2.0
"""Seconds for which the end of a run waits for a sample that is being taken, such as from a driver that hangs."""


class SystemSampler:
    """Takes samples of one rank and appends them to its file.

    measure: returns the numbers by the names of `METRICS`. step: returns the step of the run; it takes no lock. folder:
    the output folder of the run. spent: returns the seconds of processor time of the calling thread. report: is called
    once with a sentence if the file is given up.

    The thread is not waited for by any step, ends with `close`, and does not exist in processes that are forked. A
    measurement or a file that fails ends the samples, not the run.
    """

    def __init__(
        self,
        measure: Callable[[], Mapping[str, float]],
        step: Callable[[], int],
        folder: Folder,
        start: SessionStart,
        clock: Clock,
        report: Callable[[str], None],
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._measure, self._step, self._folder, self._start = measure, step, folder, start
        self._clock, self._report, self._spent = clock, report, spent
        self.interval = SHORTEST
        self._path = system_file(start.rank)
        self._file: int | None = None
        self._lines = 0
        self._is_cut = False
        self._costs: tuple[float, float] = (0.0, 0.0)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        name = f"hexloop measures rank {self._start.rank}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the samples. Waits for at most `CLOSING` seconds."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(CLOSING)
        self._step = int  # it refers to the run

    def sample(self) -> None:
        """Take a sample, write it, and adapt the interval to its cost. Raises what measuring raises, and OSError."""
        before = self._spent()
        sample = Sample(self._clock.wall(), self._step(), self._measure())
        if self._closed.is_set():
            return
        if self._file is None:
            self._open()
        self._append(sample_entry(sample))
        if self._lines >= MOST_SAMPLES:
            self._thin()
        self._costs = (self._costs[1], self._spent() - before)
        self.interval = max(self.interval, min(self._costs) / LARGEST_SHARE)

    def _run(self) -> None:
        failures = 0
        try:
            while not self._closed.is_set():
                try:
                    self.sample()
                    failures = 0
                except OSError as error:
                    failures += 1
                    if failures == MOST_FAILURES:
                        self._give_up(error)
                        return
                self._closed.wait(self.interval)
        except Exception as error:
            self._give_up(error)
        finally:
            self._shut()

    def _give_up(self, error: Exception) -> None:
        with suppress(Exception):
            text = f"{type(error).__name__}: {error}"
            self._report(f"System metrics of this run are no longer recorded ({text}). The run continues.")

    def _open(self) -> None:
        """Open the file, and write the start of this session after what earlier ones have left."""
        with suppress(FileNotFoundError):
            self._lines = sum(1 for _ in lines_of_rank(self._folder, self._start.rank))
        self._file = self._folder.open_lines(self._path)
        self._append(start_entry(self._start))

    def _append(self, entry: Mapping[str, object]) -> None:
        assert self._file is not None
        line = b"\n" * self._is_cut + json.dumps(entry, allow_nan=False).encode() + b"\n"
        self._is_cut = True  # also if the disk is full
        written = os.write(self._file, line)
        if written == len(line):
            self._is_cut = False
        self._lines += 1

    def _thin(self) -> None:
        """Write the file again with half of the samples, and take fewer from now on."""
        kept, spacing = thinned(list(lines_of_rank(self._folder, self._start.rank)))
        entries = (start_entry(each) if isinstance(each, SessionStart) else sample_entry(each) for each in kept)
        data = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
        self._shut()
        self._folder.replace(self._path, data)
        self._file, self._lines, self._is_cut = self._folder.open_lines(self._path), len(kept), False
        self.interval = max(self.interval, spacing)

    def _shut(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


def lines_of_rank(place: Folder, rank: int) -> Iterator[SessionStart | Sample]:
    """Yield the lines in the file of a rank; those that are not sound are left out. Raises OSError."""
    path = system_file(rank)
    descriptor = place.open(path)
    try:
        start = max(os.fstat(descriptor).st_size - MOST_BYTES, 0)
        for number, data in enumerate(lines_in(descriptor, place.location(path), start, MOST_BYTES)):
            if number >= MOST_LINES:
                return
            if len(data) > LONGEST_LINE:
                continue
            try:
                line = line_of(read_json(data))
            except ValueError:
                continue
            if line is not None:
                yield line
    finally:
        os.close(descriptor)
