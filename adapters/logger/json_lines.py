"""Metrics for programs: one JSON object per line, in an append-only file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hexloop.domain.json_documents import finite_json
from hexloop.domain.regular_files import open_lines
from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation, Value


class JsonLines:
    """Logger adapter that appends to the file `path`, created with its folders at the first line and never held open.

    A record is `{"step": ..., "epoch": ..., <name>: <value>, ...}`. Each start of a run adds a line
    `{"event": "started", "run": ..., "step": 0, "total_steps": ...}`, or one with "resumed" and the step it resumed
    from: records above that line with greater steps were repeated. JSON has no NaN or infinity: these are written as
    the strings "NaN", "Infinity" and "-Infinity".

    Args:
        path: the file, which is created with its folders.
    """

    in_loop = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()

    def start(self, run: RunInformation) -> str | None:
        """Append the line of the event."""
        event = "resumed" if run.step else "started"
        self._append({"event": event, "run": run.name, "step": run.step, "total_steps": run.total_steps})
        return None

    def write(self, record: Record) -> None:
        """Append one line, which is in the file when this returns."""
        line: dict[str, Value] = {"step": record.step, "epoch": record.epoch}
        self._append(line | {name: value for name, value in record.values.items() if name not in line})

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """No-op."""

    def _append(self, line: dict[str, Value]) -> None:
        text = json.dumps(finite_json(line), allow_nan=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_lines(self._path), "ab") as file:
            file.write(text.encode() + b"\n")
