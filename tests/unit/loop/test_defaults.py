"""A run in which whoever may be left out is left out."""

from __future__ import annotations

import pytest

from hexloop.domain.events import StepEnded, TrainEnded
from hexloop.domain.loop import train
from hexloop.domain.run import NoCheckpoints, Run, no_evaluation
from hexloop.domain.triggers import Trigger, Triggers
from tests.unit.loop.small import every, make_small, names, resume


def test_without_checkpoints_saving_does_nothing() -> None:
    """A run that nobody saves takes no checkpoint, and ends as usual."""
    small = make_small(triggers=every(save=2))
    small.run.checkpoints = NoCheckpoints()
    assert names(small.events())[-1] == "TrainEnded"
    assert small.storage.list("") == ()
    assert not NoCheckpoints().has_news
    assert list(NoCheckpoints().collect()) == []


def test_without_data_an_evaluation_measures_nothing() -> None:
    """An evaluation that has no data is complete at once, with no metrics and no event."""
    small = make_small(triggers=every(evaluate=2), evaluate=no_evaluation)
    assert "Evaluated" not in names(small.events())


def test_a_report_may_go_nowhere() -> None:
    """Without anybody to report to, the run trains as with."""
    small, silent = make_small(triggers=every(log=2)), make_small(triggers=every(log=2))
    small.events()
    run = silent.run
    bare = Run(run.learner, run.batches, run.losses, run.scheduler, run.clock, run.plan, triggers=run.triggers)
    list(train(bare))
    assert bare.state.step == small.run.state.step
    assert bare.state.history == []


def test_triggers_may_change_in_the_middle_of_a_run() -> None:
    """New rhythms count from the next step on, even where the old ones would have been quiet for long."""
    small = make_small(epochs=1)
    for event in train(small.run):
        if isinstance(event, StepEnded) and event.step == 3:
            small.run.change_triggers(every(log=2))
    assert [log["step"] for log in small.run.state.history if "loss" in log] == [4, 6, 8]
    assert Triggers() == Triggers(Trigger(), Trigger(), Trigger())


def test_speed_counts_from_where_this_process_began() -> None:
    """A resumed run's figures are of the steps that it did itself."""
    small = make_small(epochs=1)
    for event in train(small.run):
        if isinstance(event, StepEnded):
            small.clock.advance(0.5)
    assert small.logs[-1]["train_runtime"] == 4.0
    assert small.logs[-1]["train_steps_per_second"] == 2.0
    assert small.logs[-1]["train_samples_per_second"] == 4.0


def test_a_resumed_run_measures_its_own_speed() -> None:
    """Time and steps before this process began to train are not in its figures; the mean loss is over the whole run."""
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


def test_the_mean_loss_is_that_of_all_logs() -> None:
    """With a log every fourth of 16 steps, the run's loss is the mean of the logged ones."""
    small = make_small(triggers=every(log=4))
    small.events()
    logged = [log["loss"] for log in small.logs if "loss" in log]
    assert small.logs[-1]["train_loss"] == pytest.approx(sum(logged) / 4)
    unlogged = make_small()
    unlogged.events()
    assert unlogged.logs[-1]["train_loss"] == pytest.approx(small.logs[-1]["train_loss"])


def test_gradients_are_not_clipped_unless_asked_for() -> None:
    """A run that is not told a norm leaves the gradients as they are."""
    clipped, free, default = make_small(max_norm=0.1), make_small(max_norm=0), make_small()
    bare = Run(*(getattr(default.run, name) for name in ("learner", "batches", "losses", "scheduler", "clock", "plan")))
    clipped.events(), free.events(), list(train(bare))
    assert default.parameters == free.parameters != clipped.parameters


def test_operations_are_told_where_they_are_counted() -> None:
    """What counters add to the state comes out as a sum."""
    small = make_small(epochs=1)

    def count(batch: list[object]) -> None:
        small.run.state.operations += 10.0

    small.run.counters = [count]
    small.events()
    assert small.logs[-1]["total_flos"] == 80.0


def test_further_figures_are_asked_for_once_and_told_with_the_others() -> None:
    """They stand in the last log and in what the end tells."""
    small = make_small(max_steps=2)
    asked: list[int] = []

    def further() -> dict[str, float]:
        asked.append(small.run.state.step)
        return {"train_tokens_per_second": 12.0}

    small.run.further_figures = further
    ended = small.events()[-1]
    assert asked == [2]
    assert small.logs[-1]["train_tokens_per_second"] == 12.0
    assert isinstance(ended, TrainEnded)
    assert ended.metrics == small.logs[-1]
