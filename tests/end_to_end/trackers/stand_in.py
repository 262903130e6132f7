"""A tracker that is installed as a package of its own, keeps what it receives in a file, and fails as it is told.

`STAND_IN_FILE` names the file. `STAND_IN_FAULT` is what each call does first: "sleep 0.5", "raise", "refuse" (an error
of a network) or "hang"; with a word more, such as "hang write", only that call does.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation, SavedModel

NAME = "standin"


class StandIn:
    """Logger adapter that appends a line for each call to a file."""

    def __init__(self) -> None:
        self.models = os.environ.get("STAND_IN_MODELS", "none")
        self.path = Path(os.environ["STAND_IN_FILE"])

    def start(self, run: RunInformation) -> str | None:
        """Return the identifier of a new run, or of the one that continues."""
        self._do("start", name=run.name, step=run.step, tracked_as=run.tracked_as)
        return run.tracked_as or f"run-of-{run.run}"

    def write(self, record: Record) -> None:
        """Keep the values."""
        self._do("write", step=record.step, epoch=record.epoch, values=dict(record.values))

    def save(self, model: SavedModel) -> None:
        """Keep the names of the files."""
        names = sorted(path.name for path in Path(model.folder).iterdir())
        self._do("save", name=model.name, step=model.step, final=model.final, best=model.best, files=names)

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Keep the outcome."""
        self._do("finish", kind=outcome.kind, problem=outcome.problem)

    def _do(self, call: str, **facts: Any) -> None:
        kind, _, rest = os.environ.get("STAND_IN_FAULT", "").partition(" ")
        seconds, _, only = rest.partition(" ") if kind == "sleep" else ("", "", rest)
        if not only or only == call:
            if kind == "sleep":
                time.sleep(float(seconds))
            elif kind == "raise":
                raise RuntimeError("the tracker has a fault")
            elif kind == "refuse":
                raise ConnectionError("the server of the tracker is down")
            elif kind == "hang":
                threading.Event().wait()
        with self.path.open("a") as file:
            file.write(json.dumps({"call": call, "thread": threading.current_thread().name, **facts}) + "\n")


def install(folder: Path) -> Path:
    """Write the package of the stand-in to a folder, as an installer does; return the folder."""
    information = folder / f"{NAME}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[hexloop.loggers]\n{NAME} = stand_in:StandIn\n")
    (folder / "stand_in.py").write_text(Path(__file__).read_text())
    return folder


def calls_in(path: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the calls that the stand-in has kept, of some kinds."""
    lines = path.read_text().splitlines() if path.exists() else []
    calls = [json.loads(line) for line in lines]
    return [each for each in calls if not kinds or each["call"] in kinds]


def steps_in(path: Path) -> Sequence[int]:
    """Return the steps of the losses that the stand-in has kept, in order."""
    return [each["step"] for each in calls_in(path, "write") if "loss" in each["values"]]
