"""Numbers for programs: one JSON object a line, in a file that only ever grows."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from hexloop.ports.logger import Record, RunInformation, Value


class JsonLines:
    """Appends to the file `path`, which is made, with its folders, at the first line and never held open.

    A record is {"step": ..., "epoch": ..., <name>: <value>, ...}. Each time a run begins there is a line
    {"event": "started", "run": ..., "step": 0, "total_steps": ...}, or one with "resumed" and the step to which the run
    went back: lines above it with greater steps belong to work that was done again. JSON has no infinity: such numbers
    are the strings "NaN", "Infinity" and "-Infinity".
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def start(self, run: RunInformation) -> None:
        """Append the line that says so."""
        event = "resumed" if run.step else "started"
        self._append({"event": event, "run": run.name, "step": run.step, "total_steps": run.total_steps})

    def write(self, record: Record) -> None:
        """Append one line, which the file has when this returns."""
        line: dict[str, Value] = {"step": record.step, "epoch": record.epoch}
        self._append(line | {name: value for name, value in record.values.items() if name not in line})

    def finish(self) -> None:
        """There is nothing to release."""

    def _append(self, line: dict[str, Value]) -> None:
        text = json.dumps({name: _plain(value) for name, value in line.items()}, allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # a crash cut the last line short: end it, so that it spoils no other
                    file.write(b"\n")
            file.write(text.encode() + b"\n")


def _plain(value: Value) -> Value:
    """The value, or its name where JSON has no number for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
