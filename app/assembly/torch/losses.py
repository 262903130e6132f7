"""The standard loss of a run, and how its items are counted."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from attrs import define, evolve, frozen

from hexloop.adapters.trainable.torch.chunked_loss import ChunkedLoss, TokenCounts, required_output_layer
from hexloop.adapters.trainable.torch.components import LossComponents, is_free
from hexloop.adapters.trainable.torch.forward import (
    counts_shifted_labels,
    forward_parameters,
    is_causal_language_model,
    predicts_tokens,
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
    number_on_host,
    recorded_item_sum,
    resolved_count,
)
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.losses import DFT, loss_wanted
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.tensors import data_group
from hexloop.app.calling import fitted
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.learner import MIXED_FORMATS

__all__ = ["in_full_precision", "resolved_count"]
"""Adapters' names that the rest of the app gets from here."""


@frozen
class LossChoice:
    """A loss function; whether it divides by the item count that it receives; whether it shifts the labels."""

    compute: ComputeLoss
    normalises: bool
    shifted: bool


def standard_loss(parts: TrainerParts) -> LossChoice:
    """Return the user's function, smoothed labels, or the loss that the model returns, in this order.

    It is computed in chunks if the arguments say so.

    With `reproduce` it is transformers' own choice, and the count is that of `window_items`.
    With `loss_weighting="reference"` items are counted by transformers' rules. A model divides by the count if its
    forward takes any keyword argument and the labels are named "labels". The first label of a row, which a shifted loss
    never uses, is left out of the count depending on the type of the model's loss, whatever loss is computed.
    """
    return in_chunks(parts, _own_loss(parts)) if parts.rules.own_losses else _transformers_loss(parts)


def _own_loss(parts: TrainerParts) -> LossChoice:
    model, label_names, exact = parts.model, parts.label_names, parts.args.loss_weighting == "exact"
    divides = parts.model_accepts_loss_kwargs
    if divides == takes_any_keyword(model):  # the user has not assigned another answer
        divides = takes_item_count(model) if exact else divides and "labels" in label_names
    shifted = shifts_labels(model) if exact else shifts_by_loss_type(model)
    seen = parts.loss_tap.show
    if parts.compute_loss_func is not None:
        return LossChoice(FunctionLoss(parts.compute_loss_func, label_names, seen), True, shifted)
    smoother, factor = parts.label_smoother, parts.args.label_smoothing_factor
    if smoother is not None and _can_be_smoothed(model, label_names, factor):
        shifts = is_causal_language_model(model) or (exact and shifted)
        smoothed = SmoothedLoss(smoother, shifts, label_names, seen)
        return LossChoice(smoothed, exact or divides, shifts if exact else shifted)
    return LossChoice(ModelLoss(divides, seen), divides, shifted)


def in_chunks(parts: TrainerParts, choice: LossChoice) -> LossChoice:
    """Return a loss that never has the logits of all positions, if the arguments ask for it; else the same."""
    wanted = loss_wanted(parts.args)
    if not wanted.chunked and wanted.kind != DFT:
        return choice
    if wanted.kind == DFT and parts.compute_loss_func is not None:
        raise ConfigurationError(
            f"loss_type={DFT!r} changes the loss that the model computes, but compute_loss_func computes another one; "
            "leave one of them out."
        )
    tap = parts.loss_tap
    if parts.args.log_token_accuracy and tap.counts is None:
        tap.counts = TokenCounts()
    chunked = ChunkedLoss(wanted.kind, counts=tap.counts)
    return evolve(choice, compute=chunked.wrap(choice.compute))


def refuse_chunked_loss(model: Any, args: TrainingArguments) -> None:
    """Raise ConfigurationError if the loss is to be computed in chunks, and the model has no output layer."""
    wanted = loss_wanted(args)
    if wanted.chunked or wanted.kind == DFT:
        required_output_layer(model)


