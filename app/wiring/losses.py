"""The loss of a run: which function computes it, and whether it divides by the item count itself."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve, frozen

from hexloop.adapters.batches.torch.structure import shallow_copy
from hexloop.adapters.trainable.torch.forward import (
    is_causal_language_model,
    shifts_by_loss_type,
    shifts_labels,
    takes_any_keyword,
    takes_item_count,
)
from hexloop.adapters.trainable.torch.loss import FunctionLoss, LabelSmoother, SmoothedLoss, in_full_precision
from hexloop.adapters.trainable.torch.trainable import ComputeLoss, ModelLoss
from hexloop.app.arguments import TrainingArguments
from hexloop.app.wiring.parts import TrainerParts

HALF_FORMATS = ("bf16", "fp16")
"""The precisions in which a model returns half precision."""


@frozen
class LossChoice:
    """A loss function; whether it divides by the item count that it receives; whether it shifts the labels."""

    compute: ComputeLoss
    normalises: bool
    shifted: bool


def choose_loss(
    model: Any,
    args: TrainingArguments,
    label_names: Sequence[str],
    compute_loss_func: Callable[..., Any] | None,
    divides: bool | None = None,
    smoother: Callable[..., Any] | None = None,
) -> LossChoice:
    """Return the user's function, smoothed labels, or the loss that the model returns, in this order.

    divides: whether the model's own loss divides by the item count; None: find out. smoother: computes the loss of
    smoothed labels.

    With `loss_weighting="reference"` items are counted by transformers' rules. A model divides by the count if its
    forward takes any keyword argument and the labels are named "labels". The first label of a row, which a shifted loss
    never uses, is left out of the count depending on the type of the model's loss, whatever loss is computed.
    """
    exact = args.loss_weighting == "exact"
    if divides is None:
        divides = takes_item_count(model) if exact else takes_any_keyword(model) and "labels" in label_names
    shifted = shifts_labels(model) if exact else shifts_by_loss_type(model)
    if compute_loss_func is not None:
        return LossChoice(FunctionLoss(compute_loss_func, label_names), True, shifted)
    asked = smoother is not None or bool(args.label_smoothing_factor)
    if asked and _can_be_smoothed(model, label_names, args.label_smoothing_factor) and smoother is not None:
        shifts = is_causal_language_model(model) or (exact and shifted)
        smoothed = SmoothedLoss(smoother, shifts, label_names)
        return LossChoice(smoothed, exact or divides, shifts if exact else shifted)
    return LossChoice(ModelLoss(divides), divides, shifted)


def _can_be_smoothed(model: Any, label_names: Sequence[str], factor: float) -> bool:
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


def standard_loss(parts: TrainerParts) -> LossChoice:
    """Return the loss that the arguments and the model call for."""
    found, stated = takes_any_keyword(parts.model), parts.model_accepts_loss_kwargs
    divides = None if found == stated else stated
    return choose_loss(
        parts.model, parts.args, parts.label_names, parts.compute_loss_func, divides, parts.label_smoother
    )


def run_loss(parts: TrainerParts) -> LossChoice:
    """Return the loss that `compute_loss` computes, overridden or not.

    An overridden one is assumed to divide by the item count if the model's own loss does and it takes the count, unless
    `loss_is_scaled_for_ga` says otherwise. Under mixed precision it receives the model's outputs in float32.
    """
    return _in_overridden_context(parts, _run_loss(parts))


def _run_loss(parts: TrainerParts) -> LossChoice:
    choice = standard_loss(parts)
    if not parts.hooks.compute_loss.overridden:
        return choice
    compute_loss = parts.hooks.compute_loss.method
    takes_count = _takes_count(compute_loss)
    normalises = choice.normalises and takes_count
    if parts.loss_is_scaled_for_ga is not None:
        normalises = parts.loss_is_scaled_for_ga
    compute = _with_supported_keywords(compute_loss, takes_count)
    if parts.adapters.precision.name in HALF_FORMATS:
        compute = _with_full_precision_outputs(compute)
    return LossChoice(_on_copies(compute), normalises, choice.shifted)


def _in_overridden_context(parts: TrainerParts, choice: LossChoice) -> LossChoice:
    """Return the loss, computed in the context of an overridden `compute_loss_context_manager`."""
    hooks = parts.hooks
    if not (hooks.compute_loss_context_manager.overridden or hooks.autocast_smart_context_manager.overridden):
        return choice

    def compute(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        with hooks.compute_loss_context_manager():
            return choice.compute(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)

    return evolve(choice, compute=compute)


def prepared_loss(parts: TrainerParts, choice: LossChoice) -> LossChoice:
    """Return the loss of the inputs that an overridden `_prepare_inputs` returns."""
    if not parts.hooks.prepare_inputs.overridden:
        return choice

    def compute(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        prepared = parts.hooks.prepare_inputs(shallow_copy(inputs))
        return choice.compute(model, prepared, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)

    return evolve(choice, compute=compute)


def _takes_count(compute_loss: Callable[..., Any]) -> bool:
    parameters = inspect.signature(compute_loss).parameters.values()
    return any(each.name == "num_items_in_batch" or each.kind is each.VAR_KEYWORD for each in parameters)


def _with_supported_keywords(compute_loss: Callable[..., Any], takes_count: bool) -> ComputeLoss:
    """Return the user's `compute_loss`, called with the keywords that are needed and supported."""

    def compute(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        keywords: dict[str, Any] = {"return_outputs": True} if return_outputs else {}
        if takes_count:
            keywords["num_items_in_batch"] = num_items_in_batch
        return compute_loss(model, inputs, **keywords)

    return compute


def _on_copies(compute_loss: ComputeLoss) -> ComputeLoss:
    """Return the user's `compute_loss`, called with a copy, because it may remove entries of the batch."""

    def compute(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return compute_loss(model, shallow_copy(inputs), *args, **kwargs)

    return compute


def _with_full_precision_outputs(compute_loss: ComputeLoss) -> ComputeLoss:
    """Return the user's `compute_loss`, to which the model returns float32 instead of half precision."""

    def compute(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        hook = model.register_forward_hook(lambda _model, _inputs, outputs: in_full_precision(outputs))
        try:
            return compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        finally:
            hook.remove()

    return compute
