"""A world of ranks that can be delayed, lost and killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.errors import CollectiveError
from hexloop.domain.requests import Requests, SharedAgreement
from hexloop.ports.collectives import Collectives, Json, Reduction
from hexloop.testing import Delay, Drop, Kill, RankKilled, SimulatedWorld


def sum_of_ranks(rank: Collectives) -> float:
    """Two operations: a barrier, and the sum of the ranks' numbers."""
    rank.barrier("start")
    return rank.start_reduction([rank.rank], Reduction.SUM).result()[0]


@pytest.mark.parametrize("operation", [1, 2])
def test_a_killed_rank_is_missed_by_name(operation: int) -> None:
    """The killed rank dies as it enters the operation; the others report who never arrived, without waiting."""
    world = SimulatedWorld(3, [Kill(1, operation)], timeout=60.0)

    outcomes = world.outcomes(sum_of_ranks)

    assert isinstance(outcomes[1].error, RankKilled)
    for survivor in (outcomes[0], outcomes[2]):
        assert isinstance(survivor.error, CollectiveError)
        assert survivor.error.missing == (1,)
        assert "waited 60 s" in str(survivor.error)
        assert "[1] of 3 never arrived" in str(survivor.error)
    assert world.now == 60.0


def test_what_a_rank_said_can_be_lost() -> None:
    """All ranks give up, also the one that was not heard, which is the one that is missing."""
    outcomes = SimulatedWorld(3, [Drop(2, 2)]).outcomes(sum_of_ranks)

    errors = [outcome.error for outcome in outcomes]
    assert all(isinstance(error, CollectiveError) and error.missing == (2,) for error in errors)
    assert len(set(map(id, errors))) == 3


def test_a_short_delay_is_waited_for_and_a_long_one_is_not() -> None:
    """Within the time-out only the world's clock tells of a delay; beyond it the late rank is missed, and told so."""
    world = SimulatedWorld(3, [Delay(0, 2, 25.0)], timeout=30.0)
    assert world.run(sum_of_ranks) == [3.0] * 3
    assert world.now == 25.0

    late = SimulatedWorld(3, [Delay(0, 2, 35.0)], timeout=30.0)
    errors = [outcome.error for outcome in late.outcomes(sum_of_ranks)]
    assert all(isinstance(error, CollectiveError) and error.missing == (0,) for error in errors)
    assert late.now == 35.0


def test_a_fault_happens_once() -> None:
    """A world that runs again, as a job does after a crash, has its plan behind it."""
    world = SimulatedWorld(2, [Kill(0, 1), Drop(1, 2)])

    assert isinstance(world.outcomes(sum_of_ranks)[0].error, RankKilled)
    assert world.outcomes(sum_of_ranks)[1].error is not None
    assert world.run(sum_of_ranks) == [1.0, 1.0]


def test_a_rank_that_ends_early_is_missed() -> None:
    """A rank that returns while others wait for it leaves them with an error, and not waiting."""

    def leave_early(rank: Collectives) -> None:
        if rank.rank:
            rank.barrier("end")

    outcomes = SimulatedWorld(3).outcomes(leave_early)

    assert outcomes[0].error is None
    assert isinstance(outcomes[1].error, CollectiveError)
    assert outcomes[1].error.missing == (0,)


def test_ranks_that_wait_for_each_other_all_give_up() -> None:
    """Where two ranks each wait for what the other would do next, both are told what they called."""

    def cross(rank: Collectives) -> None:
        for name in ("a", "b") if rank.rank == 0 else ("b", "a"):
            rank.barrier(name)

    outcomes = SimulatedWorld(2).outcomes(cross)

    for outcome in outcomes:
        assert isinstance(outcome.error, CollectiveError)
        assert "the barrier 'a'" in str(outcome.error)
        assert "the barrier 'b'" in str(outcome.error)


@pytest.mark.parametrize(
    "different", [lambda rank: rank.gather(1), lambda rank: rank.start_reduction([1, 2], Reduction.SUM).result()]
)
def test_ranks_have_to_call_the_same(different: Callable[[Collectives], object]) -> None:
    """A reduction that meets another operation, or one of another length, fails on every rank."""

    def call(rank: Collectives) -> None:
        if rank.rank == 1:
            different(rank)
        else:
            rank.start_reduction([1], Reduction.SUM).result()

    for outcome in SimulatedWorld(3).outcomes(call):
        assert isinstance(outcome.error, CollectiveError)
        assert "the sum of 1 numbers" in str(outcome.error)


def test_a_run_raises_what_went_wrong_of_itself() -> None:
    """The error of the rank that failed goes before those of the ranks that waited for it, and names its rank."""

    def fail(rank: Collectives) -> None:
        if rank.rank == 2:
            raise ZeroDivisionError
        rank.barrier("end")

    with pytest.raises(ZeroDivisionError) as raised:
        SimulatedWorld(4).run(fail)
    assert raised.value.__notes__ == ["in rank 2 of 4"]


