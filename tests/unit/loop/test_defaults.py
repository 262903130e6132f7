"""Runs that leave out optional parts."""

from __future__ import annotations

import pytest

from hexloop.domain.events import StepEnded, TrainEnded
from hexloop.domain.loop import train
from hexloop.domain.run import NoCheckpoints, Run, no_evaluation
from hexloop.domain.triggers import Trigger, Triggers
from tests.unit.loop.small import every, make_small, names, resume


def test_without_checkpoints_saving_does_nothing() -> None:
    """A run without a store takes no checkpoint, and ends as usual."""
    small = make_small(triggers=every(save=2))
    small.run.checkpoints = NoCheckpoints()
    assert names(small.events())[-1] == "TrainEnded"
    assert small.storage.list("") == ()
    assert not NoCheckpoints().has_news
    assert list(NoCheckpoints().collect()) == []


def test_without_data_an_evaluation_is_empty() -> None:
    """An evaluation without data is complete at once, with no metrics and no event."""
    small = make_small(triggers=every(evaluate=2), evaluate=no_evaluation)
    assert "Evaluated" not in names(small.events())


def test_a_report_is_optional() -> None:
    """A run without a report trains like one with it."""
    small, silent = make_small(triggers=every(log=2)), make_small(triggers=every(log=2))
    small.events()
    run = silent.run
    bare = Run(run.learner, run.batches, run.losses, run.scheduler, run.clock, run.plan, triggers=run.triggers)
    list(train(bare))
    assert bare.state.step == small.run.state.step
    assert bare.state.history == []


def test_triggers_may_change_during_a_run() -> None:
    """New intervals apply from the next step on, even if nothing was due for long under the old ones."""
    small = make_small(epochs=1)
    for event in train(small.run):
        if isinstance(event, StepEnded) and event.step == 3:
            small.run.change_triggers(every(log=2))
    assert [log["step"] for log in small.run.state.history if "loss" in log] == [4, 6, 8]
    assert Triggers() == Triggers(Trigger(), Trigger(), Trigger())


def test_speed_is_measured_from_the_start_of_this_process() -> None:
    """A resumed run's speed counts only the steps that it made itself."""
    small = make_small(epochs=1)
    for event in train(small.run):
        if isinstance(event, StepEnded):
            small.clock.advance(0.5)
    assert small.logs[-1]["train_runtime"] == 4.0
    assert small.logs[-1]["train_steps_per_second"] == 2.0
    assert small.logs[-1]["train_samples_per_second"] == 4.0


def test_a_resumed_run_measures_its_own_speed() -> None:
    """Time and steps before this process started to train do not count; the mean loss is over the whole run."""
    first = make_small(triggers=every(log=4, save=8))
    for event in train(first.run):
        if isinstance(event, StepEnded):
            first.clock.advance(0.5)
    again = make_small(triggers=every(log=4, save=8), storage=first.storage)
    resume(again, "checkpoint-8")
    again.clock.advance(100)
    for event in train(again.run):
        if isinstance(event, StepEnded):
            again.clock.advance(0.25)
    figures = again.logs[-1]
    assert (figures["train_runtime"], figures["train_steps_per_second"]) == (2.0, 4.0)
    assert figures["train_samples_per_second"] == 8.0
    assert figures["train_loss"] == first.logs[-1]["train_loss"]


def test_the_mean_loss_covers_all_logs() -> None:
    """With a log every fourth of 16 steps, the run's loss is the mean of the logged ones."""
    small = make_small(triggers=every(log=4))
    small.events()
    logged = [log["loss"] for log in small.logs if "loss" in log]
    assert small.logs[-1]["train_loss"] == pytest.approx(sum(logged) / 4)
    unlogged = make_small()
    unlogged.events()
    assert unlogged.logs[-1]["train_loss"] == pytest.approx(small.logs[-1]["train_loss"])


def test_gradients_are_not_clipped_by_default() -> None:
    """A run without a maximum norm leaves the gradients unchanged."""
    clipped, free, default = make_small(max_norm=0.1), make_small(max_norm=0), make_small()
    bare = Run(*(getattr(default.run, name) for name in ("learner", "batches", "losses", "scheduler", "clock", "plan")))
    clipped.events(), free.events(), list(train(bare))
    assert default.parameters == free.parameters != clipped.parameters


def test_operations_are_counted() -> None:
    """The state has the sum of what the counters add."""
    small = make_small(epochs=1)

    def count(batch: list[object]) -> None:
        small.run.state.operations += 10.0

    small.run.counters = [count]
    small.events()
    assert small.logs[-1]["total_flos"] == 80.0


def test_additional_metrics_are_reported_once() -> None:
    """They are in the last log and in the result of the run."""
    small = make_small(max_steps=2)
    steps: list[int] = []

    def further() -> dict[str, float]:
        steps.append(small.run.state.step)
        return {"train_tokens_per_second": 12.0}

    small.run.further_figures = further
    ended = small.events()[-1]
    assert steps == [2]
    assert small.logs[-1]["train_tokens_per_second"] == 12.0
    assert isinstance(ended, TrainEnded)
    assert ended.metrics == small.logs[-1]
