"""What a journal says of each run in it, by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from attrs import define, field, frozen

from hexloop.domain.checkpoints.names import step_of
from hexloop.ports.journal import Fact

CLOCK_READINGS = ("runtime", "per_second")
"""How the names of logged numbers end that differ between any two runs."""


class Sort(IntEnum):
    """What is observed, each before what it has an effect on."""

    DATA = 0
    RANDOMNESS = 1
    LEARNING_RATE = 2
    LOSS = 3
    GRADIENTS = 4
    WEIGHTS = 5
    METRICS = 6


@frozen
class Observation:
    """Something that equals in two runs as long as they are the same. `name` tells it from others of a step."""

    step: int
    sort: Sort
    name: str
    value: Fact


@define
class Timeline:
    """A run as its journal tells it: its settings, the last step that is told of, and what was observed."""

    run: str
    settings: Mapping[str, Fact] = field(factory=dict)
    observations: dict[tuple[int, Sort, str], Fact] = field(factory=dict)

    @property
    def last_step(self) -> int:
        """The last step of which anything is known."""
        return max((step for step, _, _ in self.observations), default=0)

    def go_back_to(self, step: int) -> None:
        """Forget what came after `step`: the run went on from there once more."""
        self.observations = {key: value for key, value in self.observations.items() if key[0] <= step}

    def add(self, observed: Iterable[Observation]) -> None:
        """Take these in."""
        for each in observed:
            self.observations[each.step, each.sort, each.name] = each.value


def timelines(notes: Iterable[Mapping[str, Fact]]) -> dict[str, Timeline]:
    """The runs of a journal by their names, in the order in which they first began.

    Notes of a kind or form that is not known are passed over.
    """
    runs: dict[str, Timeline] = {}
    present: Timeline | None = None
    for note in notes:
        if note["kind"] == "began":
            present = runs.setdefault(str(note.get("run")), Timeline(str(note.get("run"))))
            present.go_back_to(_integer(note.get("step")))
            settings = note.get("settings")
            present.settings = settings if isinstance(settings, Mapping) else {}
        if present is not None:
            present.add(_observations(note))
    return runs


def _observations(note: Mapping[str, Fact]) -> Iterator[Observation]:
    kind, step = note["kind"], _integer(note.get("step"))
    if kind == "began":
        yield from _randomness(note, step, "before the first step" if step == 0 else "when it went on")
    elif kind == "step":
        for number, fingerprint in enumerate(_list(note.get("batches")), 1):
            yield Observation(step, Sort.DATA, f"micro-batch {number}", fingerprint)
        yield Observation(step, Sort.LEARNING_RATE, "of the step", note.get("learning_rate"))
        yield from _randomness(note, step, "after the step")
    elif kind == "losses":
        for number, loss in enumerate(_list(note.get("losses"))):
            yield Observation(_integer(note.get("first")) + number, Sort.LOSS, "of the step", loss)
    elif kind == "logged":
        yield from _logged(note, step)
    elif kind == "save":
        saved = step_of(str(note.get("checkpoint")))
        if saved is not None and note.get("weights") is not None:
            yield Observation(saved, Sort.WEIGHTS, "in the checkpoint", note["weights"])


def _logged(note: Mapping[str, Fact], step: int) -> Iterator[Observation]:
    values = note.get("values")
    if not isinstance(values, Mapping):
        return
    known = {name: value for name, value in values.items() if not name.endswith(CLOCK_READINGS) and "_mem_" not in name}
    for name, value in known.items():
        yield Observation(step, _SORTS.get(name, Sort.METRICS), name, value)
    yield from _randomness(note, step, f"at the log of {min(known, default='nothing')}")


_SORTS = {"loss": Sort.LOSS, "learning_rate": Sort.LEARNING_RATE, "grad_norm": Sort.GRADIENTS}


def _randomness(note: Mapping[str, Fact], step: int, when: str) -> Iterator[Observation]:
    if "random" in note:
        yield Observation(step, Sort.RANDOMNESS, when, note["random"])


def _integer(fact: Fact) -> int:
    return fact if isinstance(fact, int) else 0


def _list(fact: Fact) -> Sequence[Fact]:
    return fact if isinstance(fact, list | tuple) else ()
