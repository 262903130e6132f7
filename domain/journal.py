"""What a run's journal records, and the first step at which two runs differ.

| kind | facts |
|---|---|
| `began` | `run`, `step` (it starts or resumes at), `settings`, `defaults` of those changed, `command`, `random` |
| `step` | `step`, `batches` (a fingerprint each), `learning_rate`, `random` after it |
| `losses` | `first` (a step), `losses` of that step and the following ones |
| `logged` | `step`, `values`, `random` |
| `save` | `phase`, `checkpoint`; once published also `weights`, a digest for each file of weights |
| `paused` | `step` |
| `command` | of the board: `sequence`, `action`, `by`, `outcome` and `step`, `checkpoint` or `reason` |
| `ended` | `step`, `stopped`, `reasons`; only `step` if an error ended the run |

Every note also has `time`, in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from attrs import define, field, frozen

from hexloop.domain.checkpoints.manifest import step_of
from hexloop.ports.journal import Fact

CLOCK_READINGS = ("runtime", "per_second")
"""The suffixes of logged values that differ between any two runs."""


class ObservationKind(IntEnum):
    """What is observed; each kind comes before the kinds that it affects."""

    DATA = 0
    RANDOMNESS = 1
    LEARNING_RATE = 2
    LOSS = 3
    GRADIENTS = 4
    WEIGHTS = 5
    METRICS = 6


Observation = tuple[tuple[int, ObservationKind, str], Fact]
"""A step, kind and name, and a value that is equal in two runs as long as they are identical.

The name distinguishes it from other observations of the same kind and step.
"""


@define
class Timeline:
    """A run as recorded in its journal. observations: values by step, kind and name."""

    run: str
    settings: Mapping[str, Fact] = field(factory=dict)
    observations: dict[tuple[int, ObservationKind, str], Fact] = field(factory=dict)

    @property
    def last_step(self) -> int:
        """The last step with an observation."""
        return max((step for step, _, _ in self.observations), default=0)


def timelines(notes: Iterable[Mapping[str, Fact]]) -> dict[str, Timeline]:
    """Return the timeline of each run in a journal, by the run's name, in the order in which they first started.

    Notes of an unknown kind or form are ignored.
    """
    runs: dict[str, Timeline] = {}
    present: Timeline | None = None
    for note in notes:
        if note["kind"] == "began":
            present = runs.setdefault(str(note.get("run")), Timeline(str(note.get("run"))))
            first = _integer(note.get("step"))  # what an earlier session observed after it is void
            present.observations = {key: value for key, value in present.observations.items() if key[0] <= first}
            settings = note.get("settings")
            present.settings = settings if isinstance(settings, Mapping) else {}
        if present is not None:
            present.observations.update(_observations(note))
    return runs


@frozen
class Divergence:
    """The first difference of one kind: at `step`, `name` has the values `one` and `other` in the two runs.

    equal_until: the last earlier step at which an observation of this kind was equal; None if there is none.
    """

    kind: ObservationKind
    step: int
    name: str
    one: Fact
    other: Fact
    equal_until: int | None


@frozen
class RunComparison:
    """The differences between two runs.

    divergences: the first difference of each kind, in the order in which they occurred.
    compared: for each kind that both runs recorded, how many steps were compared. last: the last step compared.
    settings: the settings that differ, with both values, by name.
    """

    divergences: tuple[Divergence, ...]
    compared: dict[ObservationKind, int]
    last: int
    settings: dict[str, tuple[Fact, Fact]]

    @property
    def first(self) -> Divergence | None:
        """The first difference, or None if the runs are equal."""
        return self.divergences[0] if self.divergences else None


def compare(one: Timeline, other: Timeline) -> RunComparison:
    """Compare the observations that both timelines have, in the order in which they occurred."""
    common = sorted(one.observations.keys() & other.observations.keys())
    divergences: dict[ObservationKind, Divergence] = {}
    equal: dict[ObservationKind, list[int]] = {}
    steps: dict[ObservationKind, set[int]] = {}
    for key in common:
        step, kind, name = key
        steps.setdefault(kind, set()).add(step)
        if kind in divergences:
            continue
        values = one.observations[key], other.observations[key]
        if values[0] == values[1]:
            equal.setdefault(kind, []).append(step)
        else:
            before = next((earlier for earlier in reversed(equal.get(kind, [])) if earlier < step), None)
            divergences[kind] = Divergence(kind, step, name, *values, before)
    names = sorted(one.settings.keys() | other.settings.keys())
    settings = {name: (one.settings.get(name), other.settings.get(name)) for name in names}
    return RunComparison(
        tuple(sorted(divergences.values(), key=lambda divergence: (divergence.step, divergence.kind))),
        {kind: len(seen) for kind, seen in sorted(steps.items())},
        max((step for step, _, _ in common), default=0),
        {name: (value, another) for name, (value, another) in settings.items() if value != another},
    )


def _observations(note: Mapping[str, Fact]) -> Iterator[Observation]:
    kind, step = note["kind"], _integer(note.get("step"))
    if kind == "began":
        yield from _randomness(note, step, "before the first step" if step == 0 else "when it resumed")
    elif kind == "step":
        for number, fingerprint in enumerate(_list(note.get("batches")), 1):
            yield (step, ObservationKind.DATA, f"micro-batch {number}"), fingerprint
        yield (step, ObservationKind.LEARNING_RATE, "of the step"), note.get("learning_rate")
        yield from _randomness(note, step, "after the step")
    elif kind == "losses":
        for number, loss in enumerate(_list(note.get("losses"))):
            yield (_integer(note.get("first")) + number, ObservationKind.LOSS, "of the step"), loss
    elif kind == "logged":
        yield from _logged(note, step)
    elif kind == "save":
        saved = step_of(str(note.get("checkpoint")))
        if saved is not None and note.get("weights") is not None:
            yield (saved, ObservationKind.WEIGHTS, "in the checkpoint"), note["weights"]


def _logged(note: Mapping[str, Fact], step: int) -> Iterator[Observation]:
    values = note.get("values")
    if not isinstance(values, Mapping):
        return
    known = {name: value for name, value in values.items() if not name.endswith(CLOCK_READINGS) and "_mem_" not in name}
    for name, value in known.items():
        yield (step, _KIND_BY_NAME.get(name, ObservationKind.METRICS), name), value
    yield from _randomness(note, step, f"at the log of {min(known, default='nothing')}")


_KIND_BY_NAME = {
    "loss": ObservationKind.LOSS,
    "learning_rate": ObservationKind.LEARNING_RATE,
    "grad_norm": ObservationKind.GRADIENTS,
}


def _randomness(note: Mapping[str, Fact], step: int, when: str) -> Iterator[Observation]:
    if "random" in note:
        yield (step, ObservationKind.RANDOMNESS, when), note["random"]


def _integer(fact: Fact) -> int:
    return fact if isinstance(fact, int) else 0


def _list(fact: Fact) -> Sequence[Fact]:
    return fact if isinstance(fact, list | tuple) else ()
