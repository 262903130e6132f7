"""Evaluation and prediction, during a run and outside of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hexloop.app.run.determinism import IsolatedRandomness
from hexloop.app.wiring.evaluation import EvalLoopOutput, PredictionOutput, make_evaluator
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain import evaluation as domain
from hexloop.domain.errors import RunStateError
from hexloop.domain.evaluation import speed_metrics
from hexloop.domain.events import AnyEvent, Evaluated
from hexloop.domain.loop import apply_requests
from hexloop.domain.run import Evaluation
from hexloop.ports.device import Device


class OpaquelyEvaluated(Evaluated):
    """An evaluation by an overridden `evaluate` is complete; the method itself has called the callbacks."""


def evaluation_in_training(parts: TrainerParts) -> Evaluation:
    """Yield the events of an evaluation that is due in a run; an overridden `evaluate` is one opaque action."""
    if parts.hooks.evaluate.overridden:
        with IsolatedRandomness(parts.adapters.device):
            metrics: dict[str, float] = parts.hooks.evaluate(ignore_keys=parts.ignore_keys_for_eval)
        yield OpaquelyEvaluated(parts.state.global_step, metrics)
        return metrics
    return (yield from evaluation_events(parts, None, parts.ignore_keys_for_eval, "eval", within_run=True))


def evaluation_reporting_memory(evaluate: Callable[[], Evaluation], device: Device, eval_batch_size: int) -> Evaluation:
    """Evaluate; raise RunStateError if memory runs out, so that no smaller training batch size is tried."""
    try:
        return (yield from evaluate())
    except Exception as error:
        if not device.is_out_of_memory(error):
            raise
        raise RunStateError(
            f"{device.name} ran out of memory for evaluation batches of {eval_batch_size}; auto_find_batch_size only "
            "finds a training batch size, so choose a smaller per_device_eval_batch_size."
        ) from error


def evaluation_events(
    parts: TrainerParts, dataset: Any, ignore_keys: list[str] | None, prefix: str, within_run: bool = False
) -> Evaluation:
    """Yield the events of an evaluation; return the metrics of all data sets together.

    within_run: requests to the live run may interrupt it. The random streams of a live run are not affected.
    """
    given = dataset is not None
    dataset = dataset if given else parts.eval_dataset
    if not isinstance(dataset, dict):
        with IsolatedRandomness(parts.adapters.device) as draws:
            return (yield from _evaluate_one(parts, dataset if given else None, ignore_keys, prefix, within_run, draws))
    together: dict[str, float] = {}
    for name, one in dataset.items():
        chosen = one if given else name
        metrics = yield from evaluation_events(parts, chosen, ignore_keys, f"{prefix}_{name}", within_run)
        if metrics is None:
            return None
        together |= metrics
    return together


def _evaluate_one(
    parts: TrainerParts,
    dataset: Any,
    ignore_keys: list[str] | None,
    prefix: str,
    within_run: bool,
    draws: IsolatedRandomness,
) -> Evaluation:
    loader = parts.hooks.get_eval_dataloader(dataset)
    loss_only = True if parts.compute_metrics is None else None
    step, clock = parts.state.global_step, parts.adapters.clock
    if parts.hooks.evaluation_loop.overridden:
        began = clock.monotonic()
        output = parts.hooks.evaluation_loop(loader, "Evaluation", loss_only, ignore_keys, prefix)
        metrics = _with_speed(parts, output, prefix, clock.monotonic() - began)
        parts.hooks.log(metrics)
        yield Evaluated(step, metrics)
        return metrics
    run = parts.run if within_run else None

    def apply_run_requests() -> Iterator[AnyEvent]:
        if run is not None and run.agreement.waiting:
            with draws.suspended():
                yield from apply_requests(run)

    return (
        yield from domain.evaluate(
            make_evaluator(parts, loader, loss_only, ignore_keys, prefix, keep=False),
            prefix=prefix,
            step=step,
            clock=clock,
            report=parts.hooks.log,
            apply_requests=apply_run_requests,
            interrupted=lambda: run is not None and run.stopped,
        )
    )


def _with_speed(parts: TrainerParts, output: EvalLoopOutput, prefix: str, seconds: float) -> dict[str, float]:
    """Return the metrics of an evaluation loop, with its speed in full batches."""
    samples = output.num_samples or 0
    steps = -(-samples // max(1, parts.args.eval_batch_size))
    return {**(output.metrics or {}), **speed_metrics(prefix, seconds, samples, steps)}


def evaluate(parts: TrainerParts, dataset: Any, ignore_keys: list[str] | None, prefix: str) -> dict[str, float]:
    """Evaluate now, and call the callbacks."""
    events = evaluation_events(parts, dataset, ignore_keys, prefix)
    while True:
        try:
            parts.dispatcher.dispatch(next(events))
        except StopIteration as ended:
            return dict(ended.value)


def evaluation_loop(
    parts: TrainerParts,
    loader: Any,
    description: str,
    loss_only: bool | None,
    ignore_keys: list[str] | None,
    prefix: str,
) -> EvalLoopOutput:
    """Predict every batch of `loader`, and call the callbacks. The outputs of a "Prediction" are always kept."""
    with IsolatedRandomness(parts.adapters.device):
        evaluator = make_evaluator(parts, loader, loss_only, ignore_keys, prefix, keep=description == "Prediction")
        for event in domain.predict(evaluator, parts.state.global_step, lambda: iter(()), lambda: False):
            parts.dispatcher.dispatch(event)
        metrics = evaluator.metrics()
    return EvalLoopOutput(evaluator.predictions, evaluator.label_ids, metrics, evaluator.samples)


def predict(parts: TrainerParts, dataset: Any, ignore_keys: list[str] | None, prefix: str) -> PredictionOutput:
    """Predict a data set, and call the callbacks."""
    clock = parts.adapters.clock
    with IsolatedRandomness(parts.adapters.device):
        loader = parts.hooks.get_test_dataloader(dataset)
        began = clock.monotonic()
        output = parts.hooks.evaluation_loop(loader, "Prediction", ignore_keys=ignore_keys, metric_key_prefix=prefix)
    metrics = _with_speed(parts, output, prefix, clock.monotonic() - began)
    parts.dispatcher.call("on_predict", metrics=metrics)
    return PredictionOutput(output.predictions, output.label_ids, metrics)
