"""Resuming in a process that knows a folder and the name of a job, and nothing else."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import asdict

from hexloop.app.resume_exactness.driving import Record, record_run


def name_of(job: Callable[..., Any]) -> str | None:
    """The job's module and name, with a colon between, where a new process can import it by them; else None."""
    module, function = getattr(job, "__module__", None), getattr(job, "__qualname__", None)
    if module is None or function is None or module == "__main__" or not hasattr(sys.modules.get(module), "__file__"):
        return None
    return f"{module}:{function}" if _found(sys.modules[module], function) is job else None


def record_in_a_fresh_process(name: str, folder: str) -> Record:
    """Resume the job `name` in a new process. Raises RuntimeError, with what it printed, where that fails."""
    with tempfile.TemporaryDirectory() as kept:
        path = os.path.join(kept, "record.json")
        command = [sys.executable, "-c", f"from {__name__} import main; main()", name, folder, path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ["", *sys.path]))}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"The job could not be resumed in a new process:\n{ended.stderr[-5000:]}")
        return from_json(Path(path).read_text())


def to_json(record: Record) -> str:
    """The record as text."""
    return json.dumps(asdict(record))


def from_json(text: str) -> Record:
    """The record of which `to_json` made this text."""
    document = json.loads(text)
    return Record(**{**document, "steps": {int(step): noted for step, noted in document["steps"].items()}})


def _found(module: Any, function: str) -> Any:
    found = module
    for part in function.split("."):
        found = getattr(found, part, None)
    return found


def main() -> None:
    """Resume the job that the command line names, in a folder that it names, and write what was recorded to a file."""
    name, folder, path = sys.argv[1:]
    module, _, function = name.partition(":")
    job = _found(importlib.import_module(module), function)
    Path(path).write_text(to_json(record_run(job(folder), resume=True)))
