"""TrainerState shows the state of a run, and changes to it change the run."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.app.callbacks import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState
from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import RunState
from hexloop.domain.triggers import ControlFlags, Interval, Plan, Trigger, Triggers, make_plan

NAMES_AND_DEFAULTS: dict[str, Any] = {
    "epoch": 0,
    "global_step": 0,
    "max_steps": 0,
    "logging_steps": 500,
    "eval_steps": 500,
    "save_steps": 500,
    "train_batch_size": None,
    "num_train_epochs": 0,
    "num_input_tokens_seen": 0,
    "total_flos": 0,
    "log_history": [],
    "best_metric": None,
    "best_global_step": None,
    "best_model_checkpoint": None,
    "is_local_process_zero": True,
    "is_world_process_zero": True,
    "is_hyper_param_search": False,
    "trial_name": None,
    "trial_params": None,
    "stateful_callbacks": {},
}

VALUES: dict[str, Any] = {
    "epoch": 1.5,
    "global_step": 15,
    "max_steps": 30,
    "logging_steps": 2,
    "eval_steps": 3,
    "save_steps": 4,
    "train_batch_size": 8,
    "num_train_epochs": 3,
    "num_input_tokens_seen": 1200,
    "total_flos": 3.5e9,
    "log_history": [{"loss": 0.5, "step": 10}],
    "best_metric": 0.25,
    "best_global_step": 10,
    "best_model_checkpoint": "out/checkpoint-10",
    "is_local_process_zero": False,
    "is_world_process_zero": False,
    "is_hyper_param_search": True,
    "trial_name": "third",
    "trial_params": {"learning_rate": 0.1},
    "stateful_callbacks": {"Own": {"args": {}, "attributes": {"seen": 2}}},
}


@define
class SmallRun:
    """The part of a run that TrainerState reads."""

    state: RunState = field(factory=RunState)
    plan: Plan = make_plan(batches_per_epoch=10, accumulation=2, epochs=3, max_steps=-1)  # noqa: RUF009 - frozen
    triggers: Triggers = Triggers(  # noqa: RUF009 - frozen
        log=Trigger(Interval.STEPS, 2), evaluate=Trigger(Interval.NO, 3), save=Trigger(Interval.EPOCH, 4)
    )
    changes: int = 0

    def change_triggers(self, triggers: Triggers) -> None:
        self.triggers = triggers
        self.changes += 1


def following(run: SmallRun, **own: Any) -> TrainerState:
    state = TrainerState(**own)
    state.follow(run)
    return state


def fields_of(state: TrainerState) -> dict[str, Any]:
    return {each.name: getattr(state, each.name) for each in dataclasses.fields(state)}


def test_initial_fields_equal_those_of_transformers() -> None:
    """Before a run, fields, order and values equal those of TrainerState in transformers."""
    assert list(fields_of(TrainerState()).items()) == list(NAMES_AND_DEFAULTS.items())


def test_detached_states_share_nothing() -> None:
    """Changes of one detached state do not affect another."""
    TrainerState().log_history.append({"loss": 1.0})
    TrainerState(global_step=3).stateful_callbacks["Own"] = {}
    TrainerState().save_steps = 1
    assert fields_of(TrainerState()) == NAMES_AND_DEFAULTS


@pytest.mark.parametrize("name", list(VALUES))
def test_each_field_can_be_passed_and_assigned(name: str) -> None:
    """A field holds the passed or assigned value, and the other fields do not change."""
    written = TrainerState()
    setattr(written, name, VALUES[name])
    assert fields_of(written) == NAMES_AND_DEFAULTS | {name: VALUES[name]}
    assert TrainerState(**{name: VALUES[name]}) == written


def test_live_state_follows_the_run() -> None:
    """The state shows the run's current values without a further call."""
    run = SmallRun()
    view = following(run, train_batch_size=8)
    before = (view.epoch, view.global_step, view.max_steps, view.num_train_epochs, view.train_batch_size)
    assert before == (0.0, 0, 15, 3, 8)
    assert (view.logging_steps, view.eval_steps, view.save_steps) == (2, 3, 4)
    state = run.state
    state.step, state.epoch, state.batches, state.tokens, state.operations = 6, 1, 3, 99, 1e6
    state.best_metric, state.best_step, state.best_checkpoint = 0.5, 4, "checkpoint-4"
    state.history.append({"loss": 1.0})
    state.callbacks["Own"] = {}
    assert (view.epoch, view.global_step, view.num_input_tokens_seen, view.total_flos) == (1.3, 6, 99, 1e6)
    assert (view.best_metric, view.best_global_step, view.best_model_checkpoint) == (0.5, 4, "checkpoint-4")
    assert view.log_history is state.history
    assert view.stateful_callbacks is state.callbacks
    run.state = RunState(step=40)
    assert view.global_step == 40


def test_assigned_values_change_the_run() -> None:
    """Each field that belongs to the run is written through to it."""
    run = SmallRun()
    view = following(run)
    for name, value in VALUES.items():
        setattr(view, name, value)
    state = run.state
    assert (state.step, state.tokens, state.operations) == (15, 1200, 3.5e9)
    assert (state.best_metric, state.best_step, state.best_checkpoint) == (0.25, 10, "checkpoint-10")
    assert state.history is VALUES["log_history"]
    assert state.callbacks is VALUES["stateful_callbacks"]
    assert (run.plan.total_steps, run.plan.epochs) == (30, 3)
    assert fields_of(view) == VALUES


