"""Writes the logs of the runs in a folder for another tool: `write_for_peers.py TOOL RUNS FOLDER`.

It is run by the interpreter that has the tool, and needs nothing else of this project.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEXT = "A text that the model wrote."

Lines = list[dict[str, Any]]


def recorded(folder: Path) -> Iterator[tuple[str, Lines, Lines]]:
    """Yield the name of each run, the notes of its journal, and its system metrics."""
    for run in sorted(each for each in folder.iterdir() if (each / ".hexloop" / "journal.jsonl").is_file()):
        journal, system = (run / ".hexloop" / name for name in ("journal.jsonl", "system-0.jsonl"))
        yield run.name, lines_of(journal), lines_of(system)[1:]


def lines_of(path: Path) -> Lines:
    """Return the documents in a file of lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def for_trackio(runs: Path, folder: Path) -> None:
    """Write the logs to trackio. System metrics have the names that trackio gives its own samples."""
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    for name, notes, system in recorded(runs):
        trackio.init(
            project="sweep", name=name, config=notes[0]["settings"], embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
        for note in notes:
            if note["kind"] == "logged":
                trackio.log(note["values"], step=note["step"])
        for sample in system:
            trackio.log_system({"process_memory": sample["process_memory"], "cpu": sample["cpu"]})
        trackio.log({"sample": trackio.Table(columns=["text"], data=[[TEXT]])}, step=notes[-1]["step"])
        trackio.finish()


def for_tensorboard(runs: Path, folder: Path) -> None:
    """Write the logs to TensorBoard, which takes no samples of the machine by itself."""
    from torch.utils.tensorboard import SummaryWriter

    for name, notes, _ in recorded(runs):
        writer = SummaryWriter(str(folder / name))
        for note in notes:
            for value in note["values"] if note["kind"] == "logged" else ():
                writer.add_scalar(value, note["values"][value], note["step"], walltime=note["time"])
        writer.add_text("sample", TEXT, notes[-1]["step"])
        writer.close()


if __name__ == "__main__":
    {"trackio": for_trackio, "tensorboard": for_tensorboard}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