def test_ranks_share_nothing_by_way_of_a_gathering() -> None:
    """What one rank does to a gathered object no other rank sees, and only what JSON can say gets through."""

    def gather(rank: Collectives) -> object:
        own: dict[str, Json] = {"rank": rank.rank}
        gathered = rank.gather(own)
        own["rank"] = 99
        assert isinstance(gathered[0], dict)
        gathered[0]["seen by"] = rank.rank
        rank.barrier("all have written")
        return gathered

    assert SimulatedWorld(2).run(gather) == [[{"rank": 0, "seen by": rank}, {"rank": 1}] for rank in range(2)]
    with pytest.raises(TypeError, match="JSON"):
        SimulatedWorld(1).run(lambda rank: rank.gather(object()))  # type: ignore[arg-type]


def test_only_a_rank_can_be_heard() -> None:
    """A broadcast from a rank that is not there raises ValueError."""
    with pytest.raises(ValueError, match="source=2"):
        SimulatedWorld(2).run(lambda rank: rank.broadcast(1, source=2))


def test_a_rank_alone_does_not_wait_for_ranks_that_do_not_run() -> None:
    """Outside of a run nobody else has anything to do, so whoever waits or sleeps goes on at once."""
    world = SimulatedWorld(2, [Delay(0, 1, 5.0)], timeout=10.0)

    with pytest.raises(CollectiveError, match=r"\[1\] of 2"):
        world.rank(0).barrier("nobody comes")
    assert world.now == 15.0


def test_a_busy_rank_is_waited_for() -> None:
    """Time stands still while a rank computes, however long that takes."""
    world = SimulatedWorld(2, timeout=0.001)
    waiting = threading.Event()

    def work(rank: Collectives) -> float:
        if rank.rank == 0:
            waiting.wait(timeout=0.05)  # nobody sets it: the other rank waits for as long
        return sum_of_ranks(rank)

    assert world.run(work) == [1.0, 1.0]
    assert world.now == 0.0


def agree(asked_at: dict[int, int], boundaries: int) -> Callable[[Collectives], Generator[None, None, int]]:
    """Ranks that look at each boundary for a stop; some are asked for one at a boundary of their own."""

    def run_rank(rank: Collectives) -> Generator[None, None, int]:
        requests = Requests()
        agreement = SharedAgreement(requests, rank)
        for boundary in range(boundaries):
            if asked_at.get(rank.rank) == boundary:
                requests.request_stop()
            yield
            if agreement.agreed_requests().stop:
                return boundary
        return boundaries

    return run_rank


@settings(deadline=None, max_examples=10)
@given(
    asked_at=st.dictionaries(st.integers(0, 999), st.integers(0, 4), max_size=3),
    seed=st.integers(0, 1000),
)
def test_a_thousand_ranks_agree_in_one_thread(asked_at: dict[int, int], seed: int) -> None:
    """In whatever order the ranks run, all stop at one boundary, the next after the first at which one was asked."""
    world = SimulatedWorld(1000)

    stopped = world.run_stepwise(agree(asked_at, 8), random.Random(seed).shuffle)

    assert set(stopped) == {min(asked_at.values()) + 1 if asked_at else 8}


def test_a_rank_cannot_wait_for_ranks_that_run_later_in_the_same_thread() -> None:
    """A generator that waits before the others have come is told who is missing; killed ranks end alone."""

    def wait_at_once(rank: Collectives) -> Generator[None, None, float]:
        yield
        return rank.start_reduction([1], Reduction.SUM).result()[0]

    def wait_later(rank: Collectives) -> Generator[None, None, float]:
        pending = rank.start_reduction([1], Reduction.SUM)
        yield
        return pending.result()[0]

    with pytest.raises(CollectiveError, match=r"\[1\] of 2"):
        SimulatedWorld(2).run_stepwise(wait_at_once)
    assert SimulatedWorld(2).run_stepwise(wait_later) == [2.0, 2.0]
    outcomes = SimulatedWorld(2, [Kill(1, 1)]).outcomes_stepwise(wait_later)
    assert isinstance(outcomes[1].error, RankKilled)
    assert isinstance(outcomes[0].error, CollectiveError)


def test_two_hundred_threads_end_in_a_deadlock_at_once() -> None:
    """Many ranks, one of which never comes, give up without any of them waiting in fact."""
    outcomes = SimulatedWorld(200, [Kill(77, 1)], timeout=1e6).outcomes(sum_of_ranks)

    missing = [outcome.error.missing for outcome in outcomes if isinstance(outcome.error, CollectiveError)]
    assert missing == [(77,)] * 199
