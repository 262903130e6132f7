"""A world of ranks in one process, which can delay, lose and kill them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast

from attrs import field, frozen
from attrs.validators import ge

from hexloop.domain.errors import CollectiveError
from hexloop.ports.collectives import Json, Reduction

REDUCE: dict[Reduction, Callable[[Sequence[float]], float]] = {
    Reduction.SUM: sum,
    Reduction.MAXIMUM: max,
    Reduction.MINIMUM: min,
}

STILLNESS = 0.5
"""Real seconds without a change after which ranks of which only other threads are seen to wait do nothing at all."""

Result = TypeVar("Result")

Combine = Callable[[Sequence[Any]], Any]
"""From what the ranks said, in the order of ranks, to the result."""

Caller = tuple[int, int]
"""A rank, and which of its threads: 0 is its own, the others are those for which it went `apart`."""


class RankKilled(BaseException):
    """The process of a rank is no more. Not an Exception: nothing that handles errors stops it."""


@frozen
class Kill:
    """The process of `rank` dies as it enters its operation number `operation`, counted from 1."""

    rank: int
    operation: int = field(validator=ge(1))


@frozen
class Delay:
    """`rank` enters its operation number `operation` so many seconds late, by the clock of the world."""

    rank: int
    operation: int = field(validator=ge(1))
    seconds: float = field(validator=ge(0))


@frozen
class Drop:
    """What `rank` says in its operation number `operation` is lost; `rank` waits for the answer like any other."""

    rank: int
    operation: int = field(validator=ge(1))


Fault: TypeAlias = Kill | Delay | Drop


@frozen
class Outcome(Generic[Result]):
    """How a rank ended: with a `value`, or with the `error` that it raised."""

    rank: int
    value: Result | None = None
    error: BaseException | None = None


def values_of(outcomes: Sequence[Outcome[Result]]) -> list[Result]:
    """The ranks' values; raises the first error, in the order of ranks, that is no CollectiveError, else the first."""
    errors = [(outcome.rank, outcome.error) for outcome in outcomes if outcome.error is not None]
    if errors:
        rank, error = min(errors, key=lambda failed: isinstance(failed[1], CollectiveError))
        error.add_note(f"in rank {rank} of {len(outcomes)}")
        raise error
    return [cast(Result, outcome.value) for outcome in outcomes]


