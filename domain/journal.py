"""What a run's journal records, and the first step at which two runs differ.

| kind | facts |
|---|---|
| `began` | `run`, `step` (it starts or resumes at), `total_steps`, `settings`, their `defaults`, `command`, ... |
| `step` | `step`, `batches` (a fingerprint each), `learning_rate`, `random` after it |
| `losses` | `first` (a step), `losses` of that step and the following ones |
| `logged` | `step`, `samples` (trained on so far), `values`, `random` |
| `save` | `phase`, `checkpoint`; once published also `weights`, a digest for each file of weights |
| `irregular` | `step`, `what` ("loss", "gradient norm" or "spike"), `value`, `reaction`, and the window; see below |
| `information` | `host`, `git`, `packages`, `model` and `data` at the start; see `app/run/run_information.py` |
| `goodput` | `step`, `seconds` of the whole run by cause; see `hexloop.domain.goodput` |
| `profile` | `first` and `last` (steps that were recorded), `trace` and `table` (files in the folder of the run) |
| `paused` | `step` |
| `command` | of the board: `sequence`, `action`, `by`, `outcome` and `step`, `checkpoint` or `reason` |
| `ended` | `step`, `stopped`, `reasons`; only `step` if an error ended the run |

A window is `epoch`, `first_sample` (its position there), `samples` (how many), and their `indices` in the dataset if
they are known. If the run left it out, `back_to` is the step that it continued from.

`began` also has `random`, and with `param_groups` the `groups` of the optimizer.
Every note also has `time`, in seconds since the epoch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain, groupby
from operator import eq, gt, itemgetter, lt
from typing import Any

from attrs import define, field, frozen

from hexloop.domain.checkpoints.manifest import step_of
from hexloop.domain.evaluation import is_reading
from hexloop.ports.logger import Fact


class ObservationKind(IntEnum):
    """What is observed; each kind comes before the kinds that it affects."""

    DATA = 0
    RANDOMNESS = 1
    LEARNING_RATE = 2
    LOSS = 3
    GRADIENTS = 4
    WEIGHTS = 5
    METRICS = 6


MOST_NAMES = 10_000
"""How many names of observations a run may have; further ones are counted, and not compared."""

Steps = Sequence[int]
Values = Sequence[Fact]
Observations = tuple[ObservationKind, str, Steps, Values]
"""Values of one kind and name, which are equal in two runs as long as they are identical, and their steps.

