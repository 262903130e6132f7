"""Tests of training code with fakes: the loop is real; the model, the disk and the other processes are fakes.

Nothing here imports a framework, and all of it takes milliseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CollectiveError
from hexloop.domain.events import AnyEvent, Logged, SaveFailed, StepEnded, TrainEnded
from hexloop.domain.loop import train
from hexloop.domain.requests import Requests, SharedAgreement
from hexloop.domain.run import Run
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.ports.collectives import Collectives
from hexloop.testing import (
    Died,
    Effect,
    Fault,
    FaultyStorage,
    Kill,
    LeastSquares,
    MemoryStorage,
    PlainLosses,
    RankKilled,
    SimulatedWorld,
    least_squares,
    simulated_run,
)

ROWS = [((x / 10,), 3 * x / 10 - 1) for x in range(20)]
"""Points on the line y = 3 x - 1, as pairs of features and target."""

EVERY_STEP = Trigger(Interval.STEPS, 1)


def until_loss(run: Run, wanted: float) -> Iterator[AnyEvent]:
    """Drive a run until a logged loss is low enough. This is the code under test."""
    for event in train(run):
        yield event
        if isinstance(event, Logged) and event.values.get("loss", wanted) < wanted:
            run.requests.request_stop("the loss is low enough")


def test_the_run_ends_when_the_loss_is_low_enough() -> None:
    """Training stops long before 1,000 epochs."""
    run = simulated_run(ROWS, epochs=1000, triggers=Triggers(log=EVERY_STEP))
    *_, last = until_loss(run, 0.01)
    assert isinstance(last, TrainEnded)
    assert last.stopped
    assert 1 < last.step < 3000


def trained(storage: FaultyStorage | MemoryStorage) -> LeastSquares:
    """Train for 12 steps with a save at each, resuming from the newest checkpoint on `storage`; return the model."""
    model, losses = least_squares(), PlainLosses()
    contents = CheckpointContents({"model": model.model, "optimizer": model.optimizer, "losses": losses})
    store = CheckpointStore(storage, contents)
    run = simulated_run(
        ROWS,
        trainable=model,
        max_steps=12,
        losses=losses,
        state=store.resume() or RunState(run="ours"),
        checkpoints=store,
        triggers=Triggers(save=EVERY_STEP),
    )
    for _ in train(run):
        pass
    return model


def test_a_crash_at_any_moment_changes_nothing() -> None:
    """Wherever the process dies during a disk operation, the resumed run reaches the same weights."""
    whole = FaultyStorage(MemoryStorage())
    expected = trained(whole).model.parameters
    for operation in range(1, len(whole.operations) + 1, 23):
        disk = MemoryStorage()
        with pytest.raises(Died):
            trained(FaultyStorage(disk, [Fault(operation, Effect.DIE)]))
        disk.crash()
        assert trained(disk).model.parameters == expected


def test_a_save_that_fails_does_not_end_the_run() -> None:
    """A failed write is reported as an event, and the run finishes."""
    storage = FaultyStorage(MemoryStorage(), [Fault(1, Effect.FAIL, operation="write")])
    model = least_squares()
    store = CheckpointStore(storage, CheckpointContents({"model": model.model}))
    run = simulated_run(ROWS, trainable=model, max_steps=3, checkpoints=store, triggers=Triggers(save=EVERY_STEP))
    with pytest.warns(UserWarning, match="checkpoint-1 was not saved"):
        events = list(train(run))
    assert [event.step for event in events if isinstance(event, SaveFailed)] == [1]
    assert isinstance(events[-1], TrainEnded)


def test_all_processes_stop_at_one_step() -> None:
    """A stop requested in one of four processes ends all of them at the same step."""

    def run_process(process: Collectives) -> int:
        requests = Requests()
        run = simulated_run(ROWS, max_steps=50, requests=requests, agreement=SharedAgreement(requests, process))
        for event in train(run):
            if isinstance(event, StepEnded) and event.step == 7 and process.rank == 2:
                requests.request_stop()
        return run.state.step

    steps = SimulatedWorld(4).run(run_process)
    assert len(set(steps)) == 1
    assert 7 <= steps[0] <= 9


def test_a_process_that_dies_is_named() -> None:
    """The other processes report the missing rank instead of waiting forever; simulated time needs no real time."""
    world = SimulatedWorld(3, faults=[Kill(rank=1, operation=1)], timeout=600)
    first, killed, last = world.outcomes(lambda process: process.barrier("start"))
    assert isinstance(killed.error, RankKilled)
    for outcome in (first, last):
        assert isinstance(outcome.error, CollectiveError)
        assert outcome.error.missing == (1,)


def test_no_framework_was_needed() -> None:
    """None of the tests above imported torch."""
    assert "torch" not in sys.modules
