"""At which step two runs part, and what parted first."""

from __future__ import annotations

from attrs import frozen

from hexloop.domain.journal.timeline import Sort, Timeline
from hexloop.ports.journal import Fact


@frozen
class Parting:
    """The first difference of one sort: at `step`, in what `name` tells, between the values `one` and `other`.

    equal_until: the last step before at which something of this sort was compared, and equal; None where nothing was.
    """

    sort: Sort
    step: int
    name: str
    one: Fact
    other: Fact
    equal_until: int | None


@frozen
class Comparison:
    """Two runs side by side.

    partings: the first difference of each sort, what came first in front. compared: how many steps were compared of
    each sort of which both tell. last: the last step compared. settings: where the runs were set up differently, the
    two values by name.
    """

    partings: tuple[Parting, ...]
    compared: dict[Sort, int]
    last: int
    settings: dict[str, tuple[Fact, Fact]]

    @property
    def first(self) -> Parting | None:
        """Where the runs part; None where they do not."""
        return self.partings[0] if self.partings else None


def compare(one: Timeline, other: Timeline) -> Comparison:
    """Everything of which both tell, compared in the order in which it came to be."""
    common = sorted(one.observations.keys() & other.observations.keys())
    partings: dict[Sort, Parting] = {}
    equal: dict[Sort, list[int]] = {}
    steps: dict[Sort, set[int]] = {}
    for key in common:
        step, sort, name = key
        steps.setdefault(sort, set()).add(step)
        if sort in partings:
            continue
        values = one.observations[key], other.observations[key]
        if values[0] == values[1]:
            equal.setdefault(sort, []).append(step)
        else:
            before = next((earlier for earlier in reversed(equal.get(sort, [])) if earlier < step), None)
            partings[sort] = Parting(sort, step, name, *values, before)
    return Comparison(
        tuple(sorted(partings.values(), key=lambda parting: (parting.step, parting.sort))),
        {sort: len(seen) for sort, seen in sorted(steps.items())},
        max((step for step, _, _ in common), default=0),
        _different_settings(one, other),
    )


def _different_settings(one: Timeline, other: Timeline) -> dict[str, tuple[Fact, Fact]]:
    names = sorted(one.settings.keys() | other.settings.keys())
    pairs = {name: (one.settings.get(name), other.settings.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