class SimulatedWorld:
    """`size` ranks in one process, each a thread (`run`) or a generator (`run_stepwise`).

    timeout: the seconds, by the clock of the world, after which a rank gives up waiting.
    faults: what happens to the ranks; each happens once, also where the world runs several times.

    `operations` says how many each rank has called since the world ran last.

    The world's clock `now` stands still while any rank has something to do; when all wait or sleep, it jumps to the
    first who wakes or gives up. So a run takes no longer than its computing, and a deadlock ends at once and always
    alike.
    """

    def __init__(self, size: int, faults: Iterable[Fault] = (), timeout: float = 1800.0) -> None:
        self.size = size
        self.now = 0.0
        self._timeout = timeout
        self._faults = list(faults)
        self._changed = threading.Condition()
        self._running: set[int] = set()
        self._standstills: dict[Caller, _Standstill] = {}
        self._begin(())

    def rank(self, rank: int) -> SimulatedCollectives:
        """The world as this rank sees it."""
        return SimulatedCollectives(self, rank)

    def run(self, function: Callable[[SimulatedCollectives], Result]) -> list[Result]:
        """What the function gives on every rank, by rank, each running in a thread.

        Raises what a rank raised: what went wrong of itself goes before what waiting for it in vain led to.
        """
        return values_of(self.outcomes(function))

    def outcomes(self, function: Callable[[SimulatedCollectives], Result]) -> list[Outcome[Result]]:
        """How the function ended on every rank, each running in a thread."""
        ended: dict[int, Outcome[Result]] = {}

        def run_rank(rank: int) -> None:
            try:
                ended[rank] = Outcome(rank, function(self.rank(rank)))
            except BaseException as error:
                ended[rank] = Outcome(rank, error=error)
            finally:
                with self._changed:
                    self._running.remove(rank)
                    self._let_time_pass()

        self._begin(range(self.size))
        ranks = range(self.size)
        threads = [threading.Thread(target=run_rank, args=(rank,), name=f"rank {rank}", daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [ended[rank] for rank in ranks]

    def run_stepwise(
        self,
        function: Callable[[SimulatedCollectives], Generator[object, None, Result]],
        shuffle: Callable[[list[int]], object] = lambda ranks: None,
    ) -> list[Result]:
        """As `run`, for functions that are generators, all in this thread, so that there can be thousands of ranks.

        In each round every rank that has not ended runs to its next `yield`, in the order of ranks, or as `shuffle`
        reorders them. A rank cannot wait for others that have to run first: it starts a reduction, yields, and only
        then asks for the result. Raises CollectiveError where it waits nevertheless.
        """
        return values_of(self.outcomes_stepwise(function, shuffle))

    def outcomes_stepwise(
        self,
        function: Callable[[SimulatedCollectives], Generator[object, None, Result]],
        shuffle: Callable[[list[int]], object] = lambda ranks: None,
    ) -> list[Outcome[Result]]:
        """How the function ended on every rank, run as by `run_stepwise`."""
        self._begin(())
        ended: dict[int, Outcome[Result]] = {}
        steps = {rank: function(self.rank(rank)) for rank in range(self.size)}
        while steps:
            ranks = list(steps)
            shuffle(ranks)
            for rank in ranks:
                try:
                    next(steps[rank])
                except StopIteration as end:
                    ended[rank] = Outcome(rank, end.value)
                except BaseException as error:
                    ended[rank] = Outcome(rank, error=error)
                if rank in ended:
                    del steps[rank]
        return [ended[rank] for rank in range(self.size)]

    def enter(self, place: Caller, operation: str, said: Any, combine: Combine) -> Meeting:
        """A rank calls its next operation, without waiting for anybody. Raises RankKilled by plan."""
        rank, thread = place
        with self._changed:
            self.operations[rank] += 1
            number = self.operations[rank]
            fault = self._strike(rank, number)
            if isinstance(fault, Kill):
                raise RankKilled(f"The plan is that rank {rank} dies in its operation {number}, {operation}.")
            if isinstance(fault, Delay):
                self._stand_still(place, _Standstill(self.now + fault.seconds, None))
            turn = self._turns[place] = self._turns.get(place, 0) + 1
            meeting = self._meetings.setdefault((thread, turn), Meeting(self.size, operation, combine))
            meeting.arrive(rank, operation, said, lost=isinstance(fault, Drop))
            for failed, cause in self._causes.items():
                meeting.lose(failed, cause)
            if meeting.everybody_arrived:
                del self._meetings[thread, turn]
            if meeting.settled:
                self._wake(meeting)
            return meeting

    def leave(self, place: Caller, meeting: Meeting) -> Any:
        """Wait for a meeting's result. Raises CollectiveError."""
        with self._changed:
            if not meeting.settled:
                self._stand_still(place, _Standstill(self.now + self._timeout, meeting))
            return meeting.result()

    def lose(self, rank: int, cause: str) -> None:
        """Nobody waits any longer for a rank that calls nothing more."""
        with self._changed:
            self._causes[rank] = cause
            for meeting in self._meetings.values():
                meeting.lose(rank, cause)
                if meeting.settled:
                    self._wake(meeting)

    def _begin(self, running: Iterable[int]) -> None:
        """Start with new processes: no operation was called, and these ranks have threads of their own."""
        self.operations = [0] * self.size
        self._turns: dict[Caller, int] = {}
        self._meetings: dict[tuple[int, int], Meeting] = {}
        self._causes: dict[int, str] = {}
        self._running = set(running)

    def _strike(self, rank: int, operation: int) -> Fault | None:
        for fault in self._faults:
            if (fault.rank, fault.operation) == (rank, operation):
                self._faults.remove(fault)
                return fault
        return None

    def _stand_still(self, place: Caller, standstill: _Standstill) -> None:
        self._standstills[place] = standstill
        self._let_time_pass()
        while place in self._standstills:
            changed = self._changed.wait(STILLNESS * max(1, self.size / 20))  # looking takes longer for many
            if not changed and {rank for rank, _ in self._standstills} >= self._running:
                self._pass_to_the_first()  # the ranks' own threads wait for those that stand still, unseen

    def _let_time_pass(self) -> None:
        """Where nobody has anything to do, go on to the time at which the first sleeper wakes or waiter gives up."""
        while self._standstills and all((rank, 0) in self._standstills for rank in self._running):
            self._pass_to_the_first()

    def _pass_to_the_first(self) -> None:
        if self._standstills:
            first = min(self._standstills, key=lambda place: self._standstills[place].until)
            standstill = self._standstills[first]
            self.now = standstill.until
            if standstill.meeting is None:
                del self._standstills[first]
                self._changed.notify_all()
            else:
                standstill.meeting.time_out(self._timeout)
                self._wake(standstill.meeting)

    def _wake(self, meeting: Meeting) -> None:
        """The ranks that wait for a meeting go on."""
        for place in [place for place, standstill in self._standstills.items() if standstill.meeting is meeting]:
            del self._standstills[place]
        self._changed.notify_all()


@frozen
class SimulatedCollectives:
    """Answers the Collectives port.

    Objects go through JSON, so that no rank can change another's. Every operation, a broadcast as well, waits for all
    ranks, so that nobody comes to rely on less.
    """

    _world: SimulatedWorld
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
    def _place(self) -> Caller:
        return self.rank, self._thread

    def _meet(self, operation: str, said: Any, combine: Combine) -> Any:
        return self._world.leave(self._place, self._world.enter(self._place, operation, said, combine))


@frozen
class SimulatedPending:
    """Answers the Pending port."""

    _world: SimulatedWorld
    _place: Caller
    _meeting: Meeting

    def result(self) -> tuple[float, ...]:
        """The reduced numbers; the same each time."""
        reduced: tuple[float, ...] = self._world.leave(self._place, self._meeting)
        return reduced


class Meeting:
    """The ranks' calls of one operation. It is `settled` when all were heard, or when it failed."""

    def __init__(self, size: int, operation: str, combine: Combine) -> None:
        self.settled = False
        self.arrived = 0
        self._size = size
        self._operation = operation
        self._combine = combine
        self._heard: dict[int, Any] = {}
        self._result: Any = None
        self._failure: tuple[str, tuple[int, ...]] | None = None
        self._callers: set[int] = set()

    @property
    def everybody_arrived(self) -> bool:
        """Whether no rank is still to call this operation."""
        return self.arrived == self._size

    def arrive(self, rank: int, operation: str, said: Any, lost: bool) -> None:
        """A rank calls; the meeting fails where it calls something else than the first did."""
        self.arrived += 1
        self._callers.add(rank)
        if self.settled:
            return
        if operation != self._operation:
            self._fail(
                f"Rank {rank} called {operation} where another called {self._operation}, so neither can be answered; "
                "let every rank call the same operations in the same order.",
                (),
            )
        elif not lost:
            self._heard[rank] = said
            if len(self._heard) == self._size:
                self._result = self._combine([self._heard[rank] for rank in range(self._size)])
                self.settled = True

    def time_out(self, timeout: float) -> None:
        """Nobody waits any longer."""
        missing = tuple(rank for rank in range(self._size) if rank not in self._heard)
        self._fail(
            f"The ranks waited {timeout:g} s at {self._operation}, but {list(missing)} of {self._size} never came; "
            "look at what those did last.",
            missing,
        )

    def lose(self, rank: int, cause: str) -> None:
        """A rank that has not called yet never will."""
        if not self.settled and rank not in self._callers:
            self._fail(f"The ranks waited for {self._operation}, but rank {rank} failed: {cause}", (rank,))

    def result(self) -> Any:
        """What came of a settled meeting. Raises CollectiveError where it failed."""
        if self._failure is not None:
            # A new error each time: the ranks' threads would write their tracebacks into the same one.
            raise CollectiveError(*self._failure)
        return self._result

    def _fail(self, message: str, missing: tuple[int, ...]) -> None:
        self.settled = True
        self._failure = message, missing


@frozen
class _Standstill:
    """A rank that sleeps until a time, or waits until then for a meeting."""

    until: float
    meeting: Meeting | None
