"""Values that drive the loop: plan, triggers, state, best metric, speed, parts."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.errors import CheckpointError, CollectiveError, ConfigurationError
from hexloop.domain.evaluation import BestMetric, speed_metrics
from hexloop.domain.json_documents import json_part, json_value, only_value
from hexloop.domain.state import SCHEMA_VERSION, RunState, migrate
from hexloop.domain.triggers import ControlFlags, Interval, Plan, Trigger, Triggers, make_plan, whole_steps
from hexloop.ports.state import Part
from tests.unit.loop.small import every


@given(st.integers(1, 500), st.integers(1, 20), st.floats(0.01, 10))
def test_a_plan_in_epochs_rounds_up(batches: int, accumulation: int, epochs: float) -> None:
    """A partial last window is a step, and a fraction of an epoch is rounded up to whole steps."""
    plan = make_plan(batches, accumulation, epochs, -1)
    steps = -(-batches // accumulation)
    assert plan == Plan(math.ceil(epochs * steps), math.ceil(plan.total_steps / steps), steps, batches, accumulation)


@given(st.integers(1, 500), st.integers(1, 20), st.integers(1, 3000))
def test_max_steps_takes_precedence_over_epochs(batches: int, accumulation: int, max_steps: int) -> None:
    """max_steps determines the length, and the number of epochs follows from it."""
    plan = make_plan(batches, accumulation, 3, max_steps)
    assert plan.total_steps == max_steps
    assert plan.epochs is not None
    assert plan.steps_per_epoch is not None
    assert (plan.epochs - 1) * plan.steps_per_epoch < max_steps <= plan.epochs * plan.steps_per_epoch
    assert plan.is_last(plan.epochs - 1)
    assert not plan.is_last(plan.epochs - 2)


def test_a_plan_needs_data_or_max_steps() -> None:
    """Data of unknown length need max_steps, and data without a batch are refused."""
    assert make_plan(None, 2, 3, 7) == Plan(7, None, None, None, 2)
    assert make_plan(None, 2, 3, 1) == Plan(1, None, None, None, 2)
    assert not make_plan(None, 2, 3, 7).is_last(10**9)
    with pytest.raises(ConfigurationError, match="the training data has no length"):
        make_plan(None, 1, 3, 0)
    with pytest.raises(ConfigurationError, match="yields no batches"):
        make_plan(0, 1, 3, 5)


def test_epochs_are_counted_in_micro_batches() -> None:
    """Seven of ten batches into the third epoch are 2.7; with an unknown length the whole run is one epoch."""
    assert make_plan(10, 4, 3, -1).epoch_at(2, 7) == 2.7
    assert make_plan(None, 4, 3, 5).epoch_at(0, 10) == 0.5


def test_a_number_of_steps_below_one_is_a_fraction_of_the_run() -> None:
    """Fractions are rounded up, and 1 is one step."""
    assert [whole_steps(steps, 101) for steps in (0.1, 0.999, 1, 7.0)] == [11, 101, 1, 7]


@given(
    st.builds(Trigger, st.sampled_from(list(Interval)), st.integers(0, 7)),
    st.builds(Trigger, st.sampled_from(list(Interval)), st.integers(0, 7)),
    st.builds(Trigger, st.sampled_from(list(Interval)), st.integers(0, 7)),
    st.booleans(),
    st.floats(0, 20),
    st.integers(1, 30),
)
def test_quiet_until_skips_no_action(
    log: Trigger, evaluate: Trigger, save: Trigger, first: bool, delay: float, total: int
) -> None:
    """Checking only the steps that `quiet_until` returns has the same result as checking every step."""
    triggers, plan = Triggers(log, evaluate, save, first, delay), Plan(total, 1, total, total, 1)
    look_at = 0
    for step in range(1, total + 1):
        control, state = ControlFlags(), RunState(step=step)
        triggers.after_step(state, plan, control)
        if step >= look_at:
            look_at = triggers.quiet_until(step, plan)
            assert look_at > step or step == total
        else:
            assert control == ControlFlags()


def test_actions_due_after_a_step() -> None:
    """Intervals, the first step, the delay, and a last step off the interval are covered."""

    def due(step: int, triggers: Triggers) -> list[str]:
        control = ControlFlags()
        triggers.after_step(RunState(step=step), Plan(10, 1, 10, 10, 1), control)
        assert control.should_training_stop == (step >= 10)
        return control.due_actions()

    triggers = every(log=3, evaluate=4, save=6, log_first_step=True, evaluation_delay=5)
    assert [due(step, triggers) for step in (1, 2, 3, 4, 5, 6, 8, 9, 10)] == [
        *(["log"], [], ["log"], [], [], ["log", "save"], ["evaluate"], ["log"], ["evaluate", "save"]),
    ]
    assert due(1, every(log=3)) == []
    assert due(10, Triggers(Trigger(Interval.EPOCH), Trigger(Interval.EPOCH), Trigger(Interval.EPOCH))) == []
    assert due(10, every(evaluate=4, evaluation_delay=11)) == []
    assert due(10, every(evaluate=4, evaluation_delay=10)) == ["evaluate"]


def test_actions_due_at_the_end_of_an_epoch() -> None:
    """Epoch triggers are due, and the evaluation from the delayed epoch on."""
    by_epoch = Trigger(Interval.EPOCH)
    triggers, plan = Triggers(by_epoch, by_epoch, by_epoch, evaluation_delay=2), Plan(30, 3, 10, 10, 1)
    for epoch, expected in ((0, ["log", "save"]), (1, ["log", "evaluate", "save"])):
        control = ControlFlags()
        triggers.after_epoch(RunState(epoch=epoch, batches=10), plan, control)
        assert control.due_actions() == expected
    control = ControlFlags()
    every(log=1, evaluate=1, save=1).after_epoch(RunState(), plan, control)
    assert control.due_actions() == []


def test_the_last_step_is_due_once() -> None:
    """quiet_until never exceeds the last step, and the first step counts if it is logged."""
    plan = Plan(10, 1, 10, 10, 1)
    assert Triggers().quiet_until(0, plan) == 10
    assert every(log=4).quiet_until(4, plan) == 8
    assert every(log=4, log_first_step=True).quiet_until(0, plan) == 1
    assert every(log=4, log_first_step=True).quiet_until(1, plan) == 4


@pytest.mark.parametrize(("greater", "values", "best"), [(True, [1, 3, 2, 3], [1, 3]), (False, [2, 2, 1, 5], [2, 1])])
def test_the_best_metric_is_recorded_with_its_step(greater: bool, values: list[float], best: list[float]) -> None:
    """Only a strictly better metric counts, in the chosen direction."""
    metric, state, improvements = BestMetric("accuracy", greater), RunState(), []
    for step, value in enumerate(values, 1):
        state.step = step
        if metric.observe(state, {"eval_accuracy": value, "eval_loss": 9}):
            improvements.append(value)
            assert (state.best_metric, state.best_step) == (value, step)
    assert improvements == best


def test_nan_is_never_the_best() -> None:
    """NaN is no improvement, not even on the first evaluation."""
    state = RunState()
    assert not BestMetric("loss").observe(state, {"eval_loss": math.nan})
    assert state.best_step is None


def test_without_a_metric_name_there_is_no_best() -> None:
    """Without a name no metric is compared."""
    state = RunState()
    assert not BestMetric().observe(state, {"eval_loss": 1.0})
    assert state.best_metric is None


def test_an_unknown_metric_is_refused() -> None:
    """The error names the requested metric and the available ones."""
    with pytest.raises(ConfigurationError, match=r"'f1'.*no 'eval_f1'. Choose one of: eval_loss, eval_runtime"):
        BestMetric("f1").value({"eval_runtime": 1, "eval_loss": 2})
    for nothing in ({}, {"eval_runtime": 1.0, "eval_steps_per_second": 2.0, "epoch": 1.0}):
        with pytest.raises(ConfigurationError, match=r"no 'eval_f1'. It measured nothing: its data yielded no batches"):
            BestMetric("eval_f1").value(nothing)


def test_speed_is_rounded_as_in_transformers() -> None:
    """Seconds have four decimals, rates have three, and unknown rates are left out."""
    assert speed_metrics("train", 3.00004, samples=10, steps=2, tokens=7) == {
        "train_runtime": 3.0,
        "train_samples_per_second": 3.333,
        "train_steps_per_second": 0.667,
        "train_tokens_per_second": 2.333,
    }
    assert speed_metrics("eval", 2, samples=1) == {"eval_runtime": 2, "eval_samples_per_second": 0.5}
    assert speed_metrics("eval", 0, samples=1) == {"eval_runtime": 0}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_json_values_are_exported_as_parts(value: Any) -> None:
    """A JSON part returns the value that it was built from, even if that has changed since."""
    part = json_part("kept", value)
    assert json_value(part) == value
    assert only_value([part], "kept") == value


def test_a_part_is_a_copy() -> None:
    """A list that grows later does not grow in the part."""
    value = [1]
    part = json_part("kept", value)
    value.append(2)
    assert json_value(part) == [1]


def test_wrong_parts_are_refused() -> None:
    """Another name, another number of parts, or a tensor is not the expected document."""
    tensor = Part("kept", "F32", (1,), 0, 1, lambda: memoryview(bytes(4)))
    for parts in ([], [json_part("other", 1)], [json_part("kept", 1)] * 2, [tensor]):
        with pytest.raises(ValueError, match="Expected one JSON document named 'kept'"):
            only_value(parts, "kept")


def test_older_states_are_migrated_version_by_version() -> None:
    """Each migration advances the dictionary by one version, and the given document is not changed."""
    old = {"schema_version": 1, "steps": 5}
    migrations = {
        1: lambda state: {"schema_version": 2, "step": state["steps"]},
        2: lambda state: {**state, "schema_version": 3, "updates": state["step"]},
    }
    assert migrate(old, migrations, 3) == {"schema_version": 3, "step": 5, "updates": 5}
    assert old == {"schema_version": 1, "steps": 5}
    assert migrate({"schema_version": SCHEMA_VERSION, "step": 1}) == {"schema_version": SCHEMA_VERSION, "step": 1}


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, None, "1"])
def test_states_of_unknown_versions_are_refused(version: object) -> None:
    """The error names a version that is newer, older than all migrations, or missing."""
    with pytest.raises(CheckpointError, match=f"schema version {version!r}"):
        migrate({"schema_version": version})


def test_several_problems_are_a_list() -> None:
    """A single problem is the whole message; problems are stored one by one in any case."""
    assert str(ConfigurationError(["You chose a."])) == "You chose a."
    several = ConfigurationError(["You chose a.", "You chose b."])
    assert several.problems == ("You chose a.", "You chose b.")
    assert str(several) == "2 problems in the configuration:\n  1. You chose a.\n  2. You chose b."
    assert copy.copy(several).problems == several.problems
    assert CollectiveError("gone", [3, 1]).missing == (3, 1)


def test_zero_steps_means_epochs() -> None:
    """A `max_steps` of 0 or below leaves the length to the epochs."""
    assert make_plan(10, 1, 2, 0).total_steps == make_plan(10, 1, 2, -1).total_steps == 20


def test_evaluations_are_not_delayed_by_default() -> None:
    """Without a delay the first evaluation is at its first interval."""
    assert Triggers().evaluation_delay == 0
