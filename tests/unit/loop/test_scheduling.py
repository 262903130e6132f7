"""Schedules driven by the loop, and the standard step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hexloop.adapters.scheduler import ScheduledRates
from hexloop.adapters.scheduler.torch.run_schedules import MetricScheduler
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.events import StepEnded
from hexloop.domain.json_documents import json_part
from hexloop.domain.loop import StandardLearner, train
from hexloop.domain.schedules import Linear
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.testing import LeastSquares, PlainPrecision, SingleProcess
from tests.unit.loop.small import every, make_small


def test_rates_are_those_of_the_next_update() -> None:
    """Before update n the rates are the schedule's at n, and each log has the rate that was used."""
    put: list[tuple[float, ...]] = []
    schedule = Linear(num_warmup_steps=2, num_training_steps=8)
    scheduler = ScheduledRates(schedule, (0.1, 0.2), lambda rates: put.append(tuple(rates)))
    assert scheduler.rates() == (0.1, 0.2)
    small = make_small(scheduler=scheduler, epochs=1, triggers=every(log=1))
    small.events()
    assert put == [(0.1 * schedule(step), 0.2 * schedule(step)) for step in range(9)]
    assert [log["learning_rate"] for log in small.logs if "loss" in log] == [0.1 * schedule(n) for n in range(8)]
    assert list(scheduler.export()) == []
    scheduler.load([])
    scheduler.observe({})
    assert scheduler.rates() == put[-1]
    assert scheduler.updates == 8


def test_the_rates_of_named_groups_are_logged() -> None:
    """Each log has the rate that each of them was trained with in the step before; that of others is not logged."""
    schedule = Linear(num_warmup_steps=2, num_training_steps=8)
    scheduler = ScheduledRates(schedule, (0.1, 0.2, 0.4), lambda rates: None)
    small = make_small(scheduler=scheduler, rate_groups={"head": 2}, epochs=1, triggers=every(log=1))
    small.events()
    logs = [log for log in small.logs if "loss" in log]
    assert [log["learning_rate/head"] for log in logs] == [0.4 * schedule(step) for step in range(8)]
    assert [log["learning_rate"] for log in logs] == [0.1 * schedule(step) for step in range(8)]
    assert {name for log in logs for name in log if "rate" in name} == {"learning_rate", "learning_rate/head"}


def test_an_adaptive_schedule_follows_the_evaluations() -> None:
    """The rate falls after an evaluation without improvement, and the next update uses it."""

    def rates() -> MetricScheduler:
        plateau = ReduceLROnPlateau(SGD([torch.ones(1)], lr=0.1), factor=0.5, patience=0)
        return MetricScheduler(plateau, BestMetric("loss"))

    scheduler, put = rates(), []
    scheduler.start(0)
    for loss in (1.0, 2.0, 0.5, 0.9):
        put.append(scheduler.rates())
        scheduler.advance(7)
        scheduler.observe({"eval_loss": loss})
    assert put == [(0.1,), (0.1,), (0.05,), (0.05,)]
    again = rates()
    again.load(scheduler.export())
    again.start(3)
    assert again.rates() == scheduler.rates() == (0.025,)
    scheduler.observe({"eval_loss": 0.4})
    again.observe({"eval_loss": 0.4})
    assert [part.read() for part in again.export()] == [part.read() for part in scheduler.export()]
    with pytest.raises(ConfigurationError, match="eval_loss"):
        scheduler.observe({"eval_f1": 1.0})
    with pytest.raises(ValueError, match="adaptive"):
        again.load([json_part("other", 1)])


def test_a_schedule_observes_each_evaluation_once() -> None:
    """The schedule observes the metrics of each completed evaluation."""

    class Watching(ScheduledRates):
        def observe(self, metrics: Any) -> None:
            seen.append(metrics["eval_loss"])

    seen: list[float] = []
    small = make_small(triggers=every(evaluate=4), scheduler=Watching(lambda _: 1.0, (0.1,), lambda _: None))
    small.events()
    assert seen == [log["eval_loss"] for log in small.logs if "eval_loss" in log]
    assert len(seen) == 4


