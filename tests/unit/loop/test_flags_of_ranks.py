"""Flags that callbacks set on some ranks only: all ranks act the same at the same steps, without deadlock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.collectives.simulated import SimulatedWorld
from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.contents.file_names import RankFiles
from hexloop.adapters.losses import PlainLosses
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.testing.simulated_run import simulated_run
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import EpochBegan, EpochEnded, Evaluated, Logged, Saved, StepEnded
from hexloop.domain.loop import train
from hexloop.domain.ranks import SharedLosses
from hexloop.domain.requests import Requests, SharedAgreement, make_agreement
from hexloop.domain.run import Evaluation
from hexloop.domain.state import RunState
from hexloop.domain.triggers import ControlFlags
from hexloop.ports.collectives import Collectives
from hexloop.ports.mesh import flat_mesh
from tests.examples import examples

ROWS = [((float(number), 1.0), 2.0 * number) for number in range(12)]
SEEN = (EpochBegan, EpochEnded, Logged, Saved, Evaluated)
MOMENTS = (StepEnded, Logged, Evaluated, Saved, EpochEnded)
Decision = tuple[int, type[Any], str, frozenset[int]]
"""A step, an event type at that step, a flag, and the ranks whose callbacks set it."""


def actions_of_ranks(
    decisions: list[Decision], storage: MemoryStorage
) -> Callable[[Collectives], list[tuple[str, int]]]:
    """Train three epochs of four steps on each rank, and return which actions were done at which step."""

    def run_rank(rank: Collectives) -> list[tuple[str, int]]:
        done: list[tuple[str, int]] = []

        def evaluate() -> Evaluation:
            rank.barrier("an evaluation")  # a rank that evaluates alone would wait forever
            yield Evaluated(run.state.step, {})
            return {}

        contents = CheckpointContents({}, ranks=RankFiles(flat_mesh(rank.rank, rank.world_size)))
        run = simulated_run(
            ROWS,
            batch_size=3,
            losses=SharedLosses(PlainLosses(), rank) if rank.world_size > 1 else PlainLosses(),
            evaluate=evaluate,
            checkpoints=CheckpointStore(storage, contents, collectives=rank),
            state=RunState(run="mine"),
        )
        run.agreement = make_agreement(run.requests, rank)
        for event in train(run):
            if isinstance(event, SEEN):
                done.append((type(event).__name__, event.step))
            for step, moment, switch, ranks in decisions:
                if isinstance(event, moment) and event.step == step and rank.rank in ranks:
                    run.control.assign({switch}, True)
        return done

    return run_rank


def flags(ranks: st.SearchStrategy[frozenset[int]]) -> st.SearchStrategy[list[Decision]]:
    """Draw some flags."""
    decision = st.tuples(st.integers(1, 12), st.sampled_from(MOMENTS), st.sampled_from(ControlFlags.NAMES), ranks)
    return st.lists(decision, max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(flags(st.frozensets(st.integers(0, 3), min_size=1)), st.integers(2, 4))
def test_all_ranks_act_the_same_at_the_same_steps(decisions: list[Decision], size: int) -> None:
    """Whichever ranks set which flags at whichever event, no rank waits forever."""
    done = SimulatedWorld(size, timeout=5).run(actions_of_ranks(decisions, MemoryStorage()))
    assert done == [done[0]] * size


@settings(max_examples=examples(40), deadline=None)
@given(flags(st.just(frozenset(range(3)))))
def test_a_flag_set_on_all_ranks_acts_as_in_one_process(decisions: list[Decision]) -> None:
    """It takes effect at the same step as in a single process."""
    alone = SimulatedWorld(1).run(actions_of_ranks(decisions, MemoryStorage()))
    assert SimulatedWorld(3).run(actions_of_ranks(decisions, MemoryStorage())) == alone * 3


@pytest.mark.parametrize(
    ("switch", "done"),
    [("should_log", "Logged"), ("should_evaluate", "Evaluated"), ("should_save", "Saved"),
     ("should_epoch_stop", "EpochEnded")],
)  # fmt: skip
def test_a_flag_set_on_one_rank_acts_one_boundary_later(switch: str, done: str) -> None:
    """It takes effect a step later, as the other ranks had started that step before they learned of it."""
    decided: Decision = (5, StepEnded, switch, frozenset({1}))
    for did in SimulatedWorld(2).run(actions_of_ranks([decided], MemoryStorage())):
        assert (done, 6) in did
        assert (done, 5) not in did


def test_a_stop_on_one_rank_acts_one_boundary_later() -> None:
    """The epoch ends there."""
    decided: Decision = (5, StepEnded, "should_training_stop", frozenset({1}))
    for did in SimulatedWorld(2).run(actions_of_ranks([decided], MemoryStorage())):
        assert did[-2:] == [("EpochEnded", 6), ("Logged", 6)]


ACTIONS = {"should_log": Logged, "should_evaluate": Evaluated, "should_save": Saved}


@pytest.mark.parametrize("decided", ["should_training_stop", "should_epoch_stop"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_flag_set_after_an_action_is_agreed_on(action: str, decided: str) -> None:
    """The other ranks learn of it at the end of the next step, and none leaves earlier."""
    everybody: Decision = (5, StepEnded, action, frozenset({0, 1}))
    one: Decision = (5, ACTIONS[action], decided, frozenset({1}))
    first, second = SimulatedWorld(2, timeout=5).run(actions_of_ranks([everybody, one], MemoryStorage()))
    assert first == second
    assert (ACTIONS[action].__name__, 5) in first
    assert ("EpochEnded", 6) in first
    assert ("EpochEnded", 5) not in first


def test_without_flags_no_rank_waits() -> None:
    """Each of a thousand ranks passes boundary after boundary before the later ranks reach the same one."""

    def boundaries(rank: Collectives) -> Generator[None, None, int]:
        agreement, control = SharedAgreement(Requests(), rank), ControlFlags()
        for _ in range(5):
            agreement.start_boundary(control)
            assert not agreement.agreed_requests().stop
            yield
        return 5

    assert SimulatedWorld(1000).run_stepwise(boundaries) == [5] * 1000
