"""Evaluation: the loop over held-out data, its speed metrics, and which result is the best."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple, Protocol, TypeVar

from attrs import frozen

from hexloop.domain import events
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.state import Cause, RunState
from hexloop.domain.wording import Problem
from hexloop.ports.batches import Evaluator
from hexloop.ports.process import Clock

Batch = TypeVar("Batch")


class EvalLoopOutput(NamedTuple):
    """The result of `Trainer.evaluation_loop`.

    Args:
        predictions: the predictions, as arrays of shape (samples, ...).
        label_ids: the labels; None if the data have none.
        metrics: the metrics by name.
        num_samples: the number of samples.
    """

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None
    num_samples: int | None


class PredictionOutput(NamedTuple):
    """The result of `Trainer.predict`.

    Args:
        predictions: the predictions, as arrays of shape (samples, ...).
        label_ids: the labels; None if the data have none.
        metrics: the metrics by name.
    """

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None


UTILISATION = "mfu"
"""The name under which model FLOP utilisation is logged."""

CLOCK_READINGS = ("runtime", "per_second", UTILISATION, *(cause.logged_as for cause in Cause))
"""The ends of the names of logged values that differ between any two runs: of speeds, and of shares of time."""

MEMORY_READING = "_mem_"
"""A part of the name of every reading of the memory."""

NOT_MEASURED = (*CLOCK_READINGS, "_model_preparation_time", "epoch")
"""The ends of the names of figures that are no measure of the model."""

ApplyRequests = Callable[[], Iterator[events.AnyEvent]]
"""Applies pending requests to the run in the middle of an evaluation."""

Explain = Callable[[Exception, int, Any], None]
"""Receives an error in a batch, its number from 1 on, and the batch, to add a note to the error."""


def evaluate(
    evaluator: Evaluator[Batch],
    *,
    prefix: str,
    step: int,
    clock: Clock,
    report: Callable[[dict[str, float]], None],
    apply_requests: ApplyRequests,
    interrupted: Callable[[], bool],
    explain: Explain = lambda *_: None,
) -> Generator[events.AnyEvent, None, dict[str, float] | None]:
    """Evaluate on all held-out data, report the metrics and the speed, and return them.

    Returns None, and reports nothing, if a stop interrupted the evaluation; it then starts over on resume.
    """
    began = clock.monotonic()
    yield events.EvaluationBegan(step)
    outcome = yield from predict(evaluator, step, apply_requests, interrupted, explain)
    if outcome is None:
        return None
    samples, batches = outcome
    metrics = evaluator.metrics()
    metrics |= speed_metrics(prefix, clock.monotonic() - began, samples=samples, steps=batches)
    report(metrics)
    yield events.Logged(step, metrics)
    yield events.Evaluated(step, metrics)
    return metrics


def predict(
    evaluator: Evaluator[Batch],
    step: int,
    apply_requests: ApplyRequests,
    interrupted: Callable[[], bool],
    explain: Explain = lambda *_: None,
) -> Generator[events.AnyEvent, None, tuple[int, int] | None]:
    """Predict every held-out batch and return the numbers of samples and batches, or None if a stop interrupted it."""
    samples = number = 0
    evaluator.begin()
    try:
        with closing(evaluator.batches()) as batches:
            for number, batch in enumerate(batches, 1):
                try:
                    samples += evaluator.step(batch)
                except Exception as error:
                    explain(error, number, batch)
                    raise
                yield events.PredictionStepEnded(step, number)
                yield from apply_requests()
                if interrupted():
                    yield events.EvaluationInterrupted(step)
                    return None
    finally:
        evaluator.end()
    return samples, number


def is_reading(name: str) -> bool:
    """Return whether a logged value of this name is a reading of the clock or of the memory."""
    return name.endswith(CLOCK_READINGS) or MEMORY_READING in name


def speed_metrics(
    prefix: str, seconds: float, samples: float | None = None, steps: float | None = None, tokens: float | None = None
) -> dict[str, float]:
    """Return `<prefix>_runtime` in seconds, and samples, steps and tokens per second where they are known.

    Names and rounding are those of transformers: 4 decimals for the runtime, 3 for the rates, none if `seconds` is 0.
    """
    figures = {f"{prefix}_runtime": round(seconds, 4)}
    if seconds == 0:
        return figures
    for name, count in (("samples", samples), ("steps", steps), ("tokens", tokens)):
        if count is not None:
            figures[f"{prefix}_{name}_per_second"] = round(count / seconds, 3)
    return figures


@frozen
class BestMetric:
    """The metric that decides which evaluation is the best. With an empty name, no evaluations are compared.

    prefix: the prefix of the names of evaluation metrics ("eval_"); `name` may be given with or without it.
    required: whether an evaluation that lacks the metric is an error; otherwise it is not compared, with a warning.
    """

    name: str = ""
    greater_is_better: bool = False
    prefix: str = "eval_"
    required: bool = True

    @property
    def full_name(self) -> str:
        """The name under which evaluations report the metric."""
        return self.name if self.name.startswith(self.prefix) else self.prefix + self.name

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return the metric's value.

        Raises ConfigurationError, which is also a KeyError, with the available metrics if it is missing.
        """
        if self.full_name not in metrics:
            measured = any(not name.endswith(NOT_MEASURED) for name in metrics)
            remedy = (
                f"Choose one of: {', '.join(sorted(metrics))}."
                if measured
                else "It measured nothing: its data yielded no batches, or no labels of the names in label_names."
            )
            problem = (
                f"metric_for_best_model={self.name!r} was not found: the evaluation has no {self.full_name!r}. {remedy}"
            )
            raise ConfigurationError(Problem(problem, kind=KeyError))
        return metrics[self.full_name]

    def observe(self, state: RunState, metrics: Mapping[str, float]) -> bool:
        """Return whether an evaluation is the best so far, and if so, record it in `state`."""
        if not self.name:
            return False
        if not self.required and self.full_name not in metrics:
            warnings.warn(
                f"metric_for_best_model={self.name!r} was not found: the evaluation has no {self.full_name!r}, but "
                f"{', '.join(sorted(metrics)) or '(none)'}; no evaluation is recorded as the best.",
                stacklevel=2,
            )
            return False
        value = self.value(metrics)
        best = state.best_metric
        if best is None:
            best = float("-inf") if self.greater_is_better else float("inf")
            state.best_metric = best
        if not (value > best if self.greater_is_better else value < best):
            return False
        state.best_metric = value
        state.best_step = state.step
        return True


def patience_after(
    metric: float, best: float | None, counter: int, *, greater_is_better: bool, threshold: float = 0.0
) -> int:
    """Return how many evaluations in a row did not improve, after one that measured `metric`.

    best: the best metric before it, None for the first evaluation. counter: the count before it.
    threshold: an improvement must exceed `best` by more than this. NaN never is an improvement.
    """
    if best is None:
        return 0
    better = metric > best if greater_is_better else metric < best
    return 0 if better and abs(metric - best) > threshold else counter + 1


class BestMetricArguments(Protocol):
    """The arguments that name the best metric, as `TrainingArguments` has them."""

    metric_for_best_model: Any
    greater_is_better: Any
    load_best_model_at_end: bool
    save_strategy: Any


def best_metric_named(args: BestMetricArguments) -> BestMetric:
    """Return the metric that decides which evaluation is the best; required if the run loads or saves the best."""
    required = args.load_best_model_at_end or str(getattr(args.save_strategy, "value", args.save_strategy)) == "best"
    return BestMetric(args.metric_for_best_model or "", bool(args.greater_is_better), required=required)