@pytest.mark.parametrize(
    ("name", "switch"),
    [("logging_steps", "should_log"), ("eval_steps", "should_evaluate"), ("save_steps", "should_save")],
)
def test_assigning_an_interval_changes_the_triggers(name: str, switch: str) -> None:
    """After `state.save_steps = 5`, the run's triggers fire every fifth step if saves follow steps."""
    steps = Trigger(Interval.STEPS, 4)
    run = SmallRun(triggers=Triggers(steps, steps, steps))
    setattr(following(run), name, 5)
    assert run.changes == 1
    due = []
    for step in range(1, 15):
        control = ControlFlags()
        run.triggers.after_step(RunState(step=step), run.plan, control)
        due += [step] if getattr(control, switch) else []
    assert due == [5, 10]


def test_interval_below_one_is_a_fraction_of_the_run() -> None:
    """An interval of 0.2 in a run of 15 steps is every third step."""
    run = SmallRun()
    view = following(run)
    view.save_steps = 0.2
    assert view.save_steps == run.triggers.save.every == 3
    assert run.triggers.save.interval is Interval.EPOCH


def test_assigning_max_steps_changes_the_end() -> None:
    """The run ends at the assigned step, and its triggers are updated."""
    run = SmallRun()
    following(run).max_steps = 7
    assert run.changes == 1
    control = ControlFlags()
    run.triggers.after_step(RunState(step=7), run.plan, control)
    assert control.should_training_stop


def test_assigned_epoch_holds_until_the_next_micro_batch() -> None:
    """The assigned value is shown until the next micro-batches are counted."""
    run = SmallRun()
    view = following(run)
    view.epoch = 7.5
    assert view.epoch == 7.5
    run.state.batches = 2
    assert view.epoch == 0.2


def test_num_train_epochs_of_a_run_without_epochs() -> None:
    """If only the number of steps is known, num_train_epochs is sys.maxsize, as in transformers."""
    run = SmallRun(plan=make_plan(batches_per_epoch=None, accumulation=1, epochs=3, max_steps=10))
    assert following(run).num_train_epochs == sys.maxsize


def test_copies_are_detached() -> None:
    """A shallow, deep or replaced copy keeps its values while the run continues."""
    run = SmallRun(state=RunState(step=3, epoch=1, history=[{"loss": 1.0}]))
    view = following(run)
    deep, replaced = copy.deepcopy(view), dataclasses.replace(view, train_batch_size=16)
    assert deep == view
    run.state.step = 4
    run.state.batches = 5
    run.state.history.append({"loss": 0.5})
    assert (deep.global_step, deep.epoch, deep.log_history) == (3, 1.0, [{"loss": 1.0}])
    assert (replaced.global_step, replaced.train_batch_size) == (3, 16)
    deep.global_step = 9
    assert view.global_step == 4


def test_saved_state_loads_equal(tmp_path: Path) -> None:
    """A saved and loaded state is equal, and the keys of the file are the sorted field names."""
    path = str(tmp_path / "trainer_state.json")
    state = TrainerState(**VALUES)
    state.save_to_json(path)
    assert TrainerState.load_from_json(path) == state
    assert Path(path).read_text() == json.dumps(VALUES, indent=2, sort_keys=True) + "\n"


@settings(derandomize=True, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "epoch": st.floats(0, 100),
            "global_step": st.integers(0, 10**9),
            "best_metric": st.none() | st.floats(allow_nan=False),
            "log_history": st.lists(st.dictionaries(st.text(), st.floats(allow_nan=False) | st.integers())),
            "total_flos": st.floats(0, 1e25),
        },
    )
)
def test_json_round_trip_is_lossless(values: dict[str, Any]) -> None:
    """Any state, infinite metrics included, survives a round trip through JSON."""
    state = TrainerState(**values)
    assert json.loads(state.to_json_string()) == fields_of(state)


def test_unknown_fields_of_a_file_are_ignored_with_a_warning(tmp_path: Path) -> None:
    """A file of another version loads, and the warning lists the unknown fields."""
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"global_step": 3, "novelty": 1}))
    with pytest.warns(UserWarning, match="novelty"):
        assert TrainerState.load_from_json(str(path)).global_step == 3


def test_stateful_callbacks_may_be_passed_as_objects() -> None:
    """Passed callbacks are exported by class name; a stateless one is rejected by name."""
    stopping = EarlyStoppingCallback(early_stopping_patience=3)
    state = TrainerState(stateful_callbacks=[stopping, TrainerControl(should_save=True)])
    assert state.stateful_callbacks["EarlyStoppingCallback"] == stopping.state()
    assert state.stateful_callbacks["TrainerControl"]["args"]["should_save"] is True
    with pytest.raises(TypeError, match=r"TrainerCallback.*from_state"):
        TrainerState(stateful_callbacks=[TrainerCallback()])


WRONG: dict[str, tuple[str, str]] = {
    "a list": ("[]", "is not a JSON object"),
    "no JSON": ("{", "is not a JSON document"),
    "other kinds": (
        '{"global_step": 1.5, "epoch": true, "log_history": {}, "best_metric": NaN, "more": 1}',
        "is invalid: global_step: 1.5 is not of the type int; epoch: True is not of the type int or float; "
        "log_history: {} is not of the type list.",
    ),
    "an entry of the history": ('{"log_history": [{}, 5]}', "log_history[1]: 5 is not of the type dict"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_of_another_form_is_refused(tmp_path: Path, name: str) -> None:
    """With the file and every wrong field."""
    text, words = WRONG[name]
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    with pytest.raises(CheckpointError) as raised:
        TrainerState.load_from_json(str(path))
    assert words in str(raised.value)
    assert str(path) in str(raised.value)