def test_saving_the_best_saves_after_each_improvement() -> None:
    """With save on BEST a checkpoint follows each evaluation with a new best, and no other."""
    metrics = iter([3.0, 1.0, 2.0, 0.5])

    def evaluate() -> Any:
        yield from ()
        return {"eval_loss": next(metrics)}

    triggers = Triggers(evaluate=Trigger(Interval.STEPS, 4), save=Trigger(Interval.BEST))
    small = make_small(triggers=triggers, evaluate=evaluate, best=BestMetric("loss"))
    small.events()
    assert {entry.name for entry in small.storage.list("")} == {"checkpoint-4", "checkpoint-8", "checkpoint-16"}
    assert (small.run.state.best_metric, small.run.state.best_step) == (0.5, 16)


def test_an_unsafe_update_is_skipped_and_the_schedule_waits() -> None:
    """A step whose gradients overflowed counts as a step but not as an update."""

    class Unsafe:
        """A learner that skips every third update."""

        def __init__(self, trainable: LeastSquares) -> None:
            self.updates, self.trainable = 0, trainable

        def count_items(self, window: Sequence[Any]) -> object:
            return None

        def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> float:
            return 1.0

        def update(self, max_norm: float) -> tuple[None, bool]:
            self.updates += 1
            return None, self.updates % 3 != 0

    small = make_small(learner=Unsafe, epochs=1, triggers=every(log=8))
    taken = [event.taken for event in train(small.run) if isinstance(event, StepEnded)]
    assert taken == [True, True, False, True, True, False, True, True]
    assert (small.run.state.step, small.run.state.updates) == (8, 6)
    assert "grad_norm" not in small.logs[0]


def test_the_standard_step_calls_its_parts_in_order() -> None:
    """Synchronise, forward, scale, backward; then unscale, clip, notify, step, notify, clear."""
    order: list[str] = []

    def noted(name: str, action: Any) -> Any:
        def act(*args: Any) -> Any:
            order.append(name)
            return action(*args)

        return act

    class Noting(SingleProcess):
        def synchronise(self, last_of_window: bool) -> None:
            order.append(f"synchronise {last_of_window}")

        def backward(self, loss: Any) -> None:
            order.append("backward")
            super().backward(loss)

    class NotingPrecision:
        name = "noted"

        def wrap(self, forward: Any) -> Any:
            order.append("wrap")
            return noted("forward", forward)

        def scale(self, loss: Any) -> Any:
            order.append("scale")
            return loss

        def unscale(self, optimizer: Any) -> None:
            order.append("unscale")

        def step(self, optimizer: Any) -> bool:
            order.append("step")
            optimizer.step()
            return True

    def learner(trainable: LeastSquares) -> Any:
        trainable.clip = noted("clip", trainable.clip)  # type: ignore[method-assign]
        trainable.clear_gradients = noted("clear", trainable.clear_gradients)  # type: ignore[method-assign]
        precision: Any = NotingPrecision()
        before, after = (lambda: order.append("before")), (lambda: order.append("after"))
        return StandardLearner(trainable, precision, Noting(), before, after)

    make_small(learner=learner, accumulation=2, max_steps=1).events()
    micro = ["forward", "scale", "backward"]
    update = ["unscale", "clip", "before", "step", "after", "clear"]
    assert order == ["wrap", "synchronise False", *micro, "synchronise True", *micro, *update]


def test_the_standard_step_needs_no_listeners() -> None:
    """A step without listeners trains like one with them."""
    calls: list[str] = []

    def with_listeners(trainable: LeastSquares) -> Any:
        def listen() -> None:
            calls.append("called")

        return StandardLearner(trainable, PlainPrecision(), SingleProcess(), listen, listen)

    plain, listened = make_small(), make_small(learner=with_listeners)
    plain.events(), listened.events()
    assert listened.parameters == plain.parameters
    assert len(calls) == 32


def test_what_reads_gradients_is_called_before_they_are_cleared() -> None:
    """With whether the step was taken, after the optimizer's step and its listeners."""
    order: list[object] = []

    def learner(trainable: LeastSquares) -> Any:
        clear = trainable.clear_gradients

        def noted_clear() -> None:
            order.append("clear")
            clear()

        trainable.clear_gradients = noted_clear  # type: ignore[method-assign]
        standard = StandardLearner(trainable, PlainPrecision(), SingleProcess(), None, lambda: order.append("after"))
        standard.before_clearing = order.append
        return standard

    make_small(learner=learner, max_steps=1).events()
    assert order == ["after", True, "clear"]