The name distinguishes them from other observations of the same kind and steps.
"""


@frozen
class Column:
    """What was observed under one name: ascending steps, and a value for each.

    Args:
        steps: the steps at which there is a value, ascending.
        values: a value for each step.
    """

    steps: Steps
    values: Values


@define
class Timeline:
    """A run as recorded in its journal.

    Args:
        run: the name of the run.
        settings: the settings of the run by name.
        cuts: the step at which each session started or resumed; what an earlier session observed after it is void.
        columns: observations in the order of the notes, each with the number of its session, by kind and name.
        left_out: how many observations have names beyond `MOST_NAMES`.
        observations: those by kind and name, once they were asked for.
    """

    run: str
    settings: Mapping[str, Fact] = field(factory=dict)
    cuts: list[int] = field(factory=list)
    columns: dict[tuple[ObservationKind, str], list[tuple[int, Steps, Values]]] = field(factory=dict)
    left_out: int = 0
    _observations: dict[tuple[ObservationKind, str], Column] | None = None

    def begin(self, note: Mapping[str, Fact]) -> None:
        """Start a session with a note of the kind `began`.

        Args:
            note: a note of the journal, as a mapping.
        """
        self.cut(_integer(note.get("step")))
        settings = note.get("settings")
        self.settings = settings if isinstance(settings, Mapping) else {}

    def cut(self, step: int) -> None:
        """Start a session, or continue one that returned to `step`: what was observed after that step is void.

        Args:
            step: the step of the run.
        """
        self.cuts.append(step)
        self._observations = None

    def add(self, observed: Iterable[Observations]) -> None:
        """Add observations of the present session.

        Args:
            observed: observations, those of one kind and name together.
        """
        self._observations = None
        for kind, name, steps, values in observed:
            parts = self.columns.get((kind, name))
            if parts is None:
                if len(self.columns) >= MOST_NAMES:
                    self.left_out += len(steps)
                    continue
                parts = self.columns[kind, name] = []
            parts.append((len(self.cuts), steps, values))

    def observations(self) -> dict[tuple[ObservationKind, str], Column]:
        """Return what is not void, by kind and name. Of two values at a step, the later one counts."""
        if self._observations is not None:
            return self._observations
        limits: list[int | None] = [None]  # from the last session back: the step after which all is void
        for cut in reversed(self.cuts):
            limits.append(cut if limits[-1] is None else min(cut, limits[-1]))
        limits.reverse()
        found = {key: _column(parts, limits) for key, parts in self.columns.items()}
        self._observations = {key: column for key, column in found.items() if column.steps}
        return self._observations

    @property
    def last_step(self) -> int:
        """The last step with an observation."""
        return max((column.steps[-1] for column in self.observations().values()), default=0)


def cuts_off(note: Mapping[str, Fact]) -> bool:
    """Return whether a note makes earlier observations void: a session starts, or the run returns to a step.

    Args:
        note: a note of the journal, as a mapping.
    """
    return note["kind"] == "began" or (note["kind"] == "irregular" and type(note.get("back_to")) is int)


def timelines(notes: Iterable[Mapping[str, Fact]]) -> dict[str, Timeline]:
    """Return the timeline of each run in a journal, by the run's name, in the order in which they first started.

    Notes of an unknown kind or form are ignored.

    Args:
        notes: notes of the journal, in order.
    """
    runs = Timelines()
    runs.take(notes)
    return runs.by_name


@define
class Timelines:
    """The runs in a journal, by name, in the order in which they first started.

    Args:
        by_name: the timelines by the name of the run.
        present: the one that started last.
    """

    by_name: dict[str, Timeline] = field(factory=dict)
    present: Timeline | None = None

    def take(self, notes: Iterable[Mapping[str, Fact]]) -> None:
        """Add notes of any kind, in order.

        Args:
            notes: notes of the journal, in order.
        """
        for cuts, alike in groupby(notes, cuts_off):
            if not cuts:
                self.add(observed_in(list(alike)))
                continue
            for note in alike:
                if note["kind"] != "began":
                    if self.present is not None:
                        self.present.cut(_integer(note.get("back_to")))
                    continue
                name = str(note.get("run"))
                self.present = self.by_name.setdefault(name, Timeline(name))
                self.present.begin(note)
                step = _integer(note.get("step"))
                self.add(_randomness([note], [step], "before the first step" if step == 0 else "when it resumed"))

    def add(self, observed: Iterable[Observations]) -> None:
        """Add observations of the present run; those before any run started are ignored.

        Args:
            observed: observations, those of one kind and name together.
        """
        if self.present is not None:
            self.present.add(observed)


def _column(parts: Sequence[tuple[int, Steps, Values]], limits: Sequence[int | None]) -> Column:
    """Return the steps and values that are left of the parts of a column. limits: by the number of the session."""
    kept: list[tuple[Steps, Values]] = []
    for session, steps, values in parts:
        limit = limits[session]
        if limit is None or max(steps) <= limit:
            kept.append((steps, values))
        elif wanted := [number for number, step in enumerate(steps) if step <= limit]:
            kept.append((_numbers([steps[number] for number in wanted]), [values[number] for number in wanted]))
    if not kept:
        return Column((), ())
    all_steps, all_values = (
        kept[0] if len(kept) == 1 else (_joined([each[0] for each in kept]), _joined([each[1] for each in kept]))
    )
    if all(map(lt, all_steps, all_steps[1:])):
        return Column(all_steps, all_values)
    pairs: Iterable[tuple[int, Fact]] = zip(all_steps, all_values, strict=True)
    if any(map(gt, all_steps, all_steps[1:])):
        pairs = sorted(pairs, key=itemgetter(0))  # stable
    latest = dict(pairs)  # later ones replace
    return Column(_numbers(list(latest)), list(latest.values()))


def _joined(parts: Sequence[Any]) -> Any:
    """Return the parts after each other, as an array if all of them are."""
    codes = {each.typecode if isinstance(each, array) else None for each in parts}
    (code,) = codes if len(codes) == 1 else (None,)
    return list(chain.from_iterable(parts)) if code is None else array(code, b"".join(map(bytes, parts)))


@frozen
class Divergence:
    """The first difference of one kind: at `step`, `name` has the values `one` and `other` in the two runs.

    Args:
        kind: the kind of observation.
        step: the step at which they differ.
        name: the name of what differs.
        one: the value in the first run.
        other: the value in the second run.
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

    Args:
        divergences: the first difference of each kind, in the order in which they occurred.
        compared: for each kind that both runs recorded, how many steps were compared.
        last: the last step compared.
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
    """Compare the observations that both timelines have, in the order in which they occurred.

    Args:
        one: the timeline of the first run.
        other: the timeline of the second run.
    """
    ours, theirs = one.observations(), other.observations()
    pairs: dict[ObservationKind, list[_Pair]] = {}
    for key in sorted(ours.keys() & theirs.keys()):
        pair = _Pair.of(key[1], ours[key], theirs[key])
        if pair.steps:
            pairs.setdefault(key[0], []).append(pair)
    divergences = [found for kind, each in pairs.items() if (found := _first_difference(kind, each)) is not None]
    names = sorted(one.settings.keys() | other.settings.keys())
    settings = {name: (one.settings.get(name), other.settings.get(name)) for name in names}
    return RunComparison(
        tuple(sorted(divergences, key=lambda divergence: (divergence.step, divergence.kind))),
        {kind: _distinct_steps(each) for kind, each in pairs.items()},
        max((pair.steps[-1] for each in pairs.values() for pair in each), default=0),
        {name: (value, another) for name, (value, another) in settings.items() if value != another},
    )


