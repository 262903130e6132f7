"""The evaluation loop on the fakes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric, evaluate, predict
from hexloop.domain.events import AnyEvent, Evaluated, EvaluationBegan, EvaluationInterrupted, Logged
from hexloop.domain.loop import StandardLearner
from hexloop.domain.state import RunState
from hexloop.testing import (
    LeastSquares,
    LeastSquaresEvaluator,
    LinearModel,
    ManualClock,
    PlainPrecision,
    SingleProcess,
)
from tests.unit.loop.small import ROWS, Row, every, make_small, names


class RecordingEvaluator(LeastSquaresEvaluator):
    """Records the calls of the loop."""

    def __init__(self) -> None:
        super().__init__(LinearModel(1), ROWS, 4)
        self.calls: list[str] = []

    def batches(self) -> Generator[list[Row], None, None]:
        try:
            yield from super().batches()  # type: ignore[misc]
        finally:
            self.calls.append("closed")

    def begin(self) -> None:
        self.calls.append("begin")
        super().begin()

    def end(self) -> None:
        self.calls.append("end")
        super().end()


def nothing() -> Iterator[AnyEvent]:
    return iter(())


def outcome(events: Generator[AnyEvent, None, object]) -> tuple[list[AnyEvent], object]:
    """Return the events of a generator and its result."""
    seen: list[AnyEvent] = []
    while True:
        try:
            seen.append(next(events))
        except StopIteration as ended:
            return seen, ended.value


def test_an_evaluation_predicts_all_batches_once_and_reports() -> None:
    """It starts, predicts batch by batch, and ends; metrics and speed are in the report and in the last event."""
    evaluator, clock = RecordingEvaluator(), ManualClock()
    reported: list[dict[str, float]] = []

    def ticking() -> Iterator[AnyEvent]:
        clock.advance(0.5)
        return iter(())

    events, metrics = outcome(
        evaluate(
            evaluator,
            prefix="eval",
            step=7,
            clock=clock,
            report=reported.append,
            apply_requests=ticking,
            interrupted=lambda: False,
        )
    )
    assert names(events) == ["EvaluationBegan", *["PredictionStepEnded"] * 4, "Logged", "Evaluated"]
    assert events[0] == EvaluationBegan(7)
    assert isinstance(metrics, dict)
    assert events[-2:] == [Logged(7, metrics), Evaluated(7, metrics)]
    assert reported == [metrics]
    assert evaluator.calls == ["begin", "closed", "end"]
    assert metrics["eval_runtime"] == 2.0
    assert (metrics["eval_samples_per_second"], metrics["eval_steps_per_second"]) == (8.0, 2.0)
    assert metrics["eval_loss"] == pytest.approx(sum(target**2 for _, target in ROWS) / len(ROWS))


def test_an_interrupted_evaluation_reports_nothing() -> None:
    """Interrupted after its second batch it yields an event, returns None, and puts the model back in training mode."""
    evaluator = RecordingEvaluator()
    reported: list[dict[str, float]] = []
    batches = 0

    def apply_requests() -> Iterator[AnyEvent]:
        nonlocal batches
        batches += 1
        return iter(())

    events, metrics = outcome(
        evaluate(
            evaluator,
            prefix="eval",
            step=3,
            clock=ManualClock(),
            report=reported.append,
            apply_requests=apply_requests,
            interrupted=lambda: batches == 2,
        )
    )
    assert metrics is None
    assert reported == []
    assert names(events) == ["EvaluationBegan", *["PredictionStepEnded"] * 2, "EvaluationInterrupted"]
    assert events[-1] == EvaluationInterrupted(3)
    assert evaluator.calls == ["begin", "closed", "end"]


def test_a_failed_evaluation_restores_training_mode() -> None:
    """An error during prediction is explained, and propagated after the evaluator was ended."""

    class Broken(RecordingEvaluator):
        def step(self, batch: object) -> int:
            raise ArithmeticError("no number")

    evaluator, explained = Broken(), list[tuple[str, int, object]]()
    explain = lambda error, number, batch: explained.append((str(error), number, batch))  # noqa: E731
    with pytest.raises(ArithmeticError, match="no number"):
        list(predict(evaluator, 0, nothing, lambda: False, explain))
    assert evaluator.calls == ["begin", "closed", "end"]
    assert explained == [("no number", 1, ROWS[:4])]


def test_a_missing_best_metric_is_a_warning_if_it_is_not_required() -> None:
    """The evaluation is not the best, and the state is as before; a required metric is an error, also a KeyError."""
    state = RunState(run="small")
    with pytest.warns(UserWarning, match=r"the evaluation has no 'eval_f1', but eval_loss; no evaluation is recorded"):
        assert not BestMetric("f1", required=False).observe(state, {"eval_loss": 1.0})
    assert state.best_metric is None
    with pytest.raises(KeyError, match=r"no 'eval_f1'\. Choose one of: eval_loss") as raised:
        BestMetric("f1").observe(state, {"eval_loss": 1.0})
    assert isinstance(raised.value, ConfigurationError)


@pytest.mark.parametrize("observes", [True, False])
def test_the_schedule_receives_the_metrics_once(observes: bool) -> None:
    """From the run, unless the evaluation passes them itself."""
    small = make_small(triggers=every(evaluate=4), schedule_observes=observes)
    observed: list[dict[str, float]] = []
    small.run.scheduler = Mock(wraps=small.run.scheduler, observe=observed.append)
    evaluations = [event.metrics for event in small.events() if isinstance(event, Evaluated)]
    assert len(evaluations) == 4
    assert observed == (evaluations if observes else [])


def test_a_learner_runs_the_given_backward() -> None:
    """It replaces the standard backward pass, and trains to the same parameters if it does the same."""
    losses: list[float] = []

    def learner(trainable: LeastSquares) -> StandardLearner[Any, Any]:
        def backward(loss: Any) -> None:
            losses.append(float(loss))
            SingleProcess().backward(loss)

        return StandardLearner(trainable, PlainPrecision(), SingleProcess(), backward=backward)

    standard, own = make_small(), make_small(learner=learner)
    standard.events(), own.events()
    assert own.parameters == standard.parameters
    assert len(losses) == 16
