"""The evaluator of a model: prediction step, options and batches, from the arguments and the hooks."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from hexloop.adapters.batches.torch.structure import row_count, shallow_copy
from hexloop.adapters.evaluator.torch.evaluator import (
    EvaluationOptions,
    PredictionStep,
    RankGatherer,
    SingleRank,
    TorchEvaluator,
)
from hexloop.adapters.trainable.torch.loss import in_full_precision
from hexloop.adapters.trainable.torch.trainable import item_count
from hexloop.app.arguments import TrainingArguments
from hexloop.app.wiring.data import batch_transfer, evaluation_batches, expected_rows
from hexloop.app.wiring.losses import HALF_FORMATS, run_loss
from hexloop.app.wiring.model import with_past
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import is_sharded, refuse_unprepared
from hexloop.domain.errors import ConfigurationError


def standard_prediction_step(parts: TrainerParts) -> Callable[..., Any]:
    """Return what `Trainer.prediction_step` does unless it is overridden.

    If `_prepare_inputs` is overridden, the step predicts the inputs that it returns.
    """
    step = _prediction_step(parts)
    if not parts.hooks.prepare_inputs.overridden:
        return step

    def prepare(inputs: Any) -> Any:
        return parts.hooks.prepare_inputs(shallow_copy(inputs))

    return lambda model, inputs, *given, **named: step(model, prepare(inputs), *given, **named)


def _prediction_step(parts: TrainerParts) -> PredictionStep:
    """Return the step. A loss that divides by the item count divides by that of the batch.

    Results that mixed precision computes in half precision are returned in float32.
    """
    loss = run_loss(parts)
    precision = parts.adapters.precision

    def compute(model: Any, inputs: Any, return_outputs: bool) -> Any:
        items = item_count(inputs, parts.label_names, loss.shifted) if loss.normalises else None
        return loss.compute(model, inputs, return_outputs=return_outputs, num_items_in_batch=items)

    def wrap_in_full_precision(forward: Any) -> Any:
        wrapped = precision.wrap(forward)
        return lambda *args, **kwargs: in_full_precision(wrapped(*args, **kwargs))

    config = getattr(parts.model, "config", None)
    ignored = () if config is None else getattr(config, "keys_to_ignore_at_inference", ("past_key_values",))
    return PredictionStep(
        compute,
        wrap_in_full_precision if precision.name in HALF_FORMATS else precision.wrap,
        parts.label_names,
        ignored,
        not parts.label_names and parts.can_return_loss,
    )


def make_evaluator(
    parts: TrainerParts, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str, keep: bool
) -> TorchEvaluator:
    """Return the Evaluator adapter for `loader`. keep: keep the predictions even if metrics are computed by batch.

    Raises ConfigurationError if `compute_metrics` cannot compute metrics in the way that the arguments require.
    """
    args = parts.args
    refuse_metrics(args, parts.compute_metrics)
    parts.callback_handler.eval_dataloader = loader
    model = _prepared_model(parts) if parts.run is None else _model_in_training(parts)
    rows = expected_rows(loader)
    loader = evaluation_batches(parts, loader)
    options = EvaluationOptions(
        prefix=prefix,
        loss_only=args.prediction_loss_only if loss_only is None else loss_only,
        ignore_keys=ignore_keys,
        accumulation_steps=args.eval_accumulation_steps,
        concatenate=args.eval_do_concat_batches,
        by_batch=args.batch_eval_metrics,
        keep=keep,
        include=args.include_for_metrics,
        filter_nan=args.logging_nan_inf_filter,
        main_input=parts.main_input_name,
        dtype=_evaluation_dtype(args) if parts.run is None else None,
        expected_rows=rows or 0,
        folder=_created(args.predictions_folder),
        preparation_seconds=parts.preparation.seconds,
    )
    known = "an unknown number of" if rows is None else rows
    logging.getLogger("hexloop").info("Predicting %s samples in batches of %d.", known, args.eval_batch_size)
    overridden = parts.hooks.prediction_step.overridden
    takes_any = overridden or parts.hooks.compute_loss.overridden
    step = parts.hooks.prediction_step.method if overridden else standard_prediction_step(parts)
    return TorchEvaluator(
        model,
        loader,
        step if args.past_index < 0 else with_past(args.past_index, step),
        batch_transfer(parts, takes_any),
        row_count,
        parts.compute_metrics,
        parts.preprocess_logits_for_metrics or (lambda logits, _labels: logits),
        options,
        _rank_gatherer(parts),
        modes=parts.modes,
    )


def _model_in_training(parts: TrainerParts) -> Any:
    """Return the wrapped model; in data parallelism over processes the inner model, because no gradients are summed."""
    parallelism = parts.adapters.parallelism
    if parallelism.capabilities.processes and not parallelism.capabilities.sharded:
        return parts.model
    return parts.model_wrapped


def _prepared_model(parts: TrainerParts) -> Any:
    """Return the model outside of a run, on its device and in evaluation mode, in which it stays.

    Before the first run, records how many seconds this took, rounded to 4 decimals.
    """
    clock = parts.adapters.clock
    began = clock.monotonic()
    model = parts.hooks.place_model()
    refuse_unprepared(parts.adapters, parts.model)
    parallelism = parts.adapters.parallelism
    if is_sharded(parallelism, parts.model):
        model = parts.model_wrapped
    elif parallelism.capabilities.several_devices:
        model, _ = parallelism.prepare(model, lambda _wrapped: None)
    if parts.preparation.seconds is None and parts.state.global_step == 0:
        parts.preparation.seconds = round(clock.monotonic() - began, 4)
    model.eval()
    return model


def _evaluation_dtype(args: TrainingArguments) -> torch.dtype | None:
    if args.bf16_full_eval:
        return torch.bfloat16
    return torch.float16 if args.fp16_full_eval else None


def _created(folder: str | None) -> str | None:
    """Create the folder if needed and return its path. Raises ConfigurationError if it cannot be created."""
    if folder is not None:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                [
                    f"predictions_folder={folder!r} does not exist and cannot be created ({error}); choose another "
                    "folder."
                ]
            ) from error
    return folder


def _rank_gatherer(parts: TrainerParts) -> RankGatherer:
    """Return what gathers the predictions of all processes."""
    gatherer: RankGatherer
    if parts.adapters.collectives.world_size == 1:
        return SingleRank()
    gatherer = tensor_gatherer(parts.adapters.device.name)
    return gatherer


def tensor_gatherer(device: str) -> Any:
    """Return what gathers and sums tensors of all processes."""
    from hexloop.adapters.collectives.torch.tensors import TensorRanks

    return TensorRanks(device)


def refuse_metrics(args: TrainingArguments, compute: Callable[..., Any] | None) -> None:
    """Raise ConfigurationError if metrics are to be computed by batch, and the function does not support that."""
    if not args.batch_eval_metrics or compute is None:
        return
    parameters = inspect.signature(compute).parameters.values()
    if not any(each.name == "compute_result" or each.kind is each.VAR_KEYWORD for each in parameters):
        raise ConfigurationError(
            [
                "batch_eval_metrics=True needs a compute_metrics with a parameter compute_result, which is True for "
                "the last batch; add it, collect what the metrics need at each call, and return them at the last one."
            ]
        )
