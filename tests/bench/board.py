"""How long the board takes for many long runs, measured in a headless browser.

`python -m tests.bench.board FOLDER` writes ten thousand runs of a hundred thousand logs each to FOLDER, unless they are
there, and prints how long the list of the runs and the page of a run take to open.

Of all but twenty of the runs the middle of the journal is a hole in the file, so that they fit on a disk: the list
reads both ends of a journal, whatever is between them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
from attrs import define, frozen

from hexloop.domain.journal_index import INDEX, WindowsAhead
from hexloop.domain.run_folder import OWN
from tests.browser import Browser, browser

RUNS, LOGS, WHOLE = 10_000, 100_000, 20
"""How many runs there are, how many logs each has, and how many are written as a whole."""

ENDS = 200
"""How many logs the end of a run with a hole has."""


def began(number: int) -> dict[str, Any]:
    """Return the first note of a run, with as many arguments as a real one has."""
    settings: dict[str, Any] = {f"argument_{index}": index for index in range(150)}
    draw = Random(number)
    settings |= {
        "learning_rate": draw.choice([1e-5, 3e-5, 1e-4, 3e-4]),
        "weight_decay": draw.choice([0.0, 0.01, 0.1]),
        "per_device_train_batch_size": draw.choice([8, 16, 32]),
        "optim": draw.choice(["adamw_torch", "sgd", "adafactor"]),
        "seed": number,
        "board_control": True,
    }
    return {"kind": "began", "time": 1.7e9 + number, "run": f"{number:032x}", "step": 0, "total_steps": LOGS,
            "settings": settings}  # fmt: skip


def logged(number: int, step: int) -> bytes:
    """Return the line of a log, as long as those of real runs."""
    values = {"loss": 2.0 / (1 + step / 1000) + (number % 97) / 1000, "grad_norm": 1.0 + step % 7, "epoch": step / 1000,
              "learning_rate": 0.00123456789, "eval_accuracy": 0.5 + (number % 389) / 1000}  # fmt: skip
    note = {
        "kind": "logged",
        "time": 1.7e9 + number + step,
        "step": step,
        "values": values,
        "random": "0efe3124859f7763",
    }
    return json.dumps(note).encode() + b"\n"


def write_run(folder: Path, number: int) -> None:
    """Write the journal of a run, with its index if it is written as a whole."""
    (folder / OWN).mkdir(parents=True)
    path = folder / OWN / "journal.jsonl"
    first = json.dumps(began(number)).encode() + b"\n"
    ended = (
        json.dumps({"kind": "ended", "time": 1.7e9 + number + LOGS, "step": LOGS, "stopped": False}).encode() + b"\n"
    )
    with path.open("wb") as journal:
        if number >= WHOLE:
            journal.write(first)
            journal.seek(LOGS * len(logged(number, LOGS)))
            journal.write(b"\n" + b"".join(logged(number, step) for step in range(LOGS - ENDS, LOGS + 1)) + ended)
            return
        ahead = WindowsAhead(0)
        with path.with_name(Path(INDEX).name).open("wb") as index:
            for line in (first, *(logged(number, step) for step in range(1, LOGS + 1)), ended):
                journal.write(line)
                if (window := ahead.add(line)) is not None:
                    index.write(window.line())


def write_runs(folder: Path, runs: int = RUNS) -> None:
    """Write the runs that are not there."""
    for number in range(runs):
        place = folder / f"sweep-{number % 20:02}" / f"run-{number:05}"
        if not place.exists():
            write_run(place, number)


@contextmanager
def board(folder: Path) -> Iterator[str]:
    """Start the board, and yield its address."""
    command = [sys.executable, "-m", "hexloop", "board", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            process.terminate()


@frozen
class Measured:
    """Seconds: of the wall until something was seen, and of processor time of the board and of the browser."""

    wall: float
    board: float
    browser: float

    def __str__(self) -> str:
        return f"{self.wall:6.2f} ({self.board:.2f} + {self.browser:.2f})"


def processor_time(word: str) -> float:
    """Return the seconds of processor time of the processes whose command has a word."""
    seconds = 0.0
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if any(word in part for part in each.cmdline()) and each.pid != os.getpid():
                times = each.cpu_times()
                seconds += times.user + times.system
    return seconds


@define
class Viewer:
    """A browser that opens pages of a board. folder, files: by which their processes are known."""

    window: Browser
    folder: Path
    files: Path

    def open(self, address: str, condition: str) -> Measured:
        """Open a page, and return what it took until a condition holds."""
        self.window.open("about:blank")
        before = self._used()
        self.window.open(address)
        return self.wait(condition, before)

    def wait(self, condition: str, before: tuple[float, float] | None = None) -> Measured:
        """Wait for a condition, and return what it took on the browser's own clock since the page was opened."""
        before = before or self._used()
        self.window.wait_for(f"({condition}) && (window.seenAt = performance.now())")
        after = self._used()
        wall = float(self.window.run("return window.seenAt")) / 1000
        return Measured(wall, after[0] - before[0], after[1] - before[1])

    def _used(self) -> tuple[float, float]:
        return processor_time(str(self.folder)), processor_time(str(self.files))


LISTED = "document.querySelectorAll('.tabulator-row').length > 10"
LIST = "(document.getElementById('run-list') || {{ dataset: {{}} }}).dataset"
COMPLETE = f"{LIST}.complete === 'true' && +{LIST}.drawn === {{}}"
CURVE = "document.querySelector('.chart canvas')"


def measure(folder: Path, runs: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield what was done, and what each time took."""
    with tempfile.TemporaryDirectory() as files, browser(Path(files)) as window:
        viewer = Viewer(window, folder, Path(files))
        with board(folder) as address:
            yield "the list, from a board that has just started: first runs", [viewer.open(address, LISTED)]
            yield "the same: after that, all runs", [viewer.wait(COMPLETE.format(runs))]
            yield "the list again: all runs", [viewer.open(address, COMPLETE.format(runs)) for _ in range(3)]
            run = [f"{address}runs?run=sweep-{number:02}/run-{number:05}" for number in range(3)]
            yield "a run: its first curve", [viewer.open(each, CURVE) for each in run]
            yield "the same run again", [viewer.open(each, CURVE) for each in run]
            memory = [each.memory_info().rss >> 20 for each in psutil.process_iter() if is_board(each.pid, folder)]
            yield "memory of the board in MiB", memory
        with board(folder) as address:
            run = [f"{address}runs?run=sweep-07/run-00007"]
            yield "a run, from a board that has just started", [viewer.open(each, CURVE) for each in run]


def is_board(process: int, folder: Path) -> bool:
    """Return whether a process serves a folder."""
    try:
        return f"board\0{folder}\0" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False


def main(folder: Path, runs: int = RUNS) -> None:
    """Write the runs if needed, measure, and print."""
    write_runs(folder, runs)
    print("seconds (of which processor time of the board + of the browser)")
    for what, taken in measure(folder, runs):
        print(f"{what:<60}{'  '.join(map(str, taken))}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