@frozen
class _Pair:
    """What two runs observed under one name, at the steps that both have."""

    name: str
    steps: Steps
    ones: Values
    others: Values

    @classmethod
    def of(cls, name: str, one: Column, other: Column) -> _Pair:
        if one.steps == other.steps:
            return cls(name, one.steps, one.values, other.values)
        places = {step: number for number, step in enumerate(other.steps)}
        common = [number for number, step in enumerate(one.steps) if step in places]
        steps = _numbers([one.steps[number] for number in common])
        ones, others = [one.values[number] for number in common], [other.values[places[step]] for step in steps]
        return cls(name, steps, ones, others)

    def difference(self) -> int | None:
        """Return the number of the first value that differs; None if all are equal."""
        if self.ones is self.others or self.ones == self.others:
            return None
        return next((number for number, same in enumerate(map(eq, self.ones, self.others)) if not same), None)


def _first_difference(kind: ObservationKind, pairs: Sequence[_Pair]) -> Divergence | None:
    found = [
        (pair.steps[number], pair.name, pair, number) for pair in pairs if (number := pair.difference()) is not None
    ]
    if not found:
        return None
    step, name, pair, number = min(found, key=itemgetter(0, 1))
    equal = [each.steps[count - 1] for each in pairs if (count := bisect_left(each.steps, step))]
    return Divergence(kind, step, name, pair.ones[number], pair.others[number], max(equal, default=None))


