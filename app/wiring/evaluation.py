"""The loss of a run, and the evaluator of a model: prediction step, options and batches."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
from attrs import evolve, frozen

from hexloop.adapters.batches.torch.batches import example_count, expected_rows
from hexloop.adapters.batches.torch.reproduction import rows_to_keep
from hexloop.adapters.batches.torch.structure import row_count, shallow_copy
from hexloop.adapters.evaluator.torch.evaluator import EvaluationOptions, PredictionStep, TorchEvaluator
from hexloop.adapters.evaluator.torch.gathering import SingleRank, TruncatedRanks
from hexloop.adapters.evaluator.torch.predictions import EvalLoopOutput, PredictionOutput
from hexloop.adapters.trainable.torch.forward import (
    cache_name,
    is_causal_language_model,
    shifts_by_loss_type,
    shifts_labels,
    takes_any_keyword,
    takes_item_count,
)
from hexloop.adapters.trainable.torch.loss import FunctionLoss, LabelSmoother, SmoothedLoss, in_full_precision
from hexloop.adapters.trainable.torch.reproduction import TransformersLoss, WindowItems
from hexloop.adapters.trainable.torch.trainable import (
    LOCAL_ITEM_SUM,
    ComputeLoss,
    ItemSum,
    ModelLoss,
    exact_item_sum,
    item_count,
)
from hexloop.app.arguments import TrainingArguments
from hexloop.app.wiring.adapters import Adapters
from hexloop.app.wiring.data import evaluation_batches
from hexloop.app.wiring.model import default_label_names, with_past
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import is_sharded, refuse_unprepared
from hexloop.app.wiring.storage import WorkingFolder
from hexloop.app.wiring.tensors import data_group, tensor_gatherer
from hexloop.app.wiring.transfer import batch_transfer
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.learner import HALF_FORMATS

__all__ = ["EvalLoopOutput", "PredictionOutput"]
"""Adapters' names that the rest of the app gets from here."""

# Loss


@frozen
class LossChoice:
    """A loss function; whether it divides by the item count that it receives; whether it shifts the labels."""

    compute: ComputeLoss
    normalises: bool
    shifted: bool


def standard_loss(parts: TrainerParts) -> LossChoice:
    """Return the user's function, smoothed labels, or the loss that the model returns, in this order.

    With `reproduce` it is transformers' own choice, and the count is that of `window_items`.
    With `loss_weighting="reference"` items are counted by transformers' rules. A model divides by the count if its
    forward takes any keyword argument and the labels are named "labels". The first label of a row, which a shifted loss
    never uses, is left out of the count depending on the type of the model's loss, whatever loss is computed.
    """
    if parts.args.reproduce is not None:
        return _transformers_loss(parts)
    model, label_names, exact = parts.model, parts.label_names, parts.args.loss_weighting == "exact"
    divides = parts.model_accepts_loss_kwargs
    if divides == takes_any_keyword(model):  # the user has not assigned another answer
        divides = takes_item_count(model) if exact else divides and "labels" in label_names
    shifted = shifts_labels(model) if exact else shifts_by_loss_type(model)
    if parts.compute_loss_func is not None:
        return LossChoice(FunctionLoss(parts.compute_loss_func, label_names), True, shifted)
    smoother, factor = parts.label_smoother, parts.args.label_smoothing_factor
    asked = smoother is not None or bool(factor)
    if asked and _can_be_smoothed(model, label_names, factor) and smoother is not None:
        shifts = is_causal_language_model(model) or (exact and shifted)
        smoothed = SmoothedLoss(smoother, shifts, label_names)
        return LossChoice(smoothed, exact or divides, shifts if exact else shifted)
    return LossChoice(ModelLoss(divides), divides, shifted)


def _transformers_loss(parts: TrainerParts) -> LossChoice:
    args, takes_count = parts.args, parts.model_accepts_loss_kwargs
    loss = TransformersLoss(
        takes_count,
        parts.compute_loss_func,
        parts.label_smoother,
        is_causal_language_model(parts.model),
        parts.adapters.mesh.data.size if args.average_tokens_across_devices else 1,
    )
    return LossChoice(loss, takes_count or parts.compute_loss_func is not None, shifts_by_loss_type(parts.model))


def window_items(parts: TrainerParts) -> WindowItems:
    """Return how transformers counts the items of a window."""
    choice = standard_loss(parts)
    several = parts.adapters.mesh.data.size > 1 and parts.args.average_tokens_across_devices
    return WindowItems(choice.normalises, choice.shifted, item_sum(parts.adapters) if several else LOCAL_ITEM_SUM)


