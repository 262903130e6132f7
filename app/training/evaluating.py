"""Evaluation and prediction of a Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from hexloop.adapters.batches.torch.rows import row_count
from hexloop.adapters.batches.torch.transfer import transfer_to
from hexloop.adapters.evaluator.torch.evaluator import EvaluationOptions, TorchEvaluator
from hexloop.adapters.evaluator.torch.outputs import EvalLoopOutput, PredictionOutput
from hexloop.adapters.evaluator.torch.prediction_step import PredictionStep
from hexloop.adapters.trainable.torch.items import item_count
from hexloop.app.training.columns import returns_loss_unasked
from hexloop.app.training.hooks import is_overridden
from hexloop.app.training.losses import loss_in_force
from hexloop.domain import evaluation as domain
from hexloop.domain.boundary import heed
from hexloop.domain.events import AnyEvent, Evaluated
from hexloop.domain.run import Evaluation
from hexloop.domain.speed import speed_metrics

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


class OpaquelyEvaluated(Evaluated):
    """An evaluation by an overridden method is complete, of which the callbacks were told by that method itself."""


def standard_prediction_step(trainer: Trainer) -> PredictionStep:
    """The prediction step that `Trainer.prediction_step` is unless it is overridden.

    A loss that divides by the item count in training does so here, where the items are those of one batch.
    """
    loss = loss_in_force(trainer)

    def compute(model: Any, inputs: Any, return_outputs: bool) -> Any:
        items = item_count(inputs, trainer.label_names, loss.shifted) if loss.normalises else None
        return loss.compute(model, inputs, return_outputs=return_outputs, num_items_in_batch=items)

    config = getattr(trainer.model, "config", None)
    return PredictionStep(
        compute,
        trainer.adapters.precision.wrap,
        trainer.label_names,
        getattr(config, "keys_to_ignore_at_inference", ("past_key_values",)),
        not trainer.label_names and returns_loss_unasked(trainer.model),
    )


def make_evaluator(
    trainer: Trainer, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str
) -> TorchEvaluator:
    """Whoever answers the Evaluator port for `loader`."""
    args = trainer.args
    trainer.callback_handler.eval_dataloader = loader
    in_training = trainer.is_in_train
    options = EvaluationOptions(
        prefix=prefix,
        loss_only=args.prediction_loss_only if loss_only is None else loss_only,
        ignore_keys=ignore_keys,
        accumulation_steps=args.eval_accumulation_steps,
        concatenate=args.eval_do_concat_batches,
        by_batch=args.batch_eval_metrics,
        include=args.include_for_metrics,
        filter_nan=args.logging_nan_inf_filter,
        main_input=trainer.main_input_name,
        dtype=None if in_training else _full_evaluation_type(trainer),
    )
    overridden = is_overridden(trainer, "prediction_step")
    return TorchEvaluator(
        trainer.model_wrapped if in_training else trainer.place_model(),
        loader,
        trainer.prediction_step if overridden else standard_prediction_step(trainer),
        transfer_to(trainer.adapters.device.name, non_blocking=True),
        row_count,
        trainer.compute_metrics,
        trainer.preprocess_logits_for_metrics or (lambda logits, _labels: logits),
        options,
    )


def _full_evaluation_type(trainer: Trainer) -> torch.dtype | None:
    if trainer.args.bf16_full_eval:
        return torch.bfloat16
    return torch.float16 if trainer.args.fp16_full_eval else None


def evaluation_in_training(trainer: Trainer) -> Evaluation:
    """What the loop does when an evaluation is due; an overridden `evaluate` is one opaque action."""
    if is_overridden(trainer, "evaluate"):
        metrics = trainer.evaluate(ignore_keys=trainer.ignore_keys_for_eval)
        yield OpaquelyEvaluated(trainer.state.global_step, metrics)
        return metrics
    return (yield from evaluation_events(trainer, None, trainer.ignore_keys_for_eval, "eval", within_run=True))


def evaluation_events(
    trainer: Trainer, dataset: Any, ignore_keys: list[str] | None, prefix: str, within_run: bool = False
) -> Evaluation:
    """The events of an evaluation; the metrics of several data sets are put together.

    `within_run` lets requests to the live run interrupt it.
    """
    given = dataset is not None
    dataset = dataset if given else trainer.eval_dataset
    if isinstance(dataset, dict):
        together: dict[str, float] = {}
        for name, one in dataset.items():
            chosen = one if given else name
            metrics = yield from evaluation_events(trainer, chosen, ignore_keys, f"{prefix}_{name}", within_run)
            if metrics is None:
                return None
            together |= metrics
        return together
    return (yield from _evaluate_one(trainer, dataset if given else None, ignore_keys, prefix, within_run))


def _evaluate_one(
    trainer: Trainer, dataset: Any, ignore_keys: list[str] | None, prefix: str, within_run: bool
) -> Evaluation:
    loader = trainer.get_eval_dataloader(dataset)
    loss_only = True if trainer.compute_metrics is None else None
    step, clock = trainer.state.global_step, trainer.adapters.clock
    if is_overridden(trainer, "evaluation_loop"):
        began = clock.monotonic()
        output = trainer.evaluation_loop(loader, "Evaluation", loss_only, ignore_keys, prefix)
        metrics = dict(output.metrics or {})
        metrics |= speed_metrics(prefix, clock.monotonic() - began, output.num_samples, len(loader))
        trainer.log(metrics)
        yield Evaluated(step, metrics)
        return metrics
    run = trainer.session.run if within_run and trainer.session is not None else None

    def heed_requests() -> Iterator[AnyEvent]:
        return heed(run) if run is not None and run.agreement.waiting else iter(())

    return (
        yield from domain.evaluate(
            make_evaluator(trainer, loader, loss_only, ignore_keys, prefix),
            prefix=prefix,
            step=step,
            clock=clock,
            report=trainer.log,
            heed=heed_requests,
            interrupted=lambda: run is not None and run.stopped,
        )
    )


def evaluate(trainer: Trainer, dataset: Any, ignore_keys: list[str] | None, prefix: str) -> dict[str, float]:
    """Evaluate now, telling the callbacks."""
    events = evaluation_events(trainer, dataset, ignore_keys, prefix)
    while True:
        try:
            trainer.dispatcher.dispatch(next(events))
        except StopIteration as ended:
            return dict(ended.value)


def evaluation_loop(
    trainer: Trainer, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str
) -> EvalLoopOutput:
    """Predict every batch of `loader`, telling the callbacks."""
    evaluator = make_evaluator(trainer, loader, loss_only, ignore_keys, prefix)
    for event in domain.predict(evaluator, trainer.state.global_step, lambda: iter(()), lambda: False):
        trainer.dispatcher.dispatch(event)
    metrics = evaluator.metrics()
    return EvalLoopOutput(evaluator.predictions, evaluator.label_ids, metrics, evaluator.samples)


def predict(trainer: Trainer, dataset: Any, ignore_keys: list[str] | None, prefix: str) -> PredictionOutput:
    """Predict a data set, telling the callbacks."""
    clock = trainer.adapters.clock
    began = clock.monotonic()
    loader = trainer.get_test_dataloader(dataset)
    output = trainer.evaluation_loop(loader, "Prediction", ignore_keys=ignore_keys, metric_key_prefix=prefix)
    metrics = dict(output.metrics or {})
    samples = output.num_samples or 0
    steps = -(-samples // max(1, trainer.args.eval_batch_size))
    metrics |= speed_metrics(prefix, clock.monotonic() - began, samples, steps)
    trainer.dispatcher.call("on_predict", metrics=metrics)
    return PredictionOutput(output.predictions, output.label_ids, metrics)
