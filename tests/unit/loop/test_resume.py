"""A run that is interrupted anywhere and taken up again is the run that was not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.domain.evaluation import BestMetric
from hexloop.domain.events import (
    AnyEvent,
    CheckpointPublished,
    EpochBegan,
    EpochEnded,
    EvaluationBegan,
    Saved,
    StepBegan,
    StepEnded,
    TrainBegan,
)
from hexloop.domain.loop import train
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.testing import MemoryStorage
from tests.unit.loop.small import ROWS, Small, every, make_small, names, resume

CLOCK_READINGS = ("runtime", "second")


def history(small: Small) -> list[dict[str, Any]]:
    """What was logged, without clock readings."""
    logged = small.run.state.history
    return [{name: v for name, v in log.items() if not name.endswith(CLOCK_READINGS)} for log in logged]


def outcome(small: Small) -> tuple[Any, ...]:
    """Everything that two equal runs have in common at their end."""
    state = small.run.state
    return small.parameters, history(small), state.step, state.samples, state.best_metric, state.loss_total


RHYTHMS = st.builds(
    Triggers,
    st.builds(Trigger, st.sampled_from([Interval.NO, Interval.STEPS, Interval.EPOCH]), st.integers(1, 5)),
    st.builds(Trigger, st.sampled_from([Interval.NO, Interval.STEPS, Interval.EPOCH]), st.integers(1, 5)),
    st.builds(Trigger, st.sampled_from([Interval.NO, Interval.STEPS, Interval.EPOCH]), st.integers(1, 5)),
    st.booleans(),
    st.floats(0, 3),
)
SIZES = st.fixed_dictionaries(
    {"batch_size": st.integers(1, 5), "accumulation": st.integers(1, 4), "epochs": st.sampled_from([0.4, 1, 1.7, 2])}
)


@settings(deadline=None, max_examples=150)
@given(RHYTHMS, SIZES, st.integers(1, 16), st.data())
def test_a_resumed_run_equals_the_one_that_was_not_interrupted(
    triggers: Triggers, sizes: dict[str, Any], rows: int, data: st.DataObject
) -> None:
    """Whatever event the save and the end come at, the second half does what the first would have gone on to do."""
    whole = make_small(rows=ROWS[:rows], triggers=triggers, **sizes)
    events = whole.events()
    stop_after = data.draw(st.integers(0, len(events) - 1))
    broken = make_small(rows=ROWS[:rows], triggers=triggers, **sizes)
    request = None
    for number, _ in enumerate(train(broken.run)):
        if number == stop_after:
            request = broken.run.requests.request_save()
        if request is not None and request.done:
            break
    if request is None or not broken.storage.list(""):
        return
    resumed = make_small(rows=ROWS[:rows], triggers=triggers, storage=broken.storage, **sizes)
    resume(resumed)
    resumed.events()
    assert outcome(resumed) == outcome(whole)


@pytest.mark.parametrize("step", range(1, 17))
def test_interrupted_twice_in_a_row(step: int) -> None:
    """A run that is broken off at a step, and again at the next, ends as if nothing had happened."""
    triggers = every(log=3, evaluate=4)
    whole = make_small(triggers=triggers)
    whole.events()
    storage = MemoryStorage()
    for stop in (step, step + 1):
        small = make_small(triggers=triggers, storage=storage)
        if storage.list(""):
            resume(small)
        for event in train(small.run):
            if isinstance(event, StepEnded) and event.step == stop:
                small.run.requests.request_save()
            if isinstance(event, CheckpointPublished):
                break
    last = make_small(triggers=triggers, storage=storage)
    resume(last)
    last.events()
    assert outcome(last) == outcome(whole)


def test_a_finished_run_that_is_resumed_trains_no_further_step() -> None:
    """Resumed from the checkpoint of its end, a run announces nothing but its beginning and its end."""
    triggers = Triggers(save=Trigger(Interval.EPOCH))
    small = make_small(triggers=triggers)
    small.events()
    again = make_small(triggers=triggers, storage=small.storage)
    resume(again)
    assert names(again.events()) == ["TrainBegan", "Logged", "TrainEnded"]
    assert again.parameters == small.parameters


def gone_on(first: dict[str, Any], then: dict[str, Any]) -> tuple[Small, list[AnyEvent]]:
    """A run of one plan that came to its end, taken up under another; and what happened from there."""
    triggers = Triggers(save=Trigger(Interval.EPOCH))
    short = make_small(**first, triggers=triggers)
    short.events()
    longer = make_small(**then, triggers=triggers, storage=short.storage)
    resume(longer)
    return longer, longer.events()


@pytest.mark.parametrize(
    ("first", "then"), [({"max_steps": 3}, {"max_steps": 8}), ({"epochs": 0.375}, {"epochs": 1.0})]
)
def test_a_run_that_ended_within_a_pass_goes_on_there_under_a_longer_plan(
    first: dict[str, Any], then: dict[str, Any]
) -> None:
    """3 steps and then 8 train on the samples of one run of 8 steps, though its learning rates differ."""
    longer, events = gone_on(first, then)
    assert [event.step for event in events if isinstance(event, EpochEnded)] == [8]
    assert longer.run.state.samples == 16


@pytest.mark.parametrize(("first", "then"), [({"max_steps": 8}, {"max_steps": 12}), ({"epochs": 1.0}, {"epochs": 1.5})])
def test_a_run_that_ended_with_a_pass_begins_the_next_under_a_longer_plan(
    first: dict[str, Any], then: dict[str, Any]
) -> None:
    """It does not announce the pass again of which no sample is left."""
    longer, events = gone_on(first, then)
    assert [(event.step, event.epoch) for event in events if isinstance(event, EpochBegan)] == [(8, 1)]
    assert longer.run.state.samples == 24


def test_an_epoch_that_was_cut_short_by_a_callback_stays_over() -> None:
    """Resumed from its end, the run begins the next epoch and not the rest of that one."""
    triggers = Triggers(save=Trigger(Interval.EPOCH))
    small = make_small(triggers=triggers)
    for event in train(small.run):
        if isinstance(event, StepEnded) and event.step == 3:
            small.run.control.should_epoch_stop = True
        if isinstance(event, CheckpointPublished):
            break
    again = make_small(triggers=triggers, storage=small.storage)
    resume(again)
    events = again.events()
    assert [event.step for event in events if isinstance(event, EpochEnded)] == [11]


def test_the_first_evaluation_comes_once() -> None:
    """With evaluate_first a fresh run evaluates before its first step, and a resumed one does not."""
    small = make_small(evaluate_first=True, triggers=every(save=4))
    events = small.events()
    assert names(events)[:2] == ["TrainBegan", "EvaluationBegan"]
    again = make_small(evaluate_first=True, triggers=every(save=4), storage=small.storage)
    resume(again, "checkpoint-4")
    assert not [event for event in again.events() if isinstance(event, EvaluationBegan)]


def test_the_first_evaluation_decides_nothing() -> None:
    """What is measured before the first step is no best metric, and switches nothing on."""
    small = make_small(evaluate_first=True, triggers=every(save=4), best=BestMetric("loss", greater_is_better=False))
    for event in train(small.run):
        assert not isinstance(event, EvaluationBegan) or not small.run.control.should_evaluate
    assert small.run.state.best_metric is None


def test_what_is_switched_on_before_the_first_step_is_switched_off_with_it() -> None:
    """A log, an evaluation and a save asked for when a run or an epoch begins are seen, and not done."""
    for early in (TrainBegan, EpochBegan):
        small = make_small(epochs=1)
        seen: list[list[str]] = []
        for event in train(small.run):
            if isinstance(event, early):
                small.run.control.set_due_actions(["log", "evaluate", "save"])
            if isinstance(event, (EpochBegan, StepBegan)):
                seen.append(small.run.control.due_actions())
            assert not isinstance(event, (EvaluationBegan, Saved))
        assert seen[0] == ["log", "evaluate", "save"]
        assert not any(seen[1:])
