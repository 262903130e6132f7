"""A world of ranks: who runs, who waits, and what time it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from attrs import frozen

from hexloop.adapters.collectives.simulated.faults import Delay, Drop, Fault, Kill, RankKilled
from hexloop.adapters.collectives.simulated.meeting import Combine, Meeting
from hexloop.adapters.collectives.simulated.outcome import Outcome, values_of
from hexloop.adapters.collectives.simulated.rank import Place, SimulatedCollectives

Result = TypeVar("Result")

STILLNESS = 0.5
"""Real seconds without a change after which ranks of which only other threads are seen to wait do nothing at all."""


@frozen
class _Standstill:
    """A rank that sleeps until a time, or waits until then for a meeting."""

    until: float
    meeting: Meeting | None


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
        self._standstills: dict[Place, _Standstill] = {}
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

    def enter(self, place: Place, operation: str, said: Any, combine: Combine) -> Meeting:
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

    def leave(self, place: Place, meeting: Meeting) -> Any:
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
        self._turns: dict[Place, int] = {}
        self._meetings: dict[tuple[int, int], Meeting] = {}
        self._causes: dict[int, str] = {}
        self._running = set(running)

    def _strike(self, rank: int, operation: int) -> Fault | None:
        for fault in self._faults:
            if (fault.rank, fault.operation) == (rank, operation):
                self._faults.remove(fault)
                return fault
        return None

    def _stand_still(self, place: Place, standstill: _Standstill) -> None:
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
