"""`assert_resume_exact`: check that a run that is interrupted and resumed is bit-identical to one that is not."""

from __future__ import annotations

import importlib
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hexloop.app.testing.recording import RecordedRun, from_json, record_run, step_is, to_json

Job = Callable[[str], Any]
"""Builds a Trainer, or a `Run` whose `checkpoints` is a CheckpointStore, that saves to the folder it is given."""


def assert_resume_exact(
    job: Job, *, stops: Iterable[int | Sequence[int]] | None = None, seed: int = 0, fresh_process: bool | None = None
) -> None:
    """Run the job without interruption, run it again with interruptions, and compare everything but time and memory.

    The folders that the job receives are deleted.

    Args:
        job: makes the Trainer of a run.
        stops: the steps after which a run is interrupted, each in a run of its own; a sequence of steps interrupts one
            run several times. By default three steps drawn with `seed`. Each interruption follows a checkpoint
            requested at that step.
        seed: where the interruptions are drawn from.
        fresh_process: whether to resume in a new process, which imports the job by name. None: do so if the job can be
            imported, that is, if it is a function at the top level of a module other than a script.

    Raises:
        AssertionError: with the step at which the two runs first differ, what differs (the batch, the loss, ...), and
            the tensor that differs at the end, and by how much.
        ValueError: if the job cannot be tested.

    Examples:
        >>> from hexloop.testing import assert_resume_exact
        >>> def job(output_dir):
        ...     return Trainer(
        ...         torch.nn.Linear(1, 1),
        ...         TrainingArguments(output_dir, max_steps=10),
        ...         train_dataset=rows,
        ...         compute_loss_func=loss,
        ...         loggers=[],
        ...     )
        >>> assert_resume_exact(job, stops=[4], fresh_process=False)
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


def record_in_new_process(name: str, folder: str) -> RecordedRun:
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


def _compare(job: Job, name: str | None, whole: RecordedRun, cuts: Sequence[int], folder: str) -> None:
    steps: dict[int, Any] = {}
    for number, cut in enumerate(cuts):
        part = record_run(job(folder), resume=number > 0, cut=step_is(cut))
        steps = _joined(steps, part)
    rest = record_run(job(folder), resume=True) if name is None else record_in_new_process(name, folder)
    resumed = RecordedRun(_joined(steps, rest), rest.started_at, rest.values, rest.tensors)
    difference = first_difference(whole, resumed, cuts)
    if difference is not None:
        raise AssertionError(difference)


def _joined(steps: dict[int, Any], rest: RecordedRun) -> dict[int, Any]:
    """Return the steps up to where `rest` starts, followed by its own."""
    return {step: recorded for step, recorded in steps.items() if step <= rest.started_at} | rest.steps


CODES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "BOOL": "?"}
CODES |= {"U64": "Q", "U32": "I", "U16": "H", "U8": "B"}
"""The `struct` format of each dtype."""

ADVICE = {
    "batch": "The data use a random generator, or have state, that is not in a checkpoint: use the generators of "
    "python, numpy or torch, or give the dataset state_dict and load_state_dict.",
    "loss": "The batches are equal, so the model or its loss uses a random generator, or has state, that is not in a "
    "checkpoint: use torch's own generators, and keep state in buffers.",
    "learning rate": "The schedule has state that is not in a checkpoint: give it state_dict and load_state_dict.",
}
UNSAVED = "The run depends on state that is not in a checkpoint: let a callback keep it in its state()."


def first_difference(whole: RecordedRun, resumed: RecordedRun, cuts: Sequence[int]) -> str | None:
    """Describe the first difference between two runs, the second of which was interrupted. None if they are equal."""
    found = _first_differing_step(whole, resumed)
    ends = list(_other_tensors(whole, resumed))
    for path, one, other in _leaves("", whole.values, resumed.values):
        ends.append(f"{path} is {_short(other)}, and {_short(one)} in the uninterrupted run")
    if found is None and not ends:
        return None
    where = (
        f"The run that was interrupted after step {' and '.join(map(str, cuts))} and resumed differs from the "
        "uninterrupted run"
    )
    more = f" (and {len(ends) - 1} more differ)" if len(ends) > 1 else ""
    at_the_end = f"At the end {ends[0]}{more}." if ends else "At the end both are equal."
    if found is None:
        return f"{where}, although all steps are equal. {at_the_end} {UNSAVED}"
    step, what, text = found
    if step <= cuts[0]:
        return (
            f"The job is not deterministic: two runs from its start differ at step {step}, before any interruption: "
            f"{text}. {at_the_end} Let the job create every random generator that it uses itself, with a fixed seed."
        )
    return f"{where} from step {step} on: {text}. {at_the_end} {ADVICE.get(what, UNSAVED)}"


def _first_differing_step(whole: RecordedRun, resumed: RecordedRun) -> tuple[int, str, str] | None:
    """Return the first step at which two runs differ, what differs first in it, and a description of all that does."""
    for step in sorted(whole.steps.keys() | resumed.steps.keys()):
        one, other = whole.steps.get(step), resumed.steps.get(step)
        if one is None or other is None:
            return step, "step", f"only the {'resumed' if one is None else 'uninterrupted'} run takes this step"
        differing = [what for what in one if one[what] != other[what]]
        if differing:
            return step, differing[0], "; ".join(_described(what, one[what], other[what]) for what in differing)
    return None


def _described(what: str, one: Any, other: Any) -> str:
    if what != "batch":
        return f"the {what} is {_shown(other)}, and {_shown(one)} in the uninterrupted run"
    if len(one) != len(other):
        return f"the step has {len(other)} batches, and {len(one)} in the uninterrupted run"
    names = sorted({name for a, b in zip(one, other, strict=True) for name in a | b if a.get(name) != b.get(name)})
    fields = [name for name in names if name]
    return f"the batch differs{' in ' + ', '.join(map(repr, fields)) if fields else ''}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _other_tensors(whole: RecordedRun, resumed: RecordedRun) -> Iterator[str]:
    """Describe the tensors that differ, the model's first."""
    names = whole.tensors.keys() | resumed.tensors.keys()
    for name in sorted(names, key=lambda name: (not name.startswith("model"), name)):
        one, other = whole.tensors.get(name), resumed.tensors.get(name)
        if one is None or other is None:
            yield f"only the {'resumed' if one is None else 'uninterrupted'} run has {name}"
        elif list(one) != list(other):
            yield _distance(name, one, other)


