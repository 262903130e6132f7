"""A simulated world whose ranks and messages can be delayed, lost and killed."""

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
from tests.examples import examples


def sum_of_ranks(rank: Collectives) -> float:
    """Run two operations: a barrier, and the sum of the ranks' numbers."""
    rank.barrier("start")
    return rank.start_reduction([rank.rank], Reduction.SUM).result()[0]


@pytest.mark.parametrize("operation", [1, 2])
def test_a_killed_rank_is_named(operation: int) -> None:
    """The killed rank dies as it enters the operation; the others report it as missing, without waiting."""
    world = SimulatedWorld(3, [Kill(1, operation)], timeout=60.0)

    outcomes = world.outcomes(sum_of_ranks)

    assert isinstance(outcomes[1].error, RankKilled)
    for survivor in (outcomes[0], outcomes[2]):
        assert isinstance(survivor.error, CollectiveError)
        assert survivor.error.missing == (1,)
        assert "waited 60 s" in str(survivor.error)
        assert "[1] of 3 never arrived" in str(survivor.error)
    assert world.now == 60.0


def test_a_message_can_be_lost() -> None:
    """All ranks fail, including the sender, which is reported as missing."""
    outcomes = SimulatedWorld(3, [Drop(2, 2)]).outcomes(sum_of_ranks)

    errors = [outcome.error for outcome in outcomes]
    assert all(isinstance(error, CollectiveError) and error.missing == (2,) for error in errors)
    assert len(set(map(id, errors))) == 3


def test_short_delays_are_waited_for() -> None:
    """A delay within the timeout only advances the world's clock; beyond it the late rank is reported as missing."""
    world = SimulatedWorld(3, [Delay(0, 2, 25.0)], timeout=30.0)
    assert world.run(sum_of_ranks) == [3.0] * 3
    assert world.now == 25.0

    late = SimulatedWorld(3, [Delay(0, 2, 35.0)], timeout=30.0)
    errors = [outcome.error for outcome in late.outcomes(sum_of_ranks)]
    assert all(isinstance(error, CollectiveError) and error.missing == (0,) for error in errors)
    assert late.now == 35.0


def test_a_fault_occurs_once() -> None:
    """A world that runs again, like a job after a crash, does not repeat its plan."""
    world = SimulatedWorld(2, [Kill(0, 1), Drop(1, 2)])

    assert isinstance(world.outcomes(sum_of_ranks)[0].error, RankKilled)
    assert world.outcomes(sum_of_ranks)[1].error is not None
    assert world.run(sum_of_ranks) == [1.0, 1.0]


def test_a_rank_that_ends_early_is_missed() -> None:
    """If a rank returns while others wait for it, they get an error instead of waiting."""

    def leave_early(rank: Collectives) -> None:
        if rank.rank:
            rank.barrier("end")

    outcomes = SimulatedWorld(3).outcomes(leave_early)

    assert outcomes[0].error is None
    assert isinstance(outcomes[1].error, CollectiveError)
    assert outcomes[1].error.missing == (0,)


def test_a_deadlock_fails_on_all_ranks() -> None:
    """If two ranks wait for different operations, both errors name the operations."""

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
def test_ranks_must_call_the_same_operation(different: Callable[[Collectives], object]) -> None:
    """A reduction that meets another operation, or one of another length, fails on every rank."""

    def call(rank: Collectives) -> None:
        if rank.rank == 1:
            different(rank)
        else:
            rank.start_reduction([1], Reduction.SUM).result()

    for outcome in SimulatedWorld(3).outcomes(call):
        assert isinstance(outcome.error, CollectiveError)
        assert "the sum of 1 numbers" in str(outcome.error)


def test_a_run_raises_the_original_error() -> None:
    """The error of the failed rank takes precedence over those of the waiting ranks, and names its rank."""

    def fail(rank: Collectives) -> None:
        if rank.rank == 2:
            raise ZeroDivisionError
        rank.barrier("end")

    with pytest.raises(ZeroDivisionError) as raised:
        SimulatedWorld(4).run(fail)
    assert raised.value.__notes__ == ["in rank 2 of 4"]


def test_gathered_objects_are_not_shared() -> None:
    """Changes that one rank makes to a gathered object are invisible to others, and only JSON is transferred."""

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


def test_a_broadcast_needs_a_valid_rank() -> None:
    """A broadcast from a rank outside of the world raises ValueError."""
    with pytest.raises(ValueError, match="source=2"):
        SimulatedWorld(2).run(lambda rank: rank.broadcast(1, source=2))


def test_a_rank_outside_of_a_run_does_not_wait() -> None:
    """Outside of a run no other rank is active, so waiting and sleeping return at once."""
    world = SimulatedWorld(2, [Delay(0, 1, 5.0)], timeout=10.0)

    with pytest.raises(CollectiveError, match=r"\[1\] of 2"):
        world.rank(0).barrier("no other rank")
    assert world.now == 15.0


def test_a_busy_rank_is_waited_for() -> None:
    """The simulated clock does not advance while a rank computes, however long that takes."""
    world = SimulatedWorld(2, timeout=0.001)
    waiting = threading.Event()

    def work(rank: Collectives) -> float:
        if rank.rank == 0:
            waiting.wait(timeout=0.05)  # never set: the other rank waits for the whole time
        return sum_of_ranks(rank)

    assert world.run(work) == [1.0, 1.0]
    assert world.now == 0.0


def agree(asked_at: dict[int, int], boundaries: int) -> Callable[[Collectives], Generator[None, None, int]]:
    """Return ranks that check at each boundary for a stop; some get a request at their own boundary."""

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


@settings(deadline=None, max_examples=examples(10))
@given(
    asked_at=st.dictionaries(st.integers(0, 999), st.integers(0, 4), max_size=3),
    seed=st.integers(0, 1000),
)
def test_a_thousand_ranks_agree_in_one_thread(asked_at: dict[int, int], seed: int) -> None:
    """In any order of execution, all ranks stop at the same boundary, the one after the first request."""
    world = SimulatedWorld(1000)

    stopped = world.run_stepwise(agree(asked_at, 8), random.Random(seed).shuffle)

    assert set(stopped) == {min(asked_at.values()) + 1 if asked_at else 8}


def test_a_rank_cannot_wait_for_later_ranks_in_the_same_thread() -> None:
    """A generator that waits too early gets an error that names the missing ranks; killed ranks end alone."""

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


def test_two_hundred_threads_detect_a_deadlock_at_once() -> None:
    """If one of many ranks never arrives, all fail without real waiting."""
    outcomes = SimulatedWorld(200, [Kill(77, 1)], timeout=1e6).outcomes(sum_of_ranks)

    missing = [outcome.error.missing for outcome in outcomes if isinstance(outcome.error, CollectiveError)]
    assert missing == [(77,)] * 199
