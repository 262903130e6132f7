"""A run in which whoever may be left out is left out."""

from __future__ import annotations

from hexloop.domain.events import StepEnded
from hexloop.domain.loop import train
from hexloop.domain.run import NoCheckpoints, no_evaluation
from hexloop.domain.triggers import Trigger, Triggers
from tests.unit.loop.small import every, make_small, names


def test_without_checkpoints_saving_does_nothing() -> None:
    """A run that nobody saves takes no checkpoint, and ends as usual."""
    small = make_small(triggers=every(save=2))
    small.run.checkpoints = NoCheckpoints()
    assert names(small.events())[-1] == "TrainEnded"
    assert small.storage.list("") == ()


def test_without_data_an_evaluation_measures_nothing() -> None:
    """An evaluation that has no data is complete at once, with no metrics and no event."""
    small = make_small(triggers=every(evaluate=2), evaluate=no_evaluation)
    assert "Evaluated" not in names(small.events())


def test_a_report_may_go_nowhere() -> None:
    """Without anybody to report to, the run trains as with."""
    from hexloop.domain.run import Run

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
    assert "train_tokens_per_second" not in small.logs[-1]
