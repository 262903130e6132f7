"""EarlyStoppingCallback ends a run when evaluations stop improving."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.app.callbacks import EarlyStoppingCallback, TrainerControl, TrainerState
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.state import RunState


def arguments(**changes: Any) -> SimpleNamespace:
    chosen = {
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "eval_strategy": "epoch",
        "load_best_model_at_end": True,
    }
    return SimpleNamespace(**(chosen | changes))


def stopped_at(callback: EarlyStoppingCallback, values: list[float], args: SimpleNamespace) -> int | None:
    """Return the number of the evaluation that ends a run with the metrics `values`."""
    state, run_state = TrainerState(), RunState()
    best = BestMetric(args.metric_for_best_model, args.greater_is_better)
    for number, value in enumerate(values):
        control = TrainerControl()
        callback.on_evaluate(args, state, control, metrics={best.full_name: value})
        if control.should_training_stop:
            return number
        best.observe(run_state, {best.full_name: value})
        state.best_metric = run_state.best_metric
    return None


@pytest.mark.parametrize(
    ("patience", "values", "expected"),
    [
        (1, [1.0, 0.9, 0.95, 0.8], 2),
        (2, [1.0, 0.9, 0.95, 0.8], None),
        (2, [1.0, 1.1, 1.2, 0.5], 2),
        (3, [1.0, 1.1, 1.2, 0.5, 0.6, 0.7, 0.8], 6),
        (1, [1.0], None),
    ],
)
def test_run_stops_after_patience_evaluations_without_improvement(
    patience: int, values: list[float], expected: int | None
) -> None:
    """The run stops at the first evaluation that completes `patience` evaluations without improvement."""
    assert stopped_at(EarlyStoppingCallback(patience), values, arguments()) == expected


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.integers(0, 6).map(float), max_size=20), st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 1.0])
)
def test_any_run_stops_where_the_definition_says(
    values: list[float], patience: int, greater_is_better: bool, threshold: float
) -> None:
    """The run stops at the first of `patience` consecutive evaluations without improvement to complete them."""
    args = arguments(greater_is_better=greater_is_better)
    sign = 1 if greater_is_better else -1
    improved = [
        not values[:number] or sign * value - max(sign * earlier for earlier in values[:number]) > threshold
        for number, value in enumerate(values)
    ]
    ends = [
        number for number in range(patience - 1, len(values)) if not any(improved[number - patience + 1 : number + 1])
    ]
    assert stopped_at(EarlyStoppingCallback(patience, threshold), values, args) == (ends[0] if ends else None)


@pytest.mark.parametrize("name", ["accuracy", "eval_accuracy"])
def test_metric_prefix_is_optional(name: str) -> None:
    """`accuracy` and `eval_accuracy` are the same metric, also if greater is better."""
    args = arguments(metric_for_best_model=name, greater_is_better=True)
    assert stopped_at(EarlyStoppingCallback(), [0.5, 0.6, 0.55], args) == 2


def test_missing_metric_is_warned_about_and_not_counted() -> None:
    """A missing metric changes nothing, and the warning lists the available metrics."""
    callback, control = EarlyStoppingCallback(), TrainerControl()
    with pytest.warns(UserWarning, match=r"'eval_loss'.*eval_f1"):
        callback.on_evaluate(arguments(), TrainerState(best_metric=1.0), control, metrics={"eval_f1": 0.5})
    assert callback.early_stopping_patience_counter == 0
    assert control == TrainerControl()


def test_evaluation_outside_a_run_is_ignored_without_a_metric() -> None:
    """Evaluating outside a run works if metric_for_best_model is not set."""
    control = TrainerControl()
    args = arguments(metric_for_best_model=None)
    EarlyStoppingCallback().on_evaluate(args, TrainerState(), control, metrics={"eval_loss": 1.0})
    assert control == TrainerControl()


def test_missing_requirements_are_reported_in_one_error() -> None:
    """One error before the run reports a missing metric and missing evaluations."""
    args = arguments(metric_for_best_model=None, eval_strategy="no")
    with pytest.raises(ConfigurationError) as caught:
        EarlyStoppingCallback().on_train_begin(args, TrainerState(), TrainerControl())
    first, second = caught.value.problems
    assert "metric_for_best_model" in first
    assert "eval_strategy" in second


def test_missing_load_best_model_is_warned_about() -> None:
    """Without load_best_model_at_end the run starts with a warning."""
    EarlyStoppingCallback().on_train_begin(arguments(), TrainerState(), TrainerControl())
    with pytest.warns(UserWarning, match="load_best_model_at_end"):
        EarlyStoppingCallback().on_train_begin(
            arguments(load_best_model_at_end=False), TrainerState(), TrainerControl()
        )


def test_restored_callback_continues_counting() -> None:
    """A callback restored from exported state stops the run where the original would."""
    callback = EarlyStoppingCallback(2, 0.25)
    assert stopped_at(callback, [1.0, 1.1], arguments()) is None
    restored = EarlyStoppingCallback.from_state(callback.state())
    assert vars(restored) == vars(callback)
    control = TrainerControl()
    restored.on_evaluate(arguments(), TrainerState(best_metric=1.0), control, metrics={"eval_loss": 0.8})
    assert control.should_training_stop
