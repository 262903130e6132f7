"""A run that is interrupted at any point and resumed equals an uninterrupted one."""

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
from tests.examples import examples
from tests.unit.loop.small import ROWS, Small, every, make_small, names, resume

CLOCK_READINGS = ("runtime", "second")


def history(small: Small) -> list[dict[str, Any]]:
    """Return the log history without clock readings."""
    logged = small.run.state.history
    return [{name: v for name, v in log.items() if not name.endswith(CLOCK_READINGS)} for log in logged]


def outcome(small: Small) -> tuple[Any, ...]:
    """Return what two equal runs have in common at their end."""
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


@settings(deadline=None, max_examples=examples(150))
@given(RHYTHMS, SIZES, st.integers(1, 16), st.data())
def test_a_resumed_run_equals_an_uninterrupted_one(
    triggers: Triggers, sizes: dict[str, Any], rows: int, data: st.DataObject
) -> None:
    """At whichever event the run is saved and ended, the resumed run does what the first would have done."""
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
def test_a_run_can_be_interrupted_twice_in_a_row(step: int) -> None:
    """A run that is interrupted at a step, and again at the next, ends like an uninterrupted one."""
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


def test_a_finished_run_resumes_without_a_step() -> None:
    """Resumed from its last checkpoint, a run yields only its start and its end."""
    triggers = Triggers(save=Trigger(Interval.EPOCH))
    small = make_small(triggers=triggers)
    small.events()
    again = make_small(triggers=triggers, storage=small.storage)
    resume(again)
    assert names(again.events()) == ["TrainBegan", "Logged", "TrainEnded"]
    assert again.parameters == small.parameters


def resumed_under(first: dict[str, Any], then: dict[str, Any]) -> tuple[Small, list[AnyEvent]]:
    """Finish a run of one plan, resume it under another, and return what follows."""
    triggers = Triggers(save=Trigger(Interval.EPOCH))
    short = make_small(**first, triggers=triggers)
    short.events()
    longer = make_small(**then, triggers=triggers, storage=short.storage)
    resume(longer)
    return longer, longer.events()


@pytest.mark.parametrize(
    ("first", "then"), [({"max_steps": 3}, {"max_steps": 8}), ({"epochs": 0.375}, {"epochs": 1.0})]
)
def test_a_run_that_ended_within_an_epoch_resumes_there_under_a_longer_plan(
    first: dict[str, Any], then: dict[str, Any]
) -> None:
    """3 steps and then 8 train on the samples of a single run of 8 steps, though its learning rates differ."""
    longer, events = resumed_under(first, then)
    assert [event.step for event in events if isinstance(event, EpochEnded)] == [8]
    assert longer.run.state.samples == 16


@pytest.mark.parametrize(("first", "then"), [({"max_steps": 8}, {"max_steps": 12}), ({"epochs": 1.0}, {"epochs": 1.5})])
def test_a_run_that_ended_with_an_epoch_starts_the_next_under_a_longer_plan(
    first: dict[str, Any], then: dict[str, Any]
) -> None:
    """It yields no further event for the finished epoch."""
    longer, events = resumed_under(first, then)
    assert [(event.step, event.epoch) for event in events if isinstance(event, EpochBegan)] == [(8, 1)]
    assert longer.run.state.samples == 24


def test_an_epoch_that_a_callback_ended_stays_ended() -> None:
    """Resumed from its end, the run starts the next epoch instead of the rest of that one."""
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


def test_the_first_evaluation_is_done_once() -> None:
    """With evaluate_first a new run evaluates before its first step, and a resumed one does not."""
    small = make_small(evaluate_first=True, triggers=every(save=4))
    events = small.events()
    assert names(events)[:2] == ["TrainBegan", "EvaluationBegan"]
    again = make_small(evaluate_first=True, triggers=every(save=4), storage=small.storage)
    resume(again, "checkpoint-4")
    assert not [event for event in again.events() if isinstance(event, EvaluationBegan)]


def test_the_first_evaluation_has_no_effect() -> None:
    """Metrics before the first step are not the best metric, and set no flag."""
    small = make_small(evaluate_first=True, triggers=every(save=4), best=BestMetric("loss", greater_is_better=False))
    for event in train(small.run):
        assert not isinstance(event, EvaluationBegan) or not small.run.control.should_evaluate
    assert small.run.state.best_metric is None


def test_flags_set_before_the_first_step_are_cleared() -> None:
    """A log, an evaluation or a save requested at the start of a run or an epoch is visible, but not done."""
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
