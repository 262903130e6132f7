"""How long the board takes for many long runs, measured in a headless browser.

`python -m tests.bench.board FOLDER` writes ten thousand runs of a hundred thousand logs each to FOLDER, unless they are
there, and prints how long the list of the runs and the page of a run take to open.

Of all but twenty of the runs the middle of the journal is a hole in the file, so that they fit on a disk: the list
reads both ends of a journal, whatever is between them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from hexloop.domain.journal_index import INDEX, WindowsAhead
from hexloop.domain.run_folder import OWN

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


if __name__ == "__main__":
    write_runs(Path(sys.argv[1]))
