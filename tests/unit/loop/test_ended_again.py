"""Resumed runs that end before their first step, and logs without a norm or a rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.domain.events import StepEnded, TrainBegan
from hexloop.domain.loop import StandardLearner, train
from hexloop.domain.run import NoCheckpoints
from hexloop.domain.state import RunState
from hexloop.testing import LeastSquares
from tests.unit.loop.small import every, make_small, names, resume


@pytest.mark.parametrize(("at", "announced"), [(3, True), (0, False)])
def test_a_run_that_is_stopped_at_its_start_takes_no_step(at: int, announced: bool) -> None:
    """A callback that stops the run at its start also ends a started epoch; nothing else happens."""
    first = make_small(triggers=every(save=1))
    for event in train(first.run):
        if isinstance(event, StepEnded) and event.step == at:
            first.run.control.should_training_stop = True
    again = make_small(storage=first.storage)
    if at:
        resume(again, f"checkpoint-{at}")
        again.run.state.epoch_ended = False
    seen: list[Any] = []
    for event in train(again.run):
        seen.append(event)
        if isinstance(event, TrainBegan):
            again.run.control.should_training_stop = True
    event_names = names(seen)
    assert "StepBegan" not in event_names
    assert ("EpochEnded" in event_names) is announced
    assert event_names[-1] == "TrainEnded"
    assert again.run.state.step == at


def test_a_run_that_ended_within_an_epoch_stays_finished() -> None:
    """Resumed at its last step, it does not report that epoch again."""
    first = make_small(max_steps=3, triggers=every(save=1))
    first.events()
    again = make_small(max_steps=3, storage=first.storage)
    resume(again, "checkpoint-3")
    again.run.state.epoch_ended = True
    assert names(again.events()) == ["TrainBegan", "Logged", "TrainEnded"]


class WithoutNorm(StandardLearner[Any, Any]):
    """Updates without measuring the gradient norm."""

    def update(self, max_norm: float) -> tuple[None, bool]:
        """Make the standard update, and return no norm."""
        return None, super().update(max_norm)[1]


def without_norm(trainable: LeastSquares) -> WithoutNorm:
    """Return a learner that does not measure the gradient norm."""
    return WithoutNorm(trainable, PlainPrecision(), SingleProcess())


def test_a_log_without_a_measured_norm_has_none() -> None:
    """A learner that does not measure the norm gives logs without one, and checkpoints that can be resumed from."""
    small = make_small(triggers=every(log=2, save=2), learner=without_norm)
    small.events()
    logs: Sequence[dict[str, float]] = small.logs
    assert logs
    assert all("grad_norm" not in values for values in logs)
    again = make_small(storage=small.storage, learner=without_norm)
    resume(again, "checkpoint-2")
    assert again.run.state.gradient_norm is None


def test_a_pending_log_may_have_no_learning_rate() -> None:
    """A run of another library may have a pending log of steps whose learning rate was not recorded."""
    small = make_small()
    small.run.state = RunState(run="small", step=2, due=["log"])
    small.run.checkpoints = NoCheckpoints()
    list(train(small.run))
    assert "learning_rate" not in small.logs[0]
    assert small.logs[0]["loss"] == 0