def _distance(name: str, one: Sequence[Any], other: Sequence[Any]) -> str:
    if list(one[:2]) != list(other[:2]):
        return (
            f"{name} is {other[0]} of shape {tuple(other[1])}, and {one[0]} of shape {tuple(one[1])} in the "
            "uninterrupted run"
        )
    there, here = _numbers(one[0], one[2]), _numbers(other[0], other[2])
    gaps = [abs(a - b) if a != b else 0.0 for a, b in zip(here, there, strict=True)]
    at = max(range(len(gaps)), key=lambda index: math.inf if math.isnan(gaps[index]) else gaps[index])
    return (
        f"{name} differs in {sum(gap != 0 for gap in gaps)} of {len(gaps)} values, by at most {gaps[at]:.3g}: "
        f"at {_index(at, one[1])} it is {here[at]!r}, and {there[at]!r} in the uninterrupted run"
    )


def _numbers(dtype: str, text: str) -> list[float]:
    data = b64decode(text)
    if dtype == "BF16":  # the upper half of a float32
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    code = CODES.get(dtype, "B")
    return [float(value) for (value,) in struct.iter_unpack(f"<{code}", data)]


def _index(flat: int, shape: Sequence[int]) -> list[int]:
    """Return the multi-dimensional index of a flat one."""
    index: list[int] = []
    for size in reversed(shape):
        flat, here = divmod(flat, size)
        index.insert(0, here)
    return index


def _leaves(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost values in which two JSON documents differ, with their paths."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from _leaves(f"{path}.{name}" if path else name, one.get(name), other.get(name))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _leaves(f"{path}[{number}]", a, b)
    elif one != other and not (one != one and other != other):  # NaN equals NaN here
        yield path, one, other


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
