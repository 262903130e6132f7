"""EventDispatcher forwards events of the domain's loop to callbacks."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from hexloop.app.callbacks import (
    EVENTS,
    CallbackHandler,
    EarlyStoppingCallback,
    EventDispatcher,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from hexloop.app.callbacks.handler import CALLBACK_EVENTS
from hexloop.domain.events import (
    AnyEvent,
    CheckpointPublished,
    Evaluated,
    EvaluationBegan,
    Logged,
    MicroStepEnded,
    Paused,
    StepBegan,
    StepEnded,
    TrainBegan,
)
from hexloop.domain.loop import train
from hexloop.domain.run import Run
from hexloop.domain.triggers import Interval, Trigger, Triggers
from tests.unit.callbacks.small_run import small_run

EVERY_SECOND = Trigger(Interval.STEPS, 2)


def recording(trace: list[Any], *events: str) -> TrainerCallback:
    """Return a callback that records event, step and active switches at `events`."""

    def note(event: str) -> Any:
        def on_event(self: Any, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            switches = [name.removeprefix("should_") for name, on in vars(control).items() if on]
            trace.append((event.removeprefix("on_"), state.global_step, *switches))

        return on_event

    kind: type[TrainerCallback] = type("Recording", (TrainerCallback,), {event: note(event) for event in events})
    return kind()


def driven(run: Run[float, float], *callbacks: TrainerCallback) -> EventDispatcher:
    """Drive `run` to its end and forward its events to `callbacks`."""
    state, control = TrainerState(), TrainerControl()
    state.follow(run)
    run.control = control
    dispatcher = EventDispatcher(CallbackHandler(callbacks), "args", state, control)
    for event in train(run):
        dispatcher.dispatch(event)
    return dispatcher


def test_callbacks_receive_events_in_order() -> None:
    """A run with accumulation, evaluation and a save sends every event in order."""
    trace: list[Any] = []
    driven(
        small_run(Triggers(EVERY_SECOND, EVERY_SECOND, Trigger(Interval.EPOCH)), batches=5, accumulation=2),
        recording(trace, *EVENTS),
    )
    assert trace == [
        ("train_begin", 0),
        ("epoch_begin", 0),
        ("step_begin", 0),
        ("substep_end", 0),
        ("step_end", 1),
        ("step_begin", 1),
        ("substep_end", 1),
        ("step_end", 2, "evaluate", "log"),
        ("prediction_step", 2, "evaluate"),
        ("prediction_step", 2, "evaluate"),
        ("evaluate", 2),
        ("step_begin", 2),
        ("step_end", 3, "training_stop", "evaluate"),
        ("prediction_step", 3, "training_stop", "evaluate"),
        ("prediction_step", 3, "training_stop", "evaluate"),
        ("evaluate", 3, "training_stop"),
        ("epoch_end", 3, "training_stop", "save"),
        ("save", 3, "training_stop"),
        ("train_end", 3, "training_stop"),
    ]


def test_callbacks_control_the_run() -> None:
    """A switch set at a step's end takes effect immediately, and a stop ends the run there."""
    trace: list[Any] = []

    class Steering(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            control.should_save = state.global_step == 2
            control.should_training_stop = state.global_step == 3

    run = small_run(Triggers(), batches=9)
    driven(run, Steering(), recording(trace, "on_save"))
    assert trace == [("save", 2)]
    assert run.state.step == 3


def test_interval_set_by_a_callback_takes_effect() -> None:
    """After a callback sets `state.save_steps` at step 4, the run saves every third step."""
    trace: list[Any] = []

    class Rescheduling(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            if state.global_step == 4:
                state.save_steps = 3

    rhythm = Triggers(save=Trigger(Interval.STEPS, 100))
    driven(small_run(rhythm, batches=11), Rescheduling(), recording(trace, "on_save"))
    assert [step for _event, step, *_switches in trace] == [6, 9, 11]


def test_max_steps_set_by_a_callback_takes_effect() -> None:
    """A run of 11 steps ends after step 6 if a callback sets max_steps to 6 at step 4."""

    class Shortening(TrainerCallback):
        def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            if state.global_step == 4:
                state.max_steps = 6

    run = small_run(Triggers(), batches=11)
    driven(run, Shortening())
    assert run.state.step == 6


def test_early_stopping_ends_a_run() -> None:
    """With a threshold that no evaluation can exceed, the run ends at its second evaluation."""

    class Arguments:
        metric_for_best_model, greater_is_better = "loss", False
        eval_strategy, load_best_model_at_end = "steps", True

    run = small_run(Triggers(evaluate=Trigger(Interval.STEPS, 1)), batches=9)
    state, control = TrainerState(best_metric=None), TrainerControl()
    state.follow(run)
    run.control = control
    dispatcher = EventDispatcher(
        CallbackHandler([EarlyStoppingCallback(early_stopping_threshold=1e9)]), Arguments, state, control
    )
    for event in train(run):
        dispatcher.dispatch(event)
        if isinstance(event, Evaluated) and state.best_metric is None:
            state.best_metric = event.metrics["eval_loss"]
    assert run.state.step == 2


def test_on_evaluate_receives_the_metrics() -> None:
    """`metrics` is the event's own mapping, and the evaluate switch is cleared even without listeners."""
    seen: list[Any] = []
    kind: type[TrainerCallback] = type(
        "Seeing", (TrainerCallback,), {"on_evaluate": lambda *args, **kwargs: seen.append(kwargs["metrics"])}
    )
    control = TrainerControl(should_evaluate=True)
    handler = CallbackHandler([kind])
    dispatcher = EventDispatcher(handler, None, TrainerState(), control)
    metrics = {"eval_loss": 1.0}
    dispatcher.dispatch(Evaluated(3, metrics))
    assert seen[0] is metrics
    assert not control.should_evaluate
    handler.remove_callback(kind)
    control.should_evaluate = True
    dispatcher.dispatch(Evaluated(4, metrics))
    assert not control.should_evaluate


@pytest.mark.parametrize("event", [Logged(1, {}), EvaluationBegan(1), CheckpointPublished(1, "name"), Paused(1)])
def test_internal_events_are_not_forwarded(event: Any) -> None:
    """Events that callbacks have no method for are ignored."""
    trace: list[Any] = []
    handler = CallbackHandler([recording(trace, *EVENTS)])
    EventDispatcher(handler, None, TrainerState(), TrainerControl()).dispatch(event)
    assert trace == []


def test_call_passes_keywords_to_listeners() -> None:
    """`call` passes args, state, control and the keywords to listeners."""
    seen: list[Any] = []
    kind = type("Seeing", (TrainerCallback,), {"on_log": lambda self, *given, **kwargs: seen.append((given, kwargs))})
    state, control = TrainerState(), TrainerControl()
    dispatcher = EventDispatcher(CallbackHandler([kind], model="model"), "args", state, control)
    dispatcher.call("on_log", logs={"loss": 1.0})
    dispatcher.call("on_pre_optimizer_step")
    [(given, extras)] = seen
    assert given == ("args", state, control)
    assert (extras["logs"], extras["model"]) == ({"loss": 1.0}, "model")


def test_added_and_removed_callbacks_take_effect_at_the_next_event() -> None:
    """Adding or removing a callback takes effect at the next event."""
    trace: list[Any] = []
    handler = CallbackHandler([])
    dispatcher = EventDispatcher(handler, None, TrainerState(), TrainerControl())
    late = recording(trace, "on_step_begin")
    dispatcher.dispatch(StepBegan(0))
    handler.add_callback(late)
    dispatcher.dispatch(StepBegan(0))
    handler.remove_callback(late)
    dispatcher.dispatch(StepBegan(0))
    assert trace == [("step_begin", 0)]


def test_method_patched_before_the_run_is_called() -> None:
    """Overridden methods are looked up again when a run starts."""
    heard: list[str] = []
    callback = TrainerCallback()
    dispatcher = EventDispatcher(CallbackHandler([callback]), None, TrainerState(), TrainerControl())
    for name in ("on_train_begin", "on_step_end"):
        setattr(callback, name, lambda *args, name=name, **kwargs: heard.append(name))
    dispatcher.dispatch(TrainBegan(0))
    dispatcher.dispatch(StepEnded(1, [], None, True))
    assert heard == ["on_train_begin", "on_step_end"]


def test_event_without_listeners_costs_one_lookup() -> None:
    """Without listeners, an event costs one call of `dispatch` and one dictionary lookup."""
    dispatcher = EventDispatcher(CallbackHandler([TrainerCallback]), None, TrainerState(), TrainerControl())
    calls: list[str] = []
    events: list[AnyEvent] = [StepBegan(0), MicroStepEnded(0, 0.0), StepEnded(1, [], None, True)]
    profiler = sys.getprofile()
    sys.setprofile(lambda frame, kind, called: calls.append(frame.f_code.co_name) if "return" not in kind else None)
    try:
        for event in events:
            dispatcher.dispatch(event)
    finally:
        sys.setprofile(profiler)
    assert calls[: 2 * len(events)] == ["dispatch"] * 2 * len(events)
    assert len(calls) == 2 * len(events) + 1  # the last is setprofile itself


def test_handler_keeps_no_reference_to_a_dispatcher() -> None:
    """The handler does not keep a dispatcher alive."""
    handler = CallbackHandler([])
    dispatcher = EventDispatcher(handler, None, TrainerState(), TrainerControl())
    assert len(handler._dispatchers) == 1
    del dispatcher
    gc.collect()
    assert len(handler._dispatchers) == 0


def test_every_mapped_name_is_a_callback_event() -> None:
    """Each loop event maps to one callback event, and no two map to the same."""
    names = list(CALLBACK_EVENTS.values())
    assert len(set(names)) == len(names)
    assert set(names) < set(EVENTS)
