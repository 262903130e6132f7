"""Where two runs part, in words."""

from __future__ import annotations

import math
import struct
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

from hexloop.app.resume_exactness.driving import Record

CODES = {
    "F64": "d",
    "F32": "f",
    "F16": "e",
    "I64": "q",
    "I32": "i",
    "I16": "h",
    "I8": "b",
    "U64": "Q",
    "U32": "I",
    "U16": "H",
    "U8": "B",
    "BOOL": "?",
}
"""How `struct` reads an element of a dtype."""

ADVICE = {
    "batch": "The data draw from a random generator, or keep something, that is not in a checkpoint: draw from the "
    "streams of python, numpy or torch, or give the data set state_dict and load_state_dict.",
    "loss": "The batches are equal, so the model or its loss draws from a random generator, or keeps something, that "
    "is not in a checkpoint: draw from torch's own streams, and keep what is kept in buffers.",
    "learning rate": "The schedule keeps what is not in a checkpoint: give it state_dict and load_state_dict.",
}
UNKEPT = "Something that the run goes by is not in a checkpoint: let a callback keep it in its state()."


def first_difference(whole: Record, resumed: Record, cuts: Sequence[int]) -> str | None:
    """What to tell of two runs, the second of which was cut after some steps; None where they are equal."""
    found = _parting(whole, resumed)
    ends = [*_other_tensors(whole, resumed), *_other_values(whole, resumed)]
    if found is None and not ends:
        return None
    where = f"The run that was cut after step {' and '.join(map(str, cuts))} and resumed is not the whole run"
    at_the_end = f"At the end {ends[0]}{_more(len(ends) - 1)}." if ends else "At the end both are equal."
    if found is None:
        return f"{where}, though every step is equal. {at_the_end} {UNKEPT}"
    step, what, text = found
    if step <= cuts[0]:
        return (
            f"The job gives another run each time: two runs from its start part at step {step}, before any cut: "
            f"{text}. {at_the_end} Let the job make anew, with a fixed seed, whatever its runs draw from."
        )
    return f"{where}: they part at step {step}: {text}. {at_the_end} {ADVICE.get(what, UNKEPT)}"


def _more(others: int) -> str:
    return f" (and {others} more differ)" if others else ""


def _parting(whole: Record, resumed: Record) -> tuple[int, str, str] | None:
    """The first step at which two runs differ, what differs first in it, and all that does in words."""
    for step in sorted(whole.steps.keys() | resumed.steps.keys()):
        one, other = whole.steps.get(step), resumed.steps.get(step)
        if one is None or other is None:
            return step, "step", f"the {'resumed' if one is None else 'whole'} run alone takes this step"
        differing = [what for what in one if one[what] != other[what]]
        if differing:
            return step, differing[0], "; ".join(_in_words(what, one[what], other[what]) for what in differing)
    return None


def _in_words(what: str, one: Any, other: Any) -> str:
    if what != "batch":
        return f"the {what} is {_shown(other)} and {_shown(one)} in the whole run"
    if len(one) != len(other):
        return f"the step has {len(other)} batches and {len(one)} in the whole run"
    names = sorted({name for a, b in zip(one, other, strict=True) for name in a | b if a.get(name) != b.get(name)})
    fields = [name for name in names if name]
    return f"the batch differs{' in ' + ', '.join(map(repr, fields)) if fields else ''}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _other_tensors(whole: Record, resumed: Record) -> Iterator[str]:
    """The tensors that differ, those of the model first."""
    names = whole.tensors.keys() | resumed.tensors.keys()
    for name in sorted(names, key=lambda name: (not name.startswith("model"), name)):
        one, other = whole.tensors.get(name), resumed.tensors.get(name)
        if one is None or other is None:
            yield f"the {'resumed' if one is None else 'whole'} run alone has {name}"
        elif list(one) != list(other):
            yield _distance(name, one, other)


def _distance(name: str, one: Sequence[Any], other: Sequence[Any]) -> str:
    if list(one[:2]) != list(other[:2]):
        return f"{name} is {other[0]} of shape {tuple(other[1])} and {one[0]} of shape {tuple(one[1])} in the whole run"
    there, here = _numbers(one[0], one[2]), _numbers(other[0], other[2])
    gaps = [abs(a - b) if a != b else 0.0 for a, b in zip(here, there, strict=True)]
    at = max(range(len(gaps)), key=lambda index: math.inf if math.isnan(gaps[index]) else gaps[index])
    return (
        f"{name} differs in {sum(gap != 0 for gap in gaps)} of {len(gaps)} values, by at most {gaps[at]:.3g}: "
        f"at {_place(at, one[1])} it is {here[at]!r} and {there[at]!r} in the whole run"
    )


def _numbers(dtype: str, text: str) -> list[float]:
    data = b64decode(text)
    if dtype == "BF16":  # the upper half of a float32
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    code = CODES.get(dtype, "B")
    return [float(value) for (value,) in struct.iter_unpack(f"<{code}", data)]


def _place(flat: int, shape: Sequence[int]) -> list[int]:
    place: list[int] = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        place.insert(0, index)
    return place


def _other_values(whole: Record, resumed: Record) -> Iterator[str]:
    for path, one, other in _leaves("", whole.values, resumed.values):
        yield f"{path} is {_short(other)} and {_short(one)} in the whole run"


def _leaves(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """The smallest values in which two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from _leaves(f"{path}.{name}" if path else name, one.get(name), other.get(name))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _leaves(f"{path}[{number}]", a, b)
    elif one != other and not (one != one and other != other):  # what is not a number equals itself here
        yield path, one, other


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
