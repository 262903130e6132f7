"""Complete runs on fakes: the production loop and a model of floats, without a framework."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.trainable.least_squares import Row
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import Logged, StepEnded, TrainEnded
from hexloop.domain.loop import StandardLearner, train
from hexloop.domain.requests import Requests, SharedAgreement
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.ports.collectives import Collectives
from hexloop.testing import (
    LeastSquares,
    MemoryStorage,
    PlainLosses,
    PlainPrecision,
    SimulatedWorld,
    SingleProcess,
    least_squares,
    sharded_least_squares,
    simulated_run,
)

LINE: list[Row] = [((index / 20,), 2 * index / 20 + 1) for index in range(20)]
PLANE: list[Row] = [((x / 4, y / 8), x / 2 - y / 8 + 1) for x in range(-2, 3) for y in range(4)]


def test_a_run_fits_a_line() -> None:
    """Three hundred epochs on twenty points of y = 2 x + 1 fit the line, and the logged losses fall."""
    trainable = least_squares()
    run = simulated_run(LINE, trainable=trainable, epochs=300.0, triggers=Triggers(log=Trigger(Interval.STEPS, 100)))

    losses = [event.values["loss"] for event in train(run) if isinstance(event, Logged) and "loss" in event.values]

    assert trainable.model.parameters == pytest.approx([2.0, 1.0], abs=1e-3)
    assert len(losses) == 9
    assert losses == sorted(losses, reverse=True)


def test_a_default_model_fits_the_rows() -> None:
    """Without a given model, one with as many features as the rows is trained."""
    events = list(train(simulated_run(PLANE, max_steps=4, accumulation=2)))

    norms = [float(str(event.gradient_norm)) for event in events if isinstance(event, StepEnded)]
    assert len(norms) == 4
    assert isinstance(events[-1], TrainEnded)
    assert not events[-1].stopped


EVERY_STEP = Trigger(Interval.STEPS, 1)
EVERY_FOURTH = Trigger(Interval.STEPS, 4)
History = list[Mapping[str, float]]


def run_in(storage: MemoryStorage, stop_after: int | None = None) -> tuple[LeastSquares, History]:
    """Run 17 steps in a new process, from the newest checkpoint in `storage` if there is one."""
    trainable, losses, requests = least_squares(), PlainLosses(), Requests()
    contents = CheckpointContents({"model": trainable.model, "optimizer": trainable.optimizer, "losses": losses})
    store = CheckpointStore(storage, contents)
    history: History = []
    run = simulated_run(
        LINE,
        trainable=trainable,
        max_steps=17,
        accumulation=2,
        state=store.resume() or RunState(run="mine"),
        losses=losses,
        checkpoints=store,
        requests=requests,
        triggers=Triggers(log=EVERY_FOURTH, save=EVERY_STEP),
        report=history.append,
    )
    for event in train(run):
        if isinstance(event, StepEnded) and event.step == stop_after:
            requests.request_stop()
    return trainable, history


def test_a_resumed_run_equals_an_uninterrupted_one() -> None:
    """Stopped at any step and resumed in a new process, a run ends with the same weights and logs."""
    whole, history = run_in(MemoryStorage())
    losses = [(entry["loss"], entry["learning_rate"]) for entry in history if "loss" in entry]
    assert len(losses) == 4

    for stop_after in range(1, 17):
        storage = MemoryStorage()
        _, before = run_in(storage, stop_after)
        storage.crash()
        resumed, after = run_in(storage)
        assert resumed.model.parameters == whole.model.parameters
        assert resumed.optimizer.velocity == whole.optimizer.velocity
        assert [(entry["loss"], entry["learning_rate"]) for entry in before + after if "loss" in entry] == losses


@pytest.mark.parametrize("requested", [0, 1, 2])
def test_all_ranks_stop_at_the_same_step(requested: int) -> None:
    """Sharded ranks train together; a stop that one rank receives stops all of them at the same step."""

    def run_rank(rank: Collectives) -> tuple[int, bool, list[float]]:
        trainable = sharded_least_squares(rank, 2)
        learner = StandardLearner(trainable, PlainPrecision(), SingleProcess())
        requests = Requests()
        run = simulated_run(
            PLANE[rank.rank :: 2],
            learner=learner,
            max_steps=50,
            requests=requests,
            agreement=SharedAgreement(requests, rank),
        )
        for event in train(run):
            if isinstance(event, StepEnded) and event.step == 7 and rank.rank == requested:
                requests.request_stop()
        return run.state.step, run.stopped, trainable.model.whole_parameters()

    outcomes = SimulatedWorld(2).run(run_rank)

    assert outcomes[0] == outcomes[1]
    assert outcomes[0][:2] == ((8, True) if requested < 2 else (50, False))