def components_of(parts: TrainerParts, choice: LossChoice) -> LossComponents | None:
    """Return what finds the components of the loss of a run; None if transformers' rules or a recorded step allow none.

    Raises ConfigurationError for names that logs use for something else.
    """
    args, wanted = parts.args, parts.log_loss_components
    if not parts.rules.own_losses or args.capture_step:
        if wanted:
            reason = "reproduce='transformers'" if not parts.rules.own_losses else "capture_step=True"
            raise ConfigurationError(f"log_loss_components has no effect with {reason}; leave one of them out.")
        return None
    if problems := [
        f"log_loss_components has the name {name!r}, which is no text or under which logs have something else; choose "
        "another name."
        for name in wanted
        if not is_free(name)
    ]:
        raise ConfigurationError(problems)
    return LossComponents(
        {name: each if isinstance(each, str) else fitted(each, ("outputs", "inputs")) for name, each in wanted.items()},
        label_names=parts.label_names,
        shifted=choice.shifted,
        accuracy=args.log_token_accuracy,
        as_shares=choice.normalises and "num_items_in_batch" in forward_parameters(parts.model),
        counts=parts.loss_tap.counts,
        warn=logging.getLogger("hexloop").warning if args.should_log else lambda _message: None,
    )


def _transformers_loss(parts: TrainerParts) -> LossChoice:
    args, takes_count = parts.args, parts.model_accepts_loss_kwargs
    loss = TransformersLoss(
        takes_count,
        parts.compute_loss_func,
        parts.label_smoother,
        is_causal_language_model(parts.model),
        parts.adapters.mesh.data.size if args.average_tokens_across_devices else 1,
    )
    return LossChoice(loss, takes_count or parts.compute_loss_func is not None, counts_shifted_labels(parts.model))


def window_items(parts: TrainerParts) -> WindowItems:
    """Return how transformers counts the items of a window."""
    choice = standard_loss(parts)
    several = parts.adapters.mesh.data.size > 1 and parts.args.average_tokens_across_devices
    return WindowItems(choice.normalises, choice.shifted, item_sum(parts.adapters) if several else LOCAL_ITEM_SUM)


def predicted_items(parts: TrainerParts, loss: LossChoice, inputs: Any) -> Any:
    """Return the item count of a batch that is predicted; None if the loss needs none."""
    return item_count(inputs, parts.label_names, loss.shifted) if loss.normalises else None


@define
class PredictedCount:
    """A user's count of the items of a batch, which a prediction calls. last: what it returned last."""

    count: Callable[[list[Any]], Any]
    last: Any = None

    def __call__(self, samples: list[Any]) -> Any:
        """Count the items of a batch, in a list."""
        self.last = self.count(samples)
        return self.last


def items_of_predictions(
    parts: TrainerParts, count: PredictedCount | None
) -> Callable[[Any], Callable[[], Any]] | None:
    """Return what counts the items by which the losses of an evaluation's batches are weighted, as in training.

    None if they are weighted by their rows, as in transformers. count: of the user's, if there is one. It is called at
    the moments at which transformers calls it; where that is never, the labels are counted.
    """
    if not parts.rules.own_losses or parts.args.loss_weighting != "exact":
        return None
    label_names, shifted = parts.label_names, standard_loss(parts).shifted

    def items_in(batch: Any) -> Callable[[], Any]:
        labels = number_on_host(item_count(batch, label_names, shifted))
        if count is None:
            return lambda: labels
        count.last = None
        return lambda: labels if count.last is None else count.last

    return items_in


def is_loss_of_tokens(parts: TrainerParts) -> bool:
    """Return whether the loss is the model's own, and the mean negative log-likelihood of tokens of a vocabulary."""
    if parts.compute_loss_func is not None or parts.label_smoother is not None:
        return False
    return loss_wanted(parts.args).kind != DFT and predicts_tokens(parts.model)


def item_sum(adapters: Adapters) -> ItemSum:
    """Return the exact sum of items over the processes that read different samples."""
    if adapters.device.capabilities.records:
        return recorded_item_sum(adapters.mesh.data.size, adapters.device.name, adapters.device.flush)
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


def is_only_forward_in_half(parts: TrainerParts) -> bool:
    """Return whether the model alone computes in half precision, and not a loss that is computed from its outputs."""
    return not parts.rules.own_precision and parts.adapters.precision.name in MIXED_FORMATS


def with_forward_in_half(parts: TrainerParts, compute: Callable[..., Any]) -> Callable[..., Any]:
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
    return with_forward_in_half(parts, loss) if is_only_forward_in_half(parts) else loss
