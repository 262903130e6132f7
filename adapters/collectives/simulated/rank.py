"""A simulated world, seen from one of its ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import field, frozen

from hexloop.adapters.collectives.simulated.meeting import Combine, Meeting
from hexloop.ports.collectives import Json, Reduction

REDUCE: dict[Reduction, Callable[[Sequence[float]], float]] = {
    Reduction.SUM: sum,
    Reduction.MAXIMUM: max,
    Reduction.MINIMUM: min,
}


Place = tuple[int, int]
"""A rank, and which of its threads: 0 is its own, the others are those for which it went `apart`."""


class World(Protocol):
    """What a rank asks of its world."""

    size: int

    def enter(self, place: Place, operation: str, said: Any, combine: Combine) -> Meeting:
        """Call the rank's next operation, without waiting for anybody."""
        ...

    def leave(self, place: Place, meeting: Meeting) -> Any:
        """Wait for the result. Raises CollectiveError."""
        ...

    def lose(self, rank: int, cause: str) -> None:
        """The rank calls nothing more."""
        ...


@frozen
class SimulatedPending:
    """Answers the Pending port."""

    _world: World
    _place: Place
    _meeting: Meeting

    def result(self) -> tuple[float, ...]:
        """The reduced numbers; the same each time."""
        reduced: tuple[float, ...] = self._world.leave(self._place, self._meeting)
        return reduced


@frozen
class SimulatedCollectives:
    """Answers the Collectives port.

    Objects go through JSON, so that no rank can change another's. Every operation, a broadcast as well, waits for all
    ranks, so that nobody comes to rely on less.
    """

    _world: World
    rank: int
    _threads: list[int] = field(factory=lambda: [0])
    _thread: int = 0

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._world.size

    def start_reduction(self, values: Sequence[float], reduction: Reduction) -> SimulatedPending:
        """Begin to reduce; see `Collectives.start_reduction`."""
        reduce = REDUCE[reduction]

        def combine(said: Sequence[Sequence[float]]) -> tuple[float, ...]:
            return tuple(map(reduce, zip(*said, strict=True)))

        operation = f"the {reduction.value} of {len(values)} numbers"
        meeting = self._world.enter(self._place, operation, tuple(map(float, values)), combine)
        return SimulatedPending(self._world, self._place, meeting)

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, by rank."""
        return [json.loads(text) for text in self._meet("a gathering", json.dumps(value), list)]

    def broadcast(self, value: Json, source: int = 0) -> Json:
        """The value of rank `source`. Raises ValueError where there is no such rank."""
        if not 0 <= source < self.world_size:
            raise ValueError(f"You chose to hear from rank {source}, but the ranks end at {self.world_size - 1}.")
        said = json.dumps(value) if self.rank == source else ""
        heard: Json = json.loads(self._meet(f"a broadcast of rank {source}", said, lambda texts: texts[source]))
        return heard

    def barrier(self, name: str) -> None:
        """Wait until every rank is here."""
        self._meet(f"the barrier {name!r}", None, lambda said: None)

    def apart(self) -> SimulatedCollectives:
        """The same ranks, in another thread; see `Collectives.apart`."""
        self._threads[0] += 1
        return SimulatedCollectives(self._world, self.rank, self._threads, self._threads[0])

    def tell_failure(self, cause: str) -> None:
        """Nobody waits for this rank any longer."""
        self._world.lose(self.rank, cause)

    def explain(self, error: BaseException) -> BaseException:
        """Whoever loses a rank here hears it in so many words."""
        return error

    @property
    def _place(self) -> Place:
        return self.rank, self._thread

    def _meet(self, operation: str, said: Any, combine: Combine) -> Any:
        return self._world.leave(self._place, self._world.enter(self._place, operation, said, combine))
