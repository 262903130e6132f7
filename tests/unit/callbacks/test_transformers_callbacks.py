"""Callbacks written for transformers work unchanged."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.app.callbacks import (
    EVENTS,
    CallbackHandler,
    EarlyStoppingCallback,
    EventDispatcher,
    TrainerControl,
    TrainerState,
    export_states,
    restore_states,
)
from hexloop.domain.loop import train
from hexloop.domain.triggers import Triggers
from tests.unit.callbacks.small_run import small_run

transformers_callback = pytest.importorskip("transformers.trainer_callback")

ARGS = SimpleNamespace(
    metric_for_best_model="loss",
    greater_is_better=False,
    eval_strategy="steps",
    load_best_model_at_end=True,
    logging_first_step=True,
    logging_strategy="steps",
    save_strategy="steps",
    eval_delay=0,
)


def test_only_overridden_methods_are_called() -> None:
    """A subclass of transformers' base class receives only the events that it overrides."""
    heard: list[Any] = []

    class Theirs(transformers_callback.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            heard.append((state.global_step, logs, kwargs["model"]))

    handler = CallbackHandler([Theirs, transformers_callback.TrainerCallback()], model="model")
    assert [event for event in EVENTS if handler.overriding(event)] == ["on_log"]
    handler.call_event("on_log", ARGS, TrainerState(global_step=3), TrainerControl(), logs={"loss": 1.0})
    assert heard == [(3, {"loss": 1.0}, "model")]


def test_control_of_transformers_is_accepted() -> None:
    """A callback may return transformers' own control object."""

    class Theirs(transformers_callback.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return transformers_callback.TrainerControl(should_evaluate=True)

    control = TrainerControl(should_log=True)
    CallbackHandler([Theirs]).call_event("on_step_end", ARGS, TrainerState(), control)
    assert control == TrainerControl(should_evaluate=True)


def test_default_flow_of_transformers_drives_a_run() -> None:
    """DefaultFlowCallback of transformers logs, evaluates, saves and ends a run on the live state."""
    run = small_run(Triggers(), batches=7)
    state, control = TrainerState(), TrainerControl()
    state.follow(run)
    state.logging_steps, state.eval_steps, state.save_steps = 3, 4, 5
    run.control = control
    acted: list[tuple[str, int]] = []

    class Acting(transformers_callback.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            acted.extend((name, state.global_step) for name, on in vars(control).items() if on)

    handler = CallbackHandler([transformers_callback.DefaultFlowCallback, Acting])
    dispatcher = EventDispatcher(handler, ARGS, state, control)
    for event in train(run):
        dispatcher.dispatch(event)
    assert sorted(acted) == sorted(
        [("should_log", step) for step in (1, 3, 6)]
        + [("should_evaluate", step) for step in (4, 7)]
        + [("should_save", step) for step in (5, 7)]
        + [("should_training_stop", 7)]
    )


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.floats(-3, 3) | st.just(float("nan")), max_size=12),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
)
def test_early_stopping_equals_transformers(
    values: list[float], patience: int, threshold: float, greater_is_better: bool
) -> None:
    """For any metrics, NaN included, both callbacks have equal counts, decisions and exported states."""
    args = SimpleNamespace(**vars(ARGS) | {"greater_is_better": greater_is_better})
    ours = EarlyStoppingCallback(patience, threshold)
    theirs = transformers_callback.EarlyStoppingCallback(patience, threshold)
    state = TrainerState()
    for value in values:
        controls = TrainerControl(), TrainerControl()
        ours.on_evaluate(args, state, controls[0], metrics={"eval_loss": value})
        theirs.on_evaluate(args, state, controls[1], metrics={"eval_loss": value})
        assert controls[0] == controls[1]
        assert export_states([ours]) == export_states([theirs])
        if state.best_metric is None or (value > state.best_metric) == greater_is_better:
            state.best_metric = value


def test_stateful_callbacks_of_transformers_are_restored() -> None:
    """EarlyStoppingCallback of transformers is saved in a checkpoint and restored with its count."""
    theirs = transformers_callback.EarlyStoppingCallback(4)
    theirs.early_stopping_patience_counter = 2
    [restored] = restore_states([transformers_callback.EarlyStoppingCallback()], export_states([theirs]))
    assert vars(restored) == vars(theirs)


def test_trainer_state_is_exchanged_with_transformers(tmp_path: Any) -> None:
    """Each library loads the trainer_state.json of the other; fields and defaults are equal."""
    path = str(tmp_path / "trainer_state.json")
    assert vars(transformers_callback.TrainerState()) == asdict(TrainerState())
    ours = TrainerState(global_step=3, log_history=[{"loss": 1.0}], stateful_callbacks=[EarlyStoppingCallback()])
    ours.save_to_json(path)
    theirs = transformers_callback.TrainerState.load_from_json(path)
    assert (theirs.global_step, theirs.log_history) == (3, [{"loss": 1.0}])
    theirs.best_metric = 0.5
    theirs.save_to_json(path)
    assert vars(theirs) == asdict(TrainerState.load_from_json(path))
