"""A run that somebody had ended is resumed, and ended again before its first step."""

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
def test_a_run_that_is_ended_as_it_begins_takes_no_step(at: int, announced: bool) -> None:
    """Who ends the run when it begins again ends its epoch, too, if that was begun; nothing else happens."""
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
    told = names(seen)
    assert "StepBegan" not in told
    assert ("EpochEnded" in told) is announced
    assert told[-1] == "TrainEnded"
    assert again.run.state.step == at


def test_a_run_that_its_plan_ended_within_an_epoch_is_over() -> None:
    """Resumed at its last step, it does not tell of that epoch again."""
    first = make_small(max_steps=3, triggers=every(save=1))
    first.events()
    again = make_small(max_steps=3, storage=first.storage)
    resume(again, "checkpoint-3")
    again.run.state.epoch_ended = True
    assert names(again.events()) == ["TrainBegan", "Logged", "TrainEnded"]


class Unmeasured(StandardLearner[Any, Any]):
    """Updates, and measures no gradient."""

    def update(self, max_norm: float) -> tuple[None, bool]:
        """The standard update, without its norm."""
        return None, super().update(max_norm)[1]


def unmeasured(trainable: LeastSquares) -> Unmeasured:
    """A learner whose gradients nobody measures."""
    return Unmeasured(trainable, PlainPrecision(), SingleProcess())


def test_a_log_has_no_norm_that_nobody_measured() -> None:
    """A learner that measures no gradient gives logs without one, and checkpoints that can be resumed from."""
    small = make_small(triggers=every(log=2, save=2), learner=unmeasured)
    small.events()
    logs: Sequence[dict[str, float]] = small.logs
    assert logs
    assert all("grad_norm" not in values for values in logs)
    again = make_small(storage=small.storage, learner=unmeasured)
    resume(again, "checkpoint-2")
    assert again.run.state.gradient_norm is None


def test_a_log_that_is_still_owed_may_know_no_rate() -> None:
    """A run that another library began owes a log of steps whose learning rate nobody noted."""
    small = make_small()
    small.run.state = RunState(run="small", step=2, due=["log"])
    small.run.checkpoints = NoCheckpoints()
    list(train(small.run))
    assert "learning_rate" not in small.logs[0]
    assert small.logs[0]["loss"] == 0