def _distinct_steps(pairs: Sequence[_Pair]) -> int:
    different = [pairs[0].steps]
    different += [pair.steps for pair in pairs[1:] if pair.steps != different[0]]
    return len(different[0]) if len(different) == 1 else len(set(chain.from_iterable(different)))


def observed_in(notes: Sequence[Mapping[str, Fact]]) -> Iterator[Observations]:
    """Yield what notes of any kinds but `began` observed, those of one name together. Others are ignored.

    Args:
        notes: notes of the journal, in order.
    """
    by_kind: dict[Fact, list[Mapping[str, Fact]]] = {}
    for note in notes:
        by_kind.setdefault(note["kind"], []).append(note)
    for batches, alike in groupby(by_kind.get("step", ()), lambda note: len(_list(note.get("batches")))):
        group = list(alike)
        steps = _steps_of(group)
        for number in range(batches):
            fingerprints = [note["batches"][number] for note in group]  # type: ignore[index]  # a list
            yield ObservationKind.DATA, f"micro-batch {number + 1}", steps, _packed(fingerprints)
        rates = [note.get("learning_rate") for note in group]
        yield ObservationKind.LEARNING_RATE, "of the step", steps, _packed(rates)
        yield from _randomness(group, steps, "after the step")
    losses = [(_integer(note.get("first")), _list(note.get("losses"))) for note in by_kind.get("losses", ())]
    if any(each for _, each in losses):
        steps = _numbers([first + number for first, each in losses for number in range(len(each))])
        yield ObservationKind.LOSS, "of the step", steps, _packed([loss for _, each in losses for loss in each])
    for names, alike in groupby(by_kind.get("logged", ()), _names_logged):
        if names is not None:
            yield from _logged(list(alike), names)
    for note in by_kind.get("save", ()):
        saved = step_of(str(note.get("checkpoint")))
        if saved is not None and note.get("weights") is not None:
            yield ObservationKind.WEIGHTS, "in the checkpoint", [saved], [note["weights"]]


def _names_logged(note: Mapping[str, Fact]) -> tuple[str, ...] | None:
    values = note.get("values")
    return tuple(values) if isinstance(values, Mapping) else None


def _logged(notes: Sequence[Mapping[str, Fact]], names: Sequence[str]) -> Iterator[Observations]:
    """Yield what notes that log these names observed."""
    known = [name for name in names if not is_reading(name)]
    steps = _steps_of(notes)
    for name in known:
        values = [note["values"][name] for note in notes]  # type: ignore[index, call-overload]  # a mapping
        yield _KIND_BY_NAME.get(name, ObservationKind.METRICS), name, steps, _packed(values)
    yield from _randomness(notes, steps, f"at the log of {min(known, default='nothing')}")


_KIND_BY_NAME = {
    "loss": ObservationKind.LOSS,
    "learning_rate": ObservationKind.LEARNING_RATE,
    "grad_norm": ObservationKind.GRADIENTS,
}


def _randomness(notes: Sequence[Mapping[str, Fact]], steps: Steps, when: str) -> Iterator[Observations]:
    states = [note["random"] for note in notes if "random" in note]
    if len(states) < len(notes):
        steps = _numbers([step for step, note in zip(steps, notes, strict=True) if "random" in note])
    if states:
        yield ObservationKind.RANDOMNESS, when, steps, _packed(states)


def _packed(values: list[Any]) -> Values:
    """Return values in a fraction of the memory if they are floats."""
    return array("d", values) if set(map(type, values)) == {float} else values


def _steps_of(notes: Sequence[Mapping[str, Fact]]) -> Steps:
    return _numbers([_integer(note.get("step")) for note in notes])


def _numbers(numbers: list[int]) -> Steps:
    try:
        return array("q", numbers)
    except OverflowError:
        return numbers


def _integer(fact: Fact) -> int:
    return fact if isinstance(fact, int) else 0


def _list(fact: Fact) -> Sequence[Fact]:
    return fact if isinstance(fact, list | tuple) else ()
