"""The loss of a run, and the evaluator of a model: prediction step, options and batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, cast

import torch

from hexloop.adapters.batches.torch.loader import example_count, expected_rows
from hexloop.adapters.batches.torch.reproduction import rows_to_keep
from hexloop.adapters.batches.torch.structure import row_count
from hexloop.adapters.evaluator.torch.evaluator import EvaluationOptions, Modes, PredictionStep, TorchEvaluator
from hexloop.adapters.evaluator.torch.gathering import SingleRank, TruncatedRanks
from hexloop.adapters.evaluator.torch.tracing import TracedModel, warn_of_no_trace
from hexloop.adapters.trainable.torch.forward import (
    cache_name,
    forward_parameters,
)
from hexloop.adapters.trainable.torch.loss import in_full_precision
from hexloop.adapters.trainable.torch.pending_logits import without_pending
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import is_sharded
from hexloop.app.assembly.storage import WorkingFolder
from hexloop.app.assembly.torch.batches import evaluation_batches
from hexloop.app.assembly.torch.losses import (
    LossChoice,
    is_only_forward_in_half,
    predicted_items,
    window_items,
)
from hexloop.app.assembly.torch.model import default_label_names, with_past
from hexloop.app.assembly.torch.state import refuse_unprepared
from hexloop.app.assembly.torch.tensors import data_group, exchange_device, tensor_gatherer
from hexloop.app.assembly.torch.transfer import batch_transfer, checked_batches
from hexloop.app.calling import refuse_metrics
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import EvalLoopOutput, PredictionOutput
from hexloop.ports.device import Device
from hexloop.ports.learner import MIXED_FORMATS

__all__ = ["EvalLoopOutput", "PredictionOutput", "TorchEvaluator"]
"""Adapters' names that the rest of the app gets from here."""


def standard_prediction_step(
    parts: TrainerParts, loss: LossChoice, count: Callable[[list[Any]], Any] | None
) -> Callable[..., Any]:
    """Return what `Trainer.prediction_step` does unless it is overridden.

    A loss that divides by the item count divides by that of the batch. Results that mixed precision computes in half
    precision are returned in float32. count: counts the items of a batch, if not as the loss does.
    """
    precision = parts.adapters.precision
    if count is None and not parts.rules.own_losses:
        count = window_items(parts)

    def compute(model: Any, inputs: Any, return_outputs: bool) -> Any:
        if count is not None:
            items: Any = count([inputs])
        else:
            items = predicted_items(parts, loss, inputs)
        return loss.compute(model, inputs, return_outputs=return_outputs, num_items_in_batch=items)

    def wrap_in_full_precision(forward: Any) -> Any:
        wrapped = precision.wrap(forward)
        return lambda *args, **kwargs: in_full_precision(wrapped(*args, **kwargs))

    def wrap_model_alone(forward: Any) -> Any:
        return forward if forward is compute else wrap_in_full_precision(forward)

    wrap = precision.wrap
    if precision.name in MIXED_FORMATS:
        wrap = wrap_model_alone if is_only_forward_in_half(parts) else wrap_in_full_precision

    config = getattr(parts.unwrapped_model, "config", None)
    return PredictionStep(
        compute,
        wrap,
        parts.label_names,
        () if config is None else getattr(config, "keys_to_ignore_at_inference", (cache_name(),)),
        parts.can_return_loss and (not parts.label_names or _labels_are_assumed(parts)),
        _without_logits(parts.args, parts.model),
        without_pending,
    )


def _without_logits(args: TrainingArguments, model: Any) -> dict[str, Any]:
    """Return what a model that liger-kernel has patched takes to compute the loss without logits, as in training."""
    return {"skip_logits": True} if args.use_liger_kernel and "skip_logits" in forward_parameters(model) else {}


def _labels_are_assumed(parts: TrainerParts) -> bool:
    """Return whether neither the user nor the model's forward names the labels."""
    return parts.args.label_names is None and not default_label_names(parts.model, has_own_loss=False)


