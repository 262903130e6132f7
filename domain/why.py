"""Where two runs part: the first step, and within it the first thing, in which their recorded steps differ.

Two recordings of the same steps are compared in the order in which a step happens: its samples, the random state, what
each module computes, the loss, the gradients, the options of the optimizer, its state and the weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import zip_longest
from typing import Any

from attrs import Factory, frozen

MOST_LISTED = 5
"""Names that a sentence lists."""

TENSOR = re.compile(r"(\S+ \[[\d, ]*\]) \S+")
"""What is recorded of a tensor: its type, shape and digest."""


class Cause(Enum):
    """In what two runs differ first, in the order in which a run has them."""

    PROCESSES = "number of processes"
    START_WEIGHTS = "weights at the start"
    START_OPTIMIZER = "optimizer state at the start"
    ACCUMULATION = "number of micro-batches in a step"
    SAMPLES = "samples"
    ORDER = "order of the samples"
    RANDOM = "random state"
    MODULE = "computation of a module"
    LOSS = "loss"
    GRADIENTS = "gradients"
    CLIPPING = "gradient clipping"
    LEARNING_RATE = "learning rate"
    OPTIONS = "options of the optimizer"
    OPTIMIZER = "optimizer state"
    WEIGHTS = "weights"


@frozen
class ModuleCall:
    """A call of a module: its name and description, and digests of what it received and returned."""

    name: str
    description: str
    inputs: str
    outputs: str


@frozen
class MicroBatch:
    """What is recorded of a micro-batch.

    rows: for each row, a digest of the values of each of its fields. indices: of its samples in the data set, if they
    are known. loss: as text in hexadecimal, so that every bit counts.
    """

    rows: Sequence[Mapping[str, str]]
    indices: Sequence[int] | None
    modules: Sequence[ModuleCall]
    loss: str


@frozen
class RecordedStep:
    """A step: digests of tensors by name, and options of the optimizer's groups as text.

    random: before the step. clipping: the norm to which gradients are clipped, as text. norm: of the gradients.
    """

    step: int
    random: str
    batches: Sequence[MicroBatch]
    gradients: Mapping[str, str]
    clipping: str
    norm: str
    groups: Sequence[Mapping[str, str]]
    weights: Mapping[str, str]
    optimizer: Mapping[str, str]


@frozen
class Recording:
    """Consecutive steps of a run, and what it starts from."""

    processes: int
    weights: Mapping[str, str]
    optimizer: Mapping[str, str]
    steps: Sequence[RecordedStep]


@frozen
class Finding:
    """The first difference between two runs.

    step: of the optimizer, counted from 1; that of the start is the step before the first one. name: of the tensor,
    module, sample or option. further: other things that differ at the same moment.
    """

    cause: Cause
    step: int
    name: str
    values: tuple[str, str] = ("", "")
    further: tuple[str, ...] = Factory(tuple)

    def sentence(self) -> str:
        """Return the finding as a sentence."""
        where = "before the first step that was repeated" if self.step < 0 else f"at step {self.step:,}"
        values = f": {self.values[0]} and {self.values[1]}" if any(self.values) else ""
        more = ""
        if self.further:
            listed = ", ".join(self.further[:MOST_LISTED])
            rest = len(self.further) - MOST_LISTED
            more = f" (also {listed}{f' and {rest:,} more' if rest > 0 else ''})"
        return f"They differ first in the {self.cause.value}, {where}: {self.name}{values}{more}."


AT_START = -1


def first_difference(one: Recording, other: Recording) -> Finding | None:
    """Return the first difference between two recordings that start after the same step; None if there is none."""
    return next(_differences(one, other), None)


def _differences(one: Recording, other: Recording) -> Iterator[Finding]:
    if one.processes != other.processes:
        values = str(one.processes), str(other.processes)
        yield Finding(Cause.PROCESSES, AT_START, "how many share the samples of a step", values)
    yield from _tensors(Cause.START_WEIGHTS, AT_START, one.weights, other.weights)
    yield from _tensors(Cause.START_OPTIMIZER, AT_START, one.optimizer, other.optimizer)
    for first, second in zip(one.steps, other.steps, strict=False):
        yield from _in_step(first, second)


def _in_step(one: RecordedStep, other: RecordedStep) -> Iterator[Finding]:
    step = one.step
    yield from _samples(one, other)
    if one.random != other.random:
        yield Finding(Cause.RANDOM, step, "the generators of Python, numpy and torch before the step")
    for number, (first, second) in enumerate(zip(one.batches, other.batches, strict=False), 1):
        yield from _modules(step, number, first, second)
        if first.loss != second.loss:
            yield Finding(Cause.LOSS, step, f"of micro-batch {number}", _numbers(first.loss, second.loss))
    yield from _tensors(Cause.GRADIENTS, step, one.gradients, other.gradients)
    if one.clipping != other.clipping and _clips(one) != _clips(other):
        yield Finding(Cause.CLIPPING, step, "max_grad_norm", (one.clipping, other.clipping))
    if one.norm != other.norm:
        yield Finding(Cause.CLIPPING, step, "the norm of the gradients", _numbers(one.norm, other.norm))
    yield from _options(one, other)
    yield from _tensors(Cause.OPTIMIZER, step, one.optimizer, other.optimizer)
    yield from _tensors(Cause.WEIGHTS, step, one.weights, other.weights)


def _clips(step: RecordedStep) -> tuple[bool, str]:
    """Return whether the gradients of a step were made smaller, and to which norm."""
    limit = float(step.clipping)
    norm = float.fromhex(step.norm) if step.norm else 0.0
    clips = 0 < limit < norm
    return clips, step.clipping if clips else ""


def _samples(one: RecordedStep, other: RecordedStep) -> Sequence[Finding]:
    step = one.step
    ours, theirs = ([row for batch in each.batches for row in batch.rows] for each in (one, other))
    if len(one.batches) != len(other.batches):
        sizes = tuple(f"{len(each.batches)} of {_sizes(each)} samples" for each in (one, other))
        return [Finding(Cause.ACCUMULATION, step, "micro-batches", (sizes[0], sizes[1]))]
    if ours == theirs:
        return []
    indices = [[index for batch in each.batches for index in batch.indices or ()] for each in (one, other)]
    known = [found if len(found) == len(rows) else None for found, rows in zip(indices, (ours, theirs), strict=True)]
    number = next(place for place, (first, second) in enumerate(zip_longest(ours, theirs)) if first != second)
    names = [_sample(found, number, len(rows)) for found, rows in zip(known, (ours, theirs), strict=True)]
    batch, row = _place(one if number < len(ours) else other, number)
    where = f"row {row} of micro-batch {batch}"
    if len(ours) != len(theirs):
        return [Finding(Cause.SAMPLES, step, f"how many, from {where} on", (f"{len(ours)}", f"{len(theirs)}"))]
    same_samples = known[0] is None or known[1] is None or known[0][number] == known[1][number]
    reordered = sorted(map(_text, ours)) == sorted(map(_text, theirs))
    if reordered or not same_samples:
        elsewhere = ""
        if reordered:
            batch, row = _place(other, theirs.index(ours[number]))
            elsewhere = f", whose sample of the first run is row {row} of micro-batch {batch} in the second"
        return [Finding(Cause.ORDER, step, f"{where}{elsewhere}", (names[0], names[1]))]
    fields = [name for name in {**ours[number], **theirs[number]} if ours[number].get(name) != theirs[number].get(name)]
    others = [
        f"{_sample(known[0], place, len(ours))}"
        for place, (first, second) in enumerate(zip(ours, theirs, strict=True))
        if place != number and first != second
    ]
    return [Finding(Cause.SAMPLES, step, f"{', '.join(fields)} of {names[0]}, {where}", further=tuple(others))]


def _sizes(step: RecordedStep) -> str:
    return " and ".join(map(str, sorted({len(each.rows) for each in step.batches})))


def _text(row: Mapping[str, str]) -> str:
    return repr(sorted(row.items()))


def _sample(indices: Sequence[int] | None, number: int, rows: int) -> str:
    if number >= rows:
        return "none"
    return f"sample {indices[number]:,}" if indices is not None else "a sample"


def _place(step: RecordedStep, number: int) -> tuple[int, int]:
    """Return the micro-batch and the row in it, counted from 1 and 0, of a row of the step."""
    return [(batch, row) for batch, each in enumerate(step.batches, 1) for row in range(len(each.rows))][number]


def _modules(step: int, number: int, one: MicroBatch, other: MicroBatch) -> Sequence[Finding]:
    for first, second in zip_longest(one.modules, other.modules):
        if first is None or second is None or first.name != second.name:
            called = tuple("none" if each is None else f"{each.name} ({each.description})" for each in (first, second))
            return [Finding(Cause.MODULE, step, f"which module micro-batch {number} calls", (called[0], called[1]))]
        if first.outputs != second.outputs:
            name = f"the output of {first.name or 'the model'} for micro-batch {number}"
            if first.inputs != second.inputs:
                name += ", whose input differs as well"
            described = first.description, second.description
            kinds = _kind(first.outputs), _kind(second.outputs)
            values = described if described[0] != described[1] else kinds if kinds[0] != kinds[1] else ("", "")
            if not any(values):
                name += f" ({first.description})"
            return [Finding(Cause.MODULE, step, name, values)]
    return []


def _kind(recorded: str) -> str:
    """Return the type and shape of a tensor, with which its digest starts; any other value as it is."""
    found = TENSOR.fullmatch(recorded)
    return found[1] if found else recorded


def _options(one: RecordedStep, other: RecordedStep) -> Iterator[Finding]:
    if len(one.groups) != len(other.groups):
        yield Finding(Cause.OPTIONS, one.step, "parameter groups", (str(len(one.groups)), str(len(other.groups))))
    rates: list[Finding] = []
    options: list[Finding] = []
    for number, (first, second) in enumerate(zip(one.groups, other.groups, strict=False)):
        for name in [*first, *(each for each in second if each not in first)]:
            if first.get(name) != second.get(name):
                values = first.get(name, "none"), second.get(name, "none")
                found = rates if name == "lr" else options
                cause = Cause.LEARNING_RATE if name == "lr" else Cause.OPTIONS
                found.append(Finding(cause, one.step, f"{name} of parameter group {number}", values))
    yield from rates
    yield from options


def _tensors(cause: Cause, step: int, one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[Finding]:
    different = [
        name for name in [*one, *(each for each in other if each not in one)] if one.get(name) != other.get(name)
    ]
    if different:
        first = different[0]
        values = tuple("none" if first not in each else _kind(each[first]) for each in (one, other))
        shown = (values[0], values[1]) if values[0] != values[1] else ("", "")
        yield Finding(cause, step, first, shown, tuple(different[1:]))


def _numbers(one: str, other: str) -> tuple[str, str]:
    """Return numbers in hexadecimal as decimal ones."""
    return tuple(repr(float.fromhex(each)) if each else "none" for each in (one, other))  # type: ignore[return-value]


def last_equal(steps: Sequence[int], is_equal: Callable[[int], bool]) -> tuple[int | None, int | None]:
    """Return the last of some ascending steps at which two runs are equal, and the first at which they differ.

    None if there is none. Runs that differ are taken to differ from then on, so that few steps are looked at.
    """
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if is_equal(steps[middle]):
            low = middle + 1
        else:
            high = middle
    return (steps[low - 1] if low else None), (steps[low] if low < len(steps) else None)


def recording_of(document: Mapping[str, Any]) -> Recording:
    """Return the recording that `document_of` has made a document of. Raises ValueError if it is none."""
    try:
        return Recording(
            int(document["processes"]),
            _texts(document["weights"]),
            _texts(document["optimizer"]),
            [_step_of(each) for each in document["steps"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a recording of steps: {error!r}") from error


def _step_of(document: Mapping[str, Any]) -> RecordedStep:
    batches = [
        MicroBatch(
            [_texts(row) for row in each["rows"]],
            None if each["indices"] is None else [int(index) for index in each["indices"]],
            [ModuleCall(*map(str, call)) for call in each["modules"]],
            str(each["loss"]),
        )
        for each in document["batches"]
    ]
    return RecordedStep(
        int(document["step"]),
        str(document["random"]),
        batches,
        _texts(document["gradients"]),
        str(document["clipping"]),
        str(document["norm"]),
        [_texts(group) for group in document["groups"]],
        _texts(document["weights"]),
        _texts(document["optimizer"]),
    )


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}


def document_of(recording: Recording) -> dict[str, Any]:
    """Return a recording in JSON types."""

    def of_batch(batch: MicroBatch) -> dict[str, Any]:
        calls = [[each.name, each.description, each.inputs, each.outputs] for each in batch.modules]
        return {"rows": list(batch.rows), "indices": batch.indices, "modules": calls, "loss": batch.loss}

    names = ("step", "random", "gradients", "clipping", "norm", "groups", "weights", "optimizer")
    steps = [
        {**{name: getattr(each, name) for name in names}, "batches": list(map(of_batch, each.batches))}
        for each in recording.steps
    ]
    return {
        "processes": recording.processes,
        "weights": recording.weights,
        "optimizer": recording.optimizer,
        "steps": steps,
    }
