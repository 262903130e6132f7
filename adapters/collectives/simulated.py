"""A simulated world of ranks in one process, which can delay, drop and kill them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

from attrs import evolve, field, frozen
from attrs.validators import ge

from hexloop.adapters.collectives import REDUCERS, PendingReduction, place_among
from hexloop.domain.errors import CollectiveError
from hexloop.ports.collectives import Json, Reduction

IDLE_SECONDS = 0.5
"""Real seconds without a change after which the other threads of the blocked ranks count as blocked too."""

Result = TypeVar("Result")

Combine = Callable[[Sequence[Any]], Any]
"""Computes the result from the values of all ranks, in order of rank."""

Steps: TypeAlias = "Callable[[SimulatedCollectives], Generator[object, None, Result]]"
Shuffle = Callable[[list[int]], object]

Caller = tuple[int, int]
"""A rank and one of its threads: 0 is the main one, the others were created by `apart`."""


class RankKilled(BaseException):
    """The process of a rank died. Not an Exception, so no error handling stops it."""


@frozen
class RankFault:
    """Something that happens to `rank` in its operation number `operation`, counted from 1.

    Args:
        rank: the rank that it happens to.
        operation: the number of the rank's operation, counted from 1.
    """

    rank: int
    operation: int = field(validator=ge(1))


class Kill(RankFault):
    """`rank` dies when it enters the operation."""


class Drop(RankFault):
    """The value of `rank` in the operation is lost; the rank waits for the result as usual."""


@frozen
class Delay(RankFault):
    """`rank` enters the operation late by `seconds`, by the clock of the world.

    Args:
        seconds: how late it is, by the clock of the world.
    """

    seconds: float = field(validator=ge(0))


@frozen
class Outcome(Generic[Result]):
    """How a rank finished: with a `value`, or with the `error` that it raised.

    Args:
        rank: the rank that finished.
        value: what its function returned; None if it raised.
        error: what its function raised; None if it returned.
    """

    rank: int
    value: Result | None = None
    error: BaseException | None = None


def values_of(outcomes: Sequence[Outcome[Result]]) -> list[Result]:
    """Return the values of the ranks, or raise their first error, by rank, preferably not a CollectiveError."""
    errors = [(outcome.rank, outcome.error) for outcome in outcomes if outcome.error is not None]
    if errors:
        rank, error = min(errors, key=lambda failed: isinstance(failed[1], CollectiveError))
        error.add_note(f"in rank {rank} of {len(outcomes)}")
        raise error
    return [cast(Result, outcome.value) for outcome in outcomes]


class SimulatedWorld:
    """`size` ranks in one process, each a thread (`run`) or a generator (`run_stepwise`).

    `operations` is the number of operations each rank has called in the current run.

    The clock `now` stands still while any rank is working. When all ranks wait or sleep, it jumps to the first wake-up
    or timeout. So a run takes no longer than its computation, and a deadlock ends immediately and reproducibly.

    Args:
        size: the number of ranks.
        faults: what happens to the ranks. Each happens once, even if the world runs several times.
        timeout: seconds, by the clock of the world, after which a rank stops waiting.

    Examples:
        >>> from hexloop.testing import Delay, SimulatedWorld
        >>> world = SimulatedWorld(3)
        >>> world.run(lambda collectives: collectives.gather(10 * collectives.rank))
        [[0, 10, 20], [0, 10, 20], [0, 10, 20]]
    """

    def __init__(self, size: int, faults: Iterable[RankFault] = (), timeout: float = 1800.0) -> None:
        self.size = size
        self.now = 0.0
        self._timeout = timeout
        self._faults = list(faults)
        self._changed = threading.Condition()
        self._blocked: dict[Caller, _Block] = {}
        self._begin(())

    def rank(self, rank: int) -> SimulatedCollectives:
        """Return the collectives of one rank.

        Args:
            rank: the rank of a process, from 0.
        """
        return SimulatedCollectives(self, rank, tuple(range(self.size)))

    def run(self, function: Callable[[SimulatedCollectives], Result]) -> list[Result]:
        """Run the function on every rank, each in a thread, and return the results by rank.

        Raises what a rank raised; errors of its own take precedence over those from waiting for other ranks.

        Args:
            function: receives the collectives of its rank.
        """
        return values_of(self.outcomes(function))

    def outcomes(self, function: Callable[[SimulatedCollectives], Result]) -> list[Outcome[Result]]:
        """Run the function on every rank, each in a thread, and return how each finished.

        Args:
            function: receives the collectives of its rank.
        """
        outcomes: dict[int, Outcome[Result]] = {}

        def run_rank(rank: int) -> None:
            try:
                outcomes[rank] = Outcome(rank, function(self.rank(rank)))
            except BaseException as error:
                outcomes[rank] = Outcome(rank, error=error)
            finally:
                with self._changed:
                    self._running.remove(rank)
                    self._advance_clock()

        self._begin(range(self.size))
        ranks = range(self.size)
        threads = [threading.Thread(target=run_rank, args=(rank,), name=f"rank {rank}", daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [outcomes[rank] for rank in ranks]

    def run_stepwise(self, function: Steps[Result], shuffle: Shuffle = lambda ranks: None) -> list[Result]:
        """Like `run`, for generator functions, all in this thread, so that there can be thousands of ranks.

        In each round, every unfinished rank runs to its next `yield`, in order of rank, or as reordered by `shuffle`. A
        rank cannot wait for ranks that run after it: it must start a reduction, yield, and only then ask for the
        result.

        Args:
            function: receives the collectives of its rank.
            shuffle: returns an order of the ranks for a round; by default ascending.

        Raises:
            CollectiveError: if it waits nevertheless.
        """
        return values_of(self.outcomes_stepwise(function, shuffle))

    def outcomes_stepwise(
        self, function: Steps[Result], shuffle: Shuffle = lambda ranks: None
    ) -> list[Outcome[Result]]:
        """Run the generators as `run_stepwise` does and return how each rank finished.

        Args:
            function: receives the collectives of its rank.
            shuffle: returns an order of the ranks for a round; by default ascending.
        """
        self._begin(())
        outcomes: dict[int, Outcome[Result]] = {}
        steps = {rank: function(self.rank(rank)) for rank in range(self.size)}
        while steps:
            ranks = list(steps)
            shuffle(ranks)
            for rank in ranks:
                try:
                    next(steps[rank])
                except StopIteration as end:
                    outcomes[rank] = Outcome(rank, end.value)
                except BaseException as error:
                    outcomes[rank] = Outcome(rank, error=error)
                if rank in outcomes:
                    del steps[rank]
        return [outcomes[rank] for rank in range(self.size)]

    def enter(
        self, caller: Caller, ranks: tuple[int, ...], operation: str, value: Any, combine: Combine
    ) -> CollectiveCall:
        """Register a rank's next operation among `ranks` without waiting.

        Args:
            caller: the rank that calls.
            ranks: the ranks that take part.
            operation: the name of the operation.
            value: what the rank passes.
            combine: returns the result of the values of all ranks.

        Raises:
            RankKilled: if planned.
        """
        rank, thread = caller
        with self._changed:
            self.operations[rank] += 1
            number = self.operations[rank]
            fault = next((each for each in self._faults if (each.rank, each.operation) == (rank, number)), None)
            if fault is not None:
                self._faults.remove(fault)
            if isinstance(fault, Kill):
                raise RankKilled(f"Planned fault: rank {rank} dies in its operation {number}, {operation}.")
            if isinstance(fault, Delay):
                self._block(caller, _Block(self.now + fault.seconds, None))
            turn = self._turns[caller, ranks] = self._turns.get((caller, ranks), 0) + 1
            call = self._calls.setdefault((ranks, thread, turn), CollectiveCall(ranks, operation, combine))
            call.arrive(rank, operation, value, lost=isinstance(fault, Drop))
            for failed, cause in self._causes.items():
                call.fail_rank(failed, cause)
            if len(call.callers) == len(ranks):
                del self._calls[ranks, thread, turn]
            if call.settled:
                self._wake(call)
            return call

    def wait(self, caller: Caller, call: CollectiveCall) -> Any:
        """Wait for the result of an operation.

        Args:
            caller: the rank that calls.
            call: what `enter` returned.

        Raises:
            CollectiveError: if a rank does not call it, calls another operation, or ends.
        """
        with self._changed:
            if not call.settled:
                self._block(caller, _Block(self.now + self._timeout, call))
            return call.result()

    def fail_rank(self, rank: int, cause: str) -> None:
        """Fail the operations that wait for a rank that calls nothing more.

        Args:
            rank: the rank of a process, from 0.
            cause: the error that ended the rank.
        """
        with self._changed:
            self._causes[rank] = cause
            for call in self._calls.values():
                call.fail_rank(rank, cause)
                if call.settled:
                    self._wake(call)

    def _begin(self, running: Iterable[int]) -> None:
        """Reset the world; these ranks run in threads of their own."""
        self.operations = [0] * self.size
        self._turns: dict[tuple[Caller, tuple[int, ...]], int] = {}
        self._calls: dict[tuple[tuple[int, ...], int, int], CollectiveCall] = {}
        self._causes: dict[int, str] = {}
        self._running = set(running)

    def _block(self, caller: Caller, block: _Block) -> None:
        self._blocked[caller] = block
        self._advance_clock()
        while caller in self._blocked:
            changed = self._changed.wait(IDLE_SECONDS * max(1, self.size / 20))  # a check takes longer with many ranks
            if not changed and {rank for rank, _ in self._blocked} >= self._running:
                self._advance_to_first()  # the main threads wait for blocked ones without the world's knowledge

    def _advance_clock(self) -> None:
        """While no rank can run, advance the clock to the first wake-up or timeout."""
        while self._blocked and all((rank, 0) in self._blocked for rank in self._running):
            self._advance_to_first()

    def _advance_to_first(self) -> None:
        if self._blocked:
            first = min(self._blocked, key=lambda caller: self._blocked[caller].until)
            block = self._blocked[first]
            self.now = block.until
            if block.call is None:
                del self._blocked[first]
                self._changed.notify_all()
            else:
                block.call.time_out(self._timeout)
                self._wake(block.call)

    def _wake(self, call: CollectiveCall) -> None:
        """Unblock the ranks that wait for a call."""
        for caller in [caller for caller, block in self._blocked.items() if block.call is call]:
            del self._blocked[caller]
        self._changed.notify_all()


@frozen
class SimulatedCollectives:
    """Collectives adapter for one rank of a SimulatedWorld.

    Objects pass through JSON, so that no rank can change those of another. Every operation, including a broadcast,
    waits for all ranks, so that code cannot come to rely on less.

    Args:
        rank: its number among the ranks that communicate. ranks: these, in ascending order.
    """

    _world: SimulatedWorld
    rank: int
    _ranks: tuple[int, ...]
    _threads: list[int] = field(factory=lambda: [0])
    _thread: int = 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._ranks)

    def start_reduction(self, values: Sequence[float], reduction: Reduction) -> PendingReduction:
        """Start a reduction; see `Collectives.start_reduction`."""
        reduce = REDUCERS[reduction]

        def combine(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
            return tuple(map(reduce, zip(*rows, strict=True)))

        operation = f"the {reduction.value} of {len(values)} numbers"
        call = self._world.enter(self._caller, self._ranks, operation, tuple(map(float, values)), combine)
        return PendingReduction(partial(self._world.wait, self._caller, call))

    def gather(self, value: Json) -> list[Json]:
        """Return every rank's value, by rank."""
        return [json.loads(text) for text in self._run("a gather", json.dumps(value), list)]

    def broadcast(self, value: Json, source: int = 0) -> Json:
        """Return the value of rank `source`.

        Raises:
            ValueError: if there is no such rank.
        """
        if not 0 <= source < self.world_size:
            raise ValueError(f"source={source} is not a rank; ranks are 0 to {self.world_size - 1}.")
        sent = json.dumps(value) if self.rank == source else ""
        received: Json = json.loads(self._run(f"a broadcast from rank {source}", sent, lambda texts: texts[source]))
        return received

    def barrier(self, name: str) -> None:
        """Wait for all ranks."""
        self._run(f"the barrier {name!r}", None, lambda _: None)

    def among(self, ranks: Sequence[int]) -> SimulatedCollectives:
        """Return the collectives of some of the ranks; see `Collectives.among`."""
        place, chosen = place_among(self.rank, ranks), tuple(self._ranks[rank] for rank in sorted(ranks))
        return evolve(self, rank=place, ranks=chosen)

    def apart(self) -> SimulatedCollectives:
        """Return the collectives of the same ranks for another thread; see `Collectives.apart`."""
        self._threads[0] += 1
        return evolve(self, thread=self._threads[0])

    def tell_failure(self, cause: str) -> None:
        """Fail the operations in which others wait for this rank."""
        self._world.fail_rank(self._ranks[self.rank], cause)

    def explain(self, error: BaseException) -> BaseException:
        """Return the error: errors of a simulated world already name the lost rank."""
        return error

    @property
    def _caller(self) -> Caller:
        return self._ranks[self.rank], self._thread

    def _run(self, operation: str, value: Any, combine: Combine) -> Any:
        return self._world.wait(self._caller, self._world.enter(self._caller, self._ranks, operation, value, combine))


