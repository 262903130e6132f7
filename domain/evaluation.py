"""The evaluation loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TypeVar

from hexloop.domain.events import (
    AnyEvent,
    Evaluated,
    EvaluationBegan,
    EvaluationInterrupted,
    Logged,
    PredictionStepEnded,
)
from hexloop.domain.speed import speed_metrics
from hexloop.ports.clock import Clock
from hexloop.ports.evaluator import Evaluator

Batch = TypeVar("Batch")

Heed = Callable[[], Iterator[AnyEvent]]
"""Does what somebody asked of the run, in the middle of an evaluation."""


def predict(
    evaluator: Evaluator[Batch], step: int, heed: Heed, interrupted: Callable[[], bool]
) -> Generator[AnyEvent, None, tuple[int, int] | None]:
    """Predict every held-out batch; gives back how many samples and batches, None where the run was stopped."""
    samples = number = 0
    evaluator.begin()
    try:
        with closing(evaluator.batches()) as batches:
            for number, batch in enumerate(batches, 1):
                samples += evaluator.step(batch)
                yield PredictionStepEnded(step, number)
                yield from heed()
                if interrupted():
                    yield EvaluationInterrupted(step)
                    return None
    finally:
        evaluator.end()
    return samples, number


def evaluate(
    evaluator: Evaluator[Batch],
    *,
    prefix: str,
    step: int,
    clock: Clock,
    report: Callable[[dict[str, float]], None],
    heed: Heed,
    interrupted: Callable[[], bool],
) -> Generator[AnyEvent, None, dict[str, float] | None]:
    """Evaluate on all held-out data, report the metrics with the speed, and give them back.

    None where the run was stopped in its middle: nothing was reported then, and it has to start over.
    """
    began = clock.monotonic()
    yield EvaluationBegan(step)
    outcome = yield from predict(evaluator, step, heed, interrupted)
    if outcome is None:
        return None
    samples, batches = outcome
    metrics = evaluator.metrics()
    metrics |= speed_metrics(prefix, clock.monotonic() - began, samples=samples, steps=batches)
    report(metrics)
    yield Logged(step, metrics)
    yield Evaluated(step, metrics)
    return metrics