def item_sum(adapters: Adapters) -> ItemSum:
    """Return the exact sum of items over the processes that read different samples."""
    return exact_item_sum(
        adapters.mesh.data.size, adapters.device.name, adapters.data_collectives, data_group(adapters)
    )


def _can_be_smoothed(model: Any, label_names: list[str], factor: float) -> bool:
    """Return whether the model has one label for each row or position; warn if it does not."""
    problem = None
    if _has_several_labels_a_row(model):
        problem = "a row of multi-label classification has several labels at once"
    elif len(label_names) > 1 and "labels" not in label_names:
        problem = f"the labels {', '.join(label_names)} belong to no single distribution"
    if problem is not None:
        warnings.warn(
            f"label_smoothing_factor={factor} has no effect: {problem}; the labels are not smoothed.", stacklevel=2
        )
    return problem is None


def smoother_for(model: Any, args: TrainingArguments) -> LabelSmoother | None:
    """Return the label smoother that the arguments require; None if there is none, or a row has several labels."""
    if not args.label_smoothing_factor or _has_several_labels_a_row(model):
        return None
    return LabelSmoother(args.label_smoothing_factor)


def _has_several_labels_a_row(model: Any) -> bool:
    return getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"


def run_loss(parts: TrainerParts) -> LossChoice:
    """Return the loss that `compute_loss` computes, overridden or not, in the context that an override provides."""
    hooks, choice = parts.hooks, standard_loss(parts)
    if hooks.compute_loss.overridden:
        choice = _overridden_loss(parts, choice)
    if is_only_forward_in_half(parts):
        choice = evolve(choice, compute=_with_forward_in_half(parts, choice.compute))
    if not (hooks.compute_loss_context_manager.overridden or hooks.autocast_smart_context_manager.overridden):
        return choice

    def compute(*values: Any, **named: Any) -> Any:
        with hooks.compute_loss_context_manager():
            return choice.compute(*values, **named)

    return evolve(choice, compute=compute)


def is_only_forward_in_half(parts: TrainerParts) -> bool:
    """Return whether the model alone computes in half precision, and not a loss that is computed from its outputs."""
    return parts.args.reproduce is not None and parts.adapters.precision.name in HALF_FORMATS


