"""Which loss a Trainer trains on, and whether it divides by the item count itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from hexloop.adapters.trainable.torch.loss import (
    ComputeLoss,
    FunctionLoss,
    ModelLoss,
    SmoothedLoss,
    takes_item_count,
)
from hexloop.app.arguments import TrainingArguments
from hexloop.app.training.columns import is_causal_language_model, shifts_labels


@frozen
class LossChoice:
    """A loss; whether it divides by the item count that it is given; whether it shifts the labels."""

    compute: ComputeLoss
    normalises: bool
    shifted: bool


def choose_loss(
    model: Any, args: TrainingArguments, label_names: Sequence[str], compute_loss_func: Callable[..., Any] | None
) -> LossChoice:
    """The user's function, smoothed labels, or the loss that the model returns, in this order.

    With `loss_weighting="reference"` a model counts as one that divides by the item count where the reference library
    takes it for one: where its forward takes any keyword argument.
    """
    exact = args.loss_weighting == "exact"
    divides = takes_item_count(model) if exact else _takes_any_keyword(model)
    if compute_loss_func is not None:
        return LossChoice(FunctionLoss(compute_loss_func, label_names), True, shifts_labels(model))
    if args.label_smoothing_factor:
        shifted = is_causal_language_model(model)
        smoothed = SmoothedLoss(args.label_smoothing_factor, shifted, label_names)
        return LossChoice(smoothed, exact or divides, shifted)
    return LossChoice(ModelLoss(divides), divides, shifts_labels(model))


def _takes_any_keyword(model: Any) -> bool:
    declared = getattr(model, "accepts_loss_kwargs", None)
    if declared is not None:
        return bool(declared)
    parameters = inspect.signature(model.forward).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def with_optional_count(compute_loss: Callable[..., Any]) -> ComputeLoss:
    """A user's `compute_loss`, which is not told the item count where it does not take it."""
    parameters = inspect.signature(compute_loss).parameters.values()
    if any(each.name == "num_items_in_batch" or each.kind is each.VAR_KEYWORD for each in parameters):
        return compute_loss

    def compute(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        return compute_loss(model, inputs, return_outputs=return_outputs)

    return compute
