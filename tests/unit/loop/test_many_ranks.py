"""Runs of many simulated ranks agree on everything, and a failing rank is reported to all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.collectives.simulated import Kill, RankKilled, SimulatedWorld
from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.contents.file_names import RankFiles
from hexloop.adapters.losses import PlainLosses
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.testing.simulated_run import simulated_run
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CollectiveError
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.events import Evaluated, StepEnded
from hexloop.domain.loop import train
from hexloop.domain.ranks import SharedLosses
from hexloop.domain.requests import make_agreement
from hexloop.domain.run import Evaluation
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.ports.collectives import Collectives
from hexloop.ports.mesh import flat_mesh
from tests.examples import examples

ROWS = [((float(number), 1.0), 2.0 * number) for number in range(8)]
EVERY_STEP = Trigger(Interval.STEPS, 1)
METRICS = [0.5, 0.9, 0.4, 0.7]


@frozen
class Ended:
    """The end of a rank's run."""

    step: int
    stopped: bool
    best_metric: float | None
    best_checkpoint: str | None
    history: tuple[float, ...]


def training(storage: MemoryStorage, metrics: list[float], stops: dict[int, int]) -> Callable[[Collectives], Ended]:
    """Return a run that evaluates, saves and rotates at every step; `stops` maps a rank to the step of its stop
    request.
    """

    def run_rank(rank: Collectives) -> Ended:
        logged: list[float] = []

        def evaluate() -> Evaluation:
            found = {"eval_right": metrics[run.state.step - 1]}
            yield Evaluated(run.state.step, found)
            return found

        store = CheckpointStore(
            storage,
            CheckpointContents({}, ranks=RankFiles(flat_mesh(rank.rank, rank.world_size))),
            CheckpointPolicy(2, keep_best=True),
            collectives=rank,
        )
        run = simulated_run(
            ROWS,
            batch_size=1,
            max_steps=len(metrics),
            losses=SharedLosses(PlainLosses(), rank),
            report=lambda values: logged.append(values.get("loss", 0.0)),
            evaluate=evaluate,
            best=BestMetric("eval_right", greater_is_better=True),
            triggers=Triggers(log=EVERY_STEP, evaluate=EVERY_STEP, save=EVERY_STEP),
            checkpoints=store,
            state=RunState(run="mine"),
        )
        run.agreement = make_agreement(run.requests, rank)
        for event in train(run):
            if isinstance(event, StepEnded) and stops.get(rank.rank) == event.step:
                run.requests.request_stop()
        state = run.state
        return Ended(state.step, run.stopped, state.best_metric, state.best_checkpoint, tuple(logged))

    return run_rank


def check(size: int, metrics: list[float], stops: dict[int, int]) -> None:
    """Check that all ranks end the same, with only the best and the newest checkpoint left."""
    storage = MemoryStorage()
    ended = SimulatedWorld(size, timeout=60).run(training(storage, metrics, stops))
    assert ended == [ended[0]] * size
    first = min((step for rank, step in stops.items() if rank < size), default=None)
    assert ended[0].stopped == (first is not None and first <= len(metrics))
    done = metrics[: ended[0].step]
    assert ended[0].best_metric == max(done)
    best = done.index(max(done)) + 1
    assert ended[0].best_checkpoint == f"checkpoint-{best}"
    kept = {best, len(done)} if best != len(done) else {len(done) - 1, len(done)} - {0}
    assert set(checkpoint_steps(storage)) == kept
    for step in kept:
        assert verify(storage, f"checkpoint-{step}").manifest.world_size == size


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(2, 8),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.dictionaries(st.integers(0, 7), st.integers(1, 5), max_size=2),
)
def test_ranks_agree_on_stop_save_best_and_rotation(size: int, metrics: list[float], stops: dict[int, int]) -> None:
    """This holds for any metrics, and for a stop request on any rank at any step."""
    check(size, metrics, stops)


@pytest.mark.parametrize("size", [50, pytest.param(1000, marks=pytest.mark.matrix)])
def test_many_ranks_agree(size: int) -> None:
    """One rank in the middle is asked to stop."""
    check(size, METRICS, {size // 2: 2})


def failing(rank_that_fails: int) -> Callable[[Collectives], None]:
    """Return ranks that add up numbers, one of which fails."""

    def run_rank(rank: Collectives) -> None:
        if rank.rank == rank_that_fails:
            rank.tell_failure("ValueError: a bug")
            raise ValueError("a bug")
        rank.barrier("the end")

    return run_rank


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 999))
def test_a_thousand_ranks_learn_which_one_failed(failed: int) -> None:
    """All other ranks learn it at once."""
    world = SimulatedWorld(1000)
    for outcome in world.outcomes(failing(failed)):
        if outcome.rank != failed:
            assert isinstance(outcome.error, CollectiveError)
            assert f"rank {failed} failed: ValueError: a bug" in str(outcome.error)
            assert outcome.error.missing == (failed,)
    assert world.now == 0.0


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(2, 6), st.integers(0, 5), st.integers(1, 60))
def test_a_rank_that_dies_leaves_only_complete_checkpoints(size: int, dead: int, operation: int) -> None:
    """At whichever message it dies, the other ranks raise an error that names it, and checkpoints are complete."""
    dead %= size
    storage = MemoryStorage()
    world = SimulatedWorld(size, [Kill(dead, operation)], timeout=5)
    outcomes = world.outcomes(training(storage, METRICS, {}))
    for outcome in outcomes:
        if isinstance(outcomes[dead].error, RankKilled) and outcome.rank != dead:
            assert isinstance(outcome.error, CollectiveError), outcome
            assert dead in outcome.error.missing
    for step in checkpoint_steps(storage):
        verify(storage, f"checkpoint-{step}")
