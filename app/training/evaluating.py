"""Evaluation and prediction of a Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hexloop.adapters.evaluator.torch.outputs import EvalLoopOutput, PredictionOutput
from hexloop.app.training.evaluators import make_evaluator
from hexloop.app.training.hooks import is_overridden
from hexloop.app.training.live import OwnDraws
from hexloop.app.training.memory_metrics import measured
from hexloop.domain import evaluation as domain
from hexloop.domain.errors import RunStateError
from hexloop.domain.evaluation import speed_metrics
from hexloop.domain.events import AnyEvent, Evaluated
from hexloop.domain.loop import apply_requests
from hexloop.domain.run import Evaluation

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


class OpaquelyEvaluated(Evaluated):
    """An evaluation by an overridden method is complete, of which the callbacks were told by that method itself."""


def evaluation_in_training(trainer: Trainer) -> Evaluation:
    """What the loop does when an evaluation is due; an overridden `evaluate` is one opaque action."""
    if is_overridden(trainer, "evaluate"):
        with OwnDraws(trainer.adapters.device):
            metrics = trainer.evaluate(ignore_keys=trainer.ignore_keys_for_eval)
        yield OpaquelyEvaluated(trainer.state.global_step, metrics)
        return metrics
    return (yield from evaluation_events(trainer, None, trainer.ignore_keys_for_eval, "eval", within_run=True))


def evaluation_apart(trainer: Trainer) -> Evaluation:
    """As `evaluation_in_training`; that it has no room is no reason to try smaller training batches."""
    try:
        return (yield from trainer.evaluation_in_training())
    except Exception as error:
        device = trainer.adapters.device
        if not device.is_out_of_memory(error):
            raise
        raise RunStateError(
            f"You chose auto_find_batch_size=True, which finds a size for training, but {device.name} has no room for "
            f"evaluation batches of {trainer.args.eval_batch_size}; give a smaller per_device_eval_batch_size."
        ) from error


def evaluation_events(
    trainer: Trainer, dataset: Any, ignore_keys: list[str] | None, prefix: str, within_run: bool = False
) -> Evaluation:
    """The events of an evaluation; the metrics of several data sets are put together.

    `within_run` lets requests to the live run interrupt it. What it draws at random a live run does not notice.
    """
    given = dataset is not None
    dataset = dataset if given else trainer.eval_dataset
    if not isinstance(dataset, dict):
        with OwnDraws(trainer.adapters.device) as draws:
            return (
                yield from _evaluate_one(trainer, dataset if given else None, ignore_keys, prefix, within_run, draws)
            )
    together: dict[str, float] = {}
    for name, one in dataset.items():
        chosen = one if given else name
        metrics = yield from evaluation_events(trainer, chosen, ignore_keys, f"{prefix}_{name}", within_run)
        if metrics is None:
            return None
        together |= metrics
    return together


def _evaluate_one(
    trainer: Trainer, dataset: Any, ignore_keys: list[str] | None, prefix: str, within_run: bool, draws: OwnDraws
) -> Evaluation:
    loader = trainer.get_eval_dataloader(dataset)
    loss_only = True if trainer.compute_metrics is None else None
    step, clock = trainer.state.global_step, trainer.adapters.clock
    if is_overridden(trainer, "evaluation_loop"):
        began = clock.monotonic()
        output = trainer.evaluation_loop(loader, "Evaluation", loss_only, ignore_keys, prefix)
        metrics = _with_speed(trainer, output, prefix, clock.monotonic() - began)
        trainer.log(metrics)
        yield Evaluated(step, metrics)
        return metrics
    run = trainer._session.run if within_run and trainer._session is not None else None

    def heed_requests() -> Iterator[AnyEvent]:
        if run is not None and run.agreement.waiting:
            with draws.suspended():
                yield from apply_requests(run)

    return (
        yield from domain.evaluate(
            make_evaluator(trainer, loader, loss_only, ignore_keys, prefix, keep=False),
            prefix=prefix,
            step=step,
            clock=clock,
            report=trainer.log,
            apply_requests=heed_requests,
            interrupted=lambda: run is not None and run.stopped,
        )
    )


def _with_speed(trainer: Trainer, output: EvalLoopOutput, prefix: str, seconds: float) -> dict[str, float]:
    """The metrics of an evaluation loop, with its speed in full batches."""
    samples = output.num_samples or 0
    steps = -(-samples // max(1, trainer.args.eval_batch_size))
    return {**(output.metrics or {}), **speed_metrics(prefix, seconds, samples, steps)}


def evaluate(trainer: Trainer, dataset: Any, ignore_keys: list[str] | None, prefix: str) -> dict[str, float]:
    """Evaluate now, telling the callbacks; an overridden `evaluate` is asked for each of several data sets."""
    several = trainer.eval_dataset if dataset is None else dataset
    if isinstance(several, dict) and is_overridden(trainer, "evaluate"):
        return _ask_for_each(trainer, several, dataset is not None, ignore_keys, prefix)
    with measured(trainer._memory, "eval") as figures:
        events = evaluation_events(trainer, dataset, ignore_keys, prefix)
        while True:
            try:
                trainer._dispatcher.dispatch(next(events))
            except StopIteration as ended:
                metrics = dict(ended.value)
                break
    return {**metrics, **figures}


def _ask_for_each(
    trainer: Trainer, several: dict[str, Any], given: bool, ignore_keys: list[str] | None, prefix: str
) -> dict[str, float]:
    together: dict[str, float] = {}
    trainer._asks_for_each = True
    try:
        for name, one in several.items():
            together |= trainer.evaluate(
                eval_dataset=one if given else name, ignore_keys=ignore_keys, metric_key_prefix=f"{prefix}_{name}"
            )
    finally:
        trainer._asks_for_each = False
    return together


def evaluation_loop(
    trainer: Trainer, loader: Any, description: str, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str
) -> EvalLoopOutput:
    """Predict every batch of `loader`, telling the callbacks. A "Prediction" is kept though each batch is measured."""
    with OwnDraws(trainer.adapters.device):
        evaluator = make_evaluator(trainer, loader, loss_only, ignore_keys, prefix, keep=description == "Prediction")
        for event in domain.predict(evaluator, trainer.state.global_step, lambda: iter(()), lambda: False):
            trainer._dispatcher.dispatch(event)
        metrics = evaluator.metrics()
    return EvalLoopOutput(evaluator.predictions, evaluator.label_ids, metrics, evaluator.samples)


def predict(trainer: Trainer, dataset: Any, ignore_keys: list[str] | None, prefix: str) -> PredictionOutput:
    """Predict a data set, telling the callbacks."""
    clock = trainer.adapters.clock
    with OwnDraws(trainer.adapters.device):
        loader = trainer.get_test_dataloader(dataset)
        began = clock.monotonic()
        output = trainer.evaluation_loop(loader, "Prediction", ignore_keys=ignore_keys, metric_key_prefix=prefix)
    metrics = _with_speed(trainer, output, prefix, clock.monotonic() - began)
    trainer._dispatcher.call("on_predict", metrics=metrics)
    return PredictionOutput(output.predictions, output.label_ids, metrics)
