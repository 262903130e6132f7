"""Whether a run that is interrupted and resumed is the run that was not, bit for bit."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hexloop.app.resume_exactness.differences import first_difference
from hexloop.app.resume_exactness.driving import Record, record_run, step_is
from hexloop.app.resume_exactness.fresh import name_of, record_in_a_fresh_process

Job = Callable[[str], Any]
"""Builds a Trainer, or a `Run` out of fakes whose `checkpoints` is a CheckpointStore, that saves to a folder."""


def assert_resume_exact(
    job: Job, *, stops: Iterable[int | Sequence[int]] | None = None, seed: int = 0, fresh_process: bool | None = None
) -> None:
    """Run the job whole, then cut it and resume it, and compare everything but readings of the clock and of memory.

    stops: the steps after which a run is cut, each in a run of its own; a sequence of steps cuts one run several times.
    At first three steps drawn by `seed`. Every cut comes right after a checkpoint, which is asked for at that step.
    fresh_process: resume in a new process, which imports the job by its name; None: where the job has one, so that it
    is a function of a module and not of a script or of another function. The folders that the job gets are deleted.

    Raises AssertionError that names the step at which the two runs part, what parted (the batch, the loss, ...), and
    the tensor that differs at the end, and by how much. Raises ValueError where the job cannot be tried.
    """
    name = name_of(job) if fresh_process is not False else None
    if fresh_process and name is None:
        raise ValueError(
            "You chose fresh_process=True, but a new process cannot import the job, which is no function of a module; "
            "define it at the top of a module, or set fresh_process=False."
        )
    with tempfile.TemporaryDirectory() as folder:
        whole = record_run(job(str(Path(folder, "whole"))))
        for number, stop in enumerate(_stops(stops, whole.last_step, seed)):
            cuts = [stop] if isinstance(stop, int) else list(stop)
            _compare(job, name, whole, cuts, str(Path(folder, f"cut {number}")))


def _stops(stops: Iterable[int | Sequence[int]] | None, last: int, seed: int) -> list[int | Sequence[int]]:
    drawn = random.Random(seed).sample(range(1, last), min(3, last - 1))
    chosen: list[int | Sequence[int]] = [*(drawn if stops is None else stops)]
    outside = [stop for each in chosen for stop in ([each] if isinstance(each, int) else each) if not 0 < stop < last]
    if outside or not chosen:
        raise ValueError(
            f"The job takes {last} steps, and is to be cut after {outside or 'one of them'}; "
            f"give it two steps or more, and choose stops between 1 and {last - 1}."
        )
    return chosen


def _compare(job: Job, name: str | None, whole: Record, cuts: Sequence[int], folder: str) -> None:
    steps: dict[int, Any] = {}
    for number, cut in enumerate(cuts):
        part = record_run(job(folder), resume=number > 0, cut=step_is(cut))
        steps = _joined(steps, part)
    if name is None:
        rest = record_run(job(folder), resume=True)
    else:
        rest = record_in_a_fresh_process(name, folder)
    difference = first_difference(whole, Record(_joined(steps, rest), rest.began_at, rest.values, rest.tensors), cuts)
    if difference is not None:
        raise AssertionError(difference)


def _joined(steps: dict[int, Any], rest: Record) -> dict[int, Any]:
    """The steps that led to where the rest began, and the rest."""
    return {step: noted for step, noted in steps.items() if step <= rest.began_at} | rest.steps