def make_evaluator(
    parts: TrainerParts,
    loader: Any,
    loss_only: bool | None,
    ignore_keys: list[str] | None,
    prefix: str,
    keep: bool,
    step: Callable[..., Any],
    wrap: Callable[[Any], Any],
    items_in: Callable[[Any], Callable[[], Any]] | None = None,
    of_tokens: bool = False,
) -> TorchEvaluator:
    """Return the Evaluator adapter for `loader`. keep: keep the predictions even if metrics are computed by batch.

    step: predicts a batch. wrap: returns the model through which a model that is not sharded is called. items_in,
    of_tokens: see `EvaluationOptions`.
    Raises ConfigurationError if `compute_metrics` cannot compute metrics in the way that the arguments require.
    """
    args, adapters, sharded = parts.args, parts.adapters, is_sharded(parts.adapters.parallelism, parts.model)
    refuse_metrics(args.batch_eval_metrics, parts.compute_metrics)
    parts.callback_handler.eval_dataloader = loader
    model = _prepared_model(parts) if parts.run is None else _model_in_training(parts)
    if not sharded:
        model = wrap(model)
    if args.jit_mode_eval:
        model = _traced(model, sharded)
    own_order = parts.rules.own_order
    rows = expected_rows(loader) if own_order else example_count(loader)
    transfer = checked_batches(parts, loader, batch_transfer(parts, parts.hooks.predicts_any_batch))
    if adapters.device.capabilities.records:
        transfer = _flushing(adapters.device, transfer)
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
        folder=_created(args.predictions_folder, parts.started_in),
        preparation_seconds=parts.preparation.seconds,
        label_names=parts.label_names,
        warn=logging.getLogger("hexloop").warning if args.should_log else lambda _message: None,
        items_in=items_in,
        of_tokens=of_tokens,
    )
    alone = adapters.mesh.data.size == 1
    ranks = SingleRank() if alone else tensor_gatherer(exchange_device(adapters), not sharded, data_group(adapters))
    kept: Callable[[], int | None] = (lambda: None) if parts.gathers_all_rows else rows_to_keep
    return TorchEvaluator(
        model,
        loader,
        step if args.past_index < 0 else with_past(args.past_index, step),
        transfer,
        row_count,
        parts.compute_metrics,
        parts.preprocess_logits_for_metrics or (lambda logits, _labels: logits),
        options,
        ranks if own_order else TruncatedRanks(ranks, kept, args.eval_batch_size),
        modes=cast(Modes | None, parts.modes),
        weights=parts.averages.replacing,
    )


def _flushing(device: Device, transfer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what starts the operations of a batch before it moves the next one."""

    def flush_and_transfer(batch: Any) -> Any:
        device.flush()
        return transfer(batch)

    return flush_and_transfer


def _traced(model: Any, sharded: bool) -> Any:
    """Return a model that is traced when it is first called, unless it cannot be."""
    if sharded or not isinstance(model, torch.nn.Module):
        warn_of_no_trace("a sharded model cannot be traced" if sharded else "the model is not a torch.nn.Module")
        return model
    return TracedModel(model)


def _model_in_training(parts: TrainerParts) -> Any:
    """Return the wrapped model; in data parallelism over processes the inner model, because no gradients are summed."""
    parallelism = parts.adapters.parallelism
    alone = parallelism.capabilities.processes and not parallelism.capabilities.sharded
    return parallelism.unwrap(parts.model) if alone else parts.model_wrapped


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


def _created(folder: str | None, started_in: WorkingFolder) -> str | None:
    """Create the folder if needed and return its absolute path. Raises ConfigurationError if it cannot be created."""
    folder = None if folder is None else started_in.locate(folder)
    try:
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"predictions_folder={folder!r} does not exist and cannot be created ({error}); choose another folder."
        ) from error
    return folder
