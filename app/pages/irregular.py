"""Steps whose loss or gradient norm was not finite, and loss spikes: from the notes of a journal to a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from hexloop.app.pages.markup import Markup, joined, table, tag

MOST_ROWS = 200
"""How many steps of a run are listed, the last ones."""

MOST_INDICES = 8
"""How many samples of a step are named."""

WHAT = {"loss": "the loss", "gradient norm": "the gradient norm", "spike": "a loss spike"}

DONE = {
    "warn": "trained on; later ones are counted in the logs",
    "stop": "the run stopped",
    "skip": "left out",
    "rollback": "left out",
}


@frozen
class IrregularStep:
    """What a note says about one step. back_to: the step that the run continued from, if it left the samples out."""

    step: int
    what: str
    value: str
    samples: str
    done: str
    back_to: int | None


def irregular_step(note: Mapping[str, Any]) -> IrregularStep | None:
    """Return what a note says; None if it is not sound."""
    step, first, samples, epoch = (_count(note.get(name)) for name in ("step", "first_sample", "samples", "epoch"))
    what, done = WHAT.get(str(note.get("what"))), DONE.get(str(note.get("reaction")))
    if step is None or first is None or samples is None or epoch is None or what is None or done is None:
        return None
    value, indices = note.get("value"), note.get("indices")
    named = f"{first:,} to {first + max(samples, 1) - 1:,} of epoch {epoch:,}"
    if isinstance(indices, list) and indices and all(_count(each) is not None for each in indices[:MOST_INDICES]):
        more = ", ..." if len(indices) > MOST_INDICES else ""
        named += f" (in the dataset {', '.join(map(str, indices[:MOST_INDICES]))}{more})"
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)[:20]
    return IrregularStep(step, what, shown, named, done, _count(note.get("back_to")))


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def irregular_part(runs: Sequence[tuple[str, Sequence[IrregularStep], int]]) -> Markup:
    """Return the table of these steps; nothing if there are none.

    runs: the label of each run, its steps, and how many of them were dropped.
    """
    rows, dropped = list[tuple[str, ...]](), 0
    for label, steps, dropped_before in runs:
        dropped += dropped_before + max(len(steps) - MOST_ROWS, 0)
        rows += _rows(label, steps[-MOST_ROWS:])
    if not rows:
        return Markup()
    head = ("run", "step", "what", "value", "samples", "what was done")
    words = f"{dropped:,} further steps are not listed." if dropped else ""
    return joined(table(head, rows, "Steps whose loss was not usable", numbers=(1, 3)), tag("p", words, class_="note"))


def _rows(label: str, steps: Sequence[IrregularStep]) -> Iterator[tuple[str, ...]]:
    for each in steps:
        done = each.done if each.back_to is None else f"{each.done}; the run continued from step {each.back_to:,}"
        yield label, f"{each.step:,}", each.what, each.value, each.samples, done
