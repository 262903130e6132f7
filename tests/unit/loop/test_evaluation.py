"""The evaluation loop, on the fakes."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from hexloop.domain.evaluation import evaluate, predict
from hexloop.domain.events import AnyEvent, Evaluated, EvaluationBegan, EvaluationInterrupted, Logged
from hexloop.testing import LeastSquaresEvaluator, LinearModel, ManualClock
from tests.unit.loop.small import ROWS, Row, names


class Watched(LeastSquaresEvaluator):
    """Notes what the loop asks of it."""

    def __init__(self) -> None:
        super().__init__(LinearModel(1), ROWS, 4)
        self.asked: list[str] = []

    def batches(self) -> Generator[list[Row], None, None]:
        try:
            yield from super().batches()  # type: ignore[misc]
        finally:
            self.asked.append("closed")

    def begin(self) -> None:
        self.asked.append("begin")
        super().begin()

    def end(self) -> None:
        self.asked.append("end")
        super().end()


def nothing() -> Iterator[AnyEvent]:
    return iter(())


def outcome(events: Generator[AnyEvent, None, object]) -> tuple[list[AnyEvent], object]:
    """The events of a generator, and what it gives back."""
    seen: list[AnyEvent] = []
    while True:
        try:
            seen.append(next(events))
        except StopIteration as ended:
            return seen, ended.value


def test_an_evaluation_predicts_everything_once_and_reports() -> None:
    """Begun, predicted batch by batch, ended; the metrics come with the speed, in the report and in the last event."""
    evaluator, clock = Watched(), ManualClock()
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
    assert evaluator.asked == ["begin", "closed", "end"]
    assert metrics["eval_runtime"] == 2.0
    assert (metrics["eval_samples_per_second"], metrics["eval_steps_per_second"]) == (8.0, 2.0)
    assert metrics["eval_loss"] == pytest.approx(sum(target**2 for _, target in ROWS) / len(ROWS))


def test_an_interrupted_evaluation_reports_nothing_and_leaves_training_as_it_was() -> None:
    """Interrupted after its second batch it says so, gives None, and puts the model back."""
    evaluator = Watched()
    reported: list[dict[str, float]] = []
    batches = 0

    def heed() -> Iterator[AnyEvent]:
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
            apply_requests=heed,
            interrupted=lambda: batches == 2,
        )
    )
    assert metrics is None
    assert reported == []
    assert names(events) == ["EvaluationBegan", *["PredictionStepEnded"] * 2, "EvaluationInterrupted"]
    assert events[-1] == EvaluationInterrupted(3)
    assert evaluator.asked == ["begin", "closed", "end"]


def test_a_broken_evaluation_puts_the_model_back() -> None:
    """An error while predicting goes on after the evaluator was ended."""

    class Broken(Watched):
        def step(self, batch: object) -> int:
            raise ArithmeticError("no number")

    evaluator = Broken()
    with pytest.raises(ArithmeticError, match="no number"):
        list(predict(evaluator, 0, nothing, lambda: False))
    assert evaluator.asked == ["begin", "closed", "end"]
