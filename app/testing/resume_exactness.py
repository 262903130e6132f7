"""`assert_resume_exact`: check that a run that is interrupted and resumed is bit-identical to one that is not."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hexloop.app.testing.recording import RunRecord, from_json, record_run, step_is, to_json
from hexloop.app.testing.resume_differences import first_difference

Job = Callable[[str], Any]
"""Builds a Trainer, or a `Run` whose `checkpoints` is a CheckpointStore, that saves to the folder it is given."""


def assert_resume_exact(
    job: Job, *, stops: Iterable[int | Sequence[int]] | None = None, seed: int = 0, fresh_process: bool | None = None
) -> None:
    """Run the job without interruption, run it again with interruptions, and compare everything but time and memory.

    stops: the steps after which a run is interrupted, each in a run of its own; a sequence of steps interrupts one run
    several times. By default three steps drawn with `seed`. Each interruption follows a checkpoint requested at that
    step.
    fresh_process: whether to resume in a new process, which imports the job by name. None: do so if the job can be
    imported, that is, if it is a function at the top level of a module other than a script. The folders that the job
    receives are deleted.

    Raises AssertionError with the step at which the two runs first differ, what differs (the batch, the loss, ...), and
    the tensor that differs at the end, and by how much. Raises ValueError if the job cannot be tested.
    """
    name = name_of(job) if fresh_process is not False else None
    if fresh_process and name is None:
        raise ValueError(
            "fresh_process=True needs a job that a new process can import, and this one is not a function of a module; "
            "define it at the top level of a module, or set fresh_process=False."
        )
    with tempfile.TemporaryDirectory() as folder:
        whole = record_run(job(str(Path(folder, "whole"))))
        for number, stop in enumerate(_stops(stops, whole.last_step, seed)):
            cuts = [stop] if isinstance(stop, int) else list(stop)
            _compare(job, name, whole, cuts, str(Path(folder, f"cut {number}")))


def name_of(job: Callable[..., Any]) -> str | None:
    """Return the job as "module:function" if a new process can import it by that name, else None."""
    module, function = getattr(job, "__module__", None), getattr(job, "__qualname__", None)
    if module is None or function is None or module == "__main__" or not hasattr(sys.modules.get(module), "__file__"):
        return None
    return f"{module}:{function}" if _attribute(sys.modules[module], function) is job else None


def record_in_new_process(name: str, folder: str) -> RunRecord:
    """Resume the job `name` in a new process. Raises RuntimeError with the process's output if it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "record.json")
        command = [sys.executable, "-c", f"from {__name__} import main; main()", name, folder, path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ["", *sys.path]))}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"The job could not be resumed in a new process:\n{ended.stderr[-5000:]}")
        return from_json(Path(path).read_text())


def main() -> None:
    """Resume the job given on the command line, in the folder given there, and write its record to a file."""
    name, folder, path = sys.argv[1:]
    module, _, function = name.partition(":")
    job = _attribute(importlib.import_module(module), function)
    Path(path).write_text(to_json(record_run(job(folder), resume=True)))


def _attribute(module: Any, path: str) -> Any:
    found = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _stops(stops: Iterable[int | Sequence[int]] | None, last: int, seed: int) -> list[int | Sequence[int]]:
    drawn = random.Random(seed).sample(range(1, last), min(3, last - 1))
    chosen: list[int | Sequence[int]] = [*(drawn if stops is None else stops)]
    outside = [stop for each in chosen for stop in ([each] if isinstance(each, int) else each) if not 0 < stop < last]
    if outside or not chosen:
        raise ValueError(
            f"The job takes {last} steps and cannot be interrupted after {outside or 'any of them'}; "
            f"let it take two steps or more, and choose stops between 1 and {last - 1}."
        )
    return chosen


def _compare(job: Job, name: str | None, whole: RunRecord, cuts: Sequence[int], folder: str) -> None:
    steps: dict[int, Any] = {}
    for number, cut in enumerate(cuts):
        part = record_run(job(folder), resume=number > 0, cut=step_is(cut))
        steps = _joined(steps, part)
    rest = record_run(job(folder), resume=True) if name is None else record_in_new_process(name, folder)
    resumed = RunRecord(_joined(steps, rest), rest.started_at, rest.values, rest.tensors)
    difference = first_difference(whole, resumed, cuts)
    if difference is not None:
        raise AssertionError(difference)


def _joined(steps: dict[int, Any], rest: RunRecord) -> dict[int, Any]:
    """Return the steps up to where `rest` starts, followed by its own."""
    return {step: recorded for step, recorded in steps.items() if step <= rest.started_at} | rest.steps