def _with_forward_in_half(parts: TrainerParts, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function during which the model's forward computes in half precision and returns float32."""
    inner = parts.adapters.parallelism.unwrap(parts.model)
    forward = parts.adapters.precision.wrap(inner.forward)

    @wraps(inner.forward)
    def in_half(*values: Any, **named: Any) -> Any:
        return in_full_precision(forward(*values, **named))

    def compute_in_half(*values: Any, **named: Any) -> Any:
        own = vars(inner).get("forward")
        inner.forward = in_half
        try:
            return compute(*values, **named)
        finally:
            del inner.forward
            if own is not None:
                inner.forward = own

    return compute_in_half


def loss_of_generation(parts: TrainerParts) -> ComputeLoss:
    """Return the loss of transformers' Seq2SeqTrainer in evaluation: no function of the user's, and no item count."""
    loss = TransformersLoss(False, smoother=parts.label_smoother)
    return _with_forward_in_half(parts, loss) if is_only_forward_in_half(parts) else loss


def _overridden_loss(parts: TrainerParts, standard: LossChoice) -> LossChoice:
    """Return the loss of an overridden `compute_loss`, which gets a copy of the batch and may remove entries of it.

    It is assumed to divide by the item count if the model's own loss does and it takes the count, unless
    `loss_is_scaled_for_ga` says otherwise. Under mixed precision the model returns float32 to it.
    """
    compute_loss, in_half = parts.hooks.compute_loss.method, parts.adapters.precision.name in HALF_FORMATS
    takes_count, scaled = takes_argument(compute_loss, "num_items_in_batch"), parts.loss_is_scaled_for_ga

    def compute(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        keywords: dict[str, Any] = {"return_outputs": True} if return_outputs else {}
        if takes_count:
            keywords["num_items_in_batch"] = num_items_in_batch
        with model.register_forward_hook(_full_precision_output) if in_half else nullcontext():
            return compute_loss(model, shallow_copy(inputs), **keywords)

    return LossChoice(compute, standard.normalises and takes_count if scaled is None else scaled, standard.shifted)


def _full_precision_output(_model: Any, _inputs: Any, outputs: Any) -> Any:
    return in_full_precision(outputs)


def takes_argument(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has a parameter of this name, or takes any keyword."""
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def prepared_loss(parts: TrainerParts, choice: LossChoice) -> LossChoice:
    """Return the loss of the inputs that an overridden `_prepare_inputs` returns."""
    if not parts.hooks.prepares_inputs:
        return choice

    def compute(model: Any, inputs: Any, *values: Any, **named: Any) -> Any:
        return choice.compute(model, parts.hooks.prepare_inputs(shallow_copy(inputs)), *values, **named)

    return evolve(choice, compute=compute)


# Evaluation


class PredictedBatch(list[Any]):
    """The batch of a prediction, as an overridden `_get_num_items_in_batch` receives it, in a list.

    The standard method counts its items on this process alone.
    """


def standard_prediction_step(parts: TrainerParts) -> Callable[..., Any]:
    """Return what `Trainer.prediction_step` does unless it is overridden.

    A loss that divides by the item count divides by that of the batch. Results that mixed precision computes in half
    precision are returned in float32. If `_prepare_inputs` is overridden, the step predicts the inputs that it returns.
    """
    loss, precision = run_loss(parts), parts.adapters.precision
    count: Callable[[list[Any]], Any] | None = window_items(parts) if parts.args.reproduce is not None else None
    if parts.hooks.get_num_items_in_batch.overridden:
        hook, device = parts.hooks.get_num_items_in_batch, parts.args.device
        count = lambda samples: hook(PredictedBatch(samples), device)  # noqa: E731

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
    if precision.name in HALF_FORMATS:
        wrap = wrap_model_alone if is_only_forward_in_half(parts) else wrap_in_full_precision

    config = getattr(parts.unwrapped_model, "config", None)
    step = PredictionStep(
        compute,
        wrap,
        parts.label_names,
        () if config is None else getattr(config, "keys_to_ignore_at_inference", (cache_name(),)),
        parts.can_return_loss and (not parts.label_names or _labels_are_assumed(parts)),
    )
    if not parts.hooks.prepares_inputs:
        return step
    prepare = parts.hooks.prepare_inputs
    return lambda model, inputs, *given, **named: step(model, prepare(shallow_copy(inputs)), *given, **named)


def predicted_items(parts: TrainerParts, loss: LossChoice, inputs: Any) -> Any:
    """Return the item count of a batch that is predicted; None if the loss needs none."""
    return item_count(inputs, parts.label_names, loss.shifted) if loss.normalises else None


def _labels_are_assumed(parts: TrainerParts) -> bool:
    """Return whether neither the user nor the model's forward names the labels."""
    return parts.args.label_names is None and not default_label_names(parts.model, has_own_loss=False)


def make_evaluator(
    parts: TrainerParts, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str, keep: bool
) -> TorchEvaluator:
    """Return the Evaluator adapter for `loader`. keep: keep the predictions even if metrics are computed by batch.

    Raises ConfigurationError if `compute_metrics` cannot compute metrics in the way that the arguments require.
    """
    args, adapters, sharded = parts.args, parts.adapters, is_sharded(parts.adapters.parallelism, parts.model)
    refuse_metrics(args, parts.compute_metrics)
    parts.callback_handler.eval_dataloader = loader
    model = _prepared_model(parts) if parts.run is None else _model_in_training(parts)
    if parts.hooks.wrap_model.overridden and not sharded:
        model = parts.hooks.wrap_model(parts.model, training=False, dataloader=loader)
        if parts.run is None:
            model.eval()
    reproduces = args.reproduce is not None
    rows = example_count(loader) if reproduces else expected_rows(loader)
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
    )
    overridden = parts.hooks.prediction_step.overridden
    alone = adapters.mesh.data.size == 1
    ranks = SingleRank() if alone else tensor_gatherer(adapters.device.name, not sharded, data_group(adapters))
    kept: Callable[[], int | None] = (lambda: None) if parts.gathers_all_rows else rows_to_keep
    step = parts.hooks.prediction_step.method if overridden else standard_prediction_step(parts)
    if overridden and adapters.precision.name in HALF_FORMATS:  # it may call the model itself
        step = _with_forward_in_half(parts, step)
    return TorchEvaluator(
        model,
        loader,
        step if args.past_index < 0 else with_past(args.past_index, step),
        batch_transfer(parts, overridden or parts.hooks.compute_loss.overridden),
        row_count,
        parts.compute_metrics,
        parts.preprocess_logits_for_metrics or (lambda logits, _labels: logits),
        options,
        TruncatedRanks(ranks, kept, args.eval_batch_size) if reproduces else ranks,
        modes=parts.modes,
    )


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


def refuse_metrics(args: TrainingArguments, compute: Callable[..., Any] | None) -> None:
    """Raise ConfigurationError if metrics are to be computed by batch, and the function does not support that."""
    if args.batch_eval_metrics and compute is not None and not takes_argument(compute, "compute_result"):
        raise ConfigurationError(
            "batch_eval_metrics=True needs a compute_metrics with a parameter compute_result, which is True for "
            "the last batch; add it, collect what the metrics need at each call, and return them at the last one."
        )