class CollectiveCall:
    """One operation that all of `ranks` call. It is `settled` once all values have arrived, or it failed.

    Args:
        ranks: the ranks that take part.
        operation: the name of the operation.
        combine: returns the result of the values of all ranks.
    """

    def __init__(self, ranks: tuple[int, ...], operation: str, combine: Combine) -> None:
        self.settled = False
        self.callers: set[int] = set()
        self._ranks = ranks
        self._operation = operation
        self._combine = combine
        self._values: dict[int, Any] = {}
        self._result: Any = None
        self._failure: tuple[str, tuple[int, ...]] | None = None

    def arrive(self, rank: int, operation: str, value: Any, lost: bool) -> None:
        """Register the call of a rank; fail if it calls another operation than the first rank did.

        Args:
            rank: the rank of a process, from 0.
            operation: the name of the operation.
            value: what the rank passes.
            lost: the ranks that have ended.
        """
        self.callers.add(rank)
        if self.settled:
            return
        if operation != self._operation:
            self._fail(
                f"Rank {rank} called {operation} while another called {self._operation}; every rank must call the same "
                "operations in the same order.",
                (),
            )
        elif not lost:
            self._values[rank] = value
            if len(self._values) == len(self._ranks):
                self._result = self._combine([self._values[rank] for rank in self._ranks])
                self.settled = True

    def time_out(self, timeout: float) -> None:
        """Fail because of the timeout."""
        missing = tuple(rank for rank in self._ranks if rank not in self._values)
        self._fail(
            f"The ranks waited {timeout:g} s for {self._operation}, but {list(missing)} of {len(self._ranks)} never "
            "arrived; look at what those did last.",
            missing,
        )

    def fail_rank(self, rank: int, cause: str) -> None:
        """Fail if a rank that will not call any more has not called yet.

        Args:
            rank: the rank of a process, from 0.
            cause: the error that ended the rank.
        """
        if not self.settled and rank in self._ranks and rank not in self.callers:
            self._fail(f"The ranks waited for {self._operation}, but rank {rank} failed: {cause}", (rank,))

    def result(self) -> Any:
        """Return the result of a settled operation.

        Raises:
            CollectiveError: if it failed.
        """
        if self._failure is not None:
            # A new error each time: a shared one would collect the tracebacks of all ranks' threads.
            raise CollectiveError(*self._failure)
        return self._result

    def _fail(self, message: str, missing: tuple[int, ...]) -> None:
        self.settled = True
        self._failure = message, missing


@frozen
class _Block:
    """Why a rank is blocked: it sleeps until a time, or waits for a call until then."""

    until: float
    call: CollectiveCall | None
