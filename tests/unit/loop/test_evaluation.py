"""The evaluation loop on the fakes."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from hexloop.domain.evaluation import evaluate, predict
from hexloop.domain.events import AnyEvent, Evaluated, EvaluationBegan, EvaluationInterrupted, Logged
from hexloop.testing import LeastSquaresEvaluator, LinearModel, ManualClock
from tests.unit.loop.small import ROWS, Row, names


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
    """An error during prediction is propagated after the evaluator was ended."""

    class Broken(RecordingEvaluator):
        def step(self, batch: object) -> int:
            raise ArithmeticError("no number")

    evaluator = Broken()
    with pytest.raises(ArithmeticError, match="no number"):
        list(predict(evaluator, 0, nothing, lambda: False))
    assert evaluator.calls == ["begin", "closed", "end"]
