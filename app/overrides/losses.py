"""The user's `compute_loss`, the context in which it is called, and the inputs that it receives."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from attrs import evolve

from hexloop.app.calling import accepts
from hexloop.app.wiring.losses import (
    HALF_FORMATS,
    LossChoice,
    in_full_precision,
    is_only_forward_in_half,
    standard_loss,
    with_forward_in_half,
)
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.transfer import shallow_copy


def run_loss(parts: TrainerParts) -> LossChoice:
    """Return the loss that `compute_loss` computes, overridden or not, in the context that an override provides."""
    hooks, choice = parts.hooks, standard_loss(parts)
    if hooks.computes_loss:
        choice = _overridden_loss(parts, choice)
    if is_only_forward_in_half(parts):
        choice = evolve(choice, compute=with_forward_in_half(parts, choice.compute))
    if not hooks.computes_in_context:
        return choice

    def compute(*values: Any, **named: Any) -> Any:
        with hooks.compute_loss_context_manager():
            return choice.compute(*values, **named)

    return evolve(choice, compute=compute)


def _overridden_loss(parts: TrainerParts, standard: LossChoice) -> LossChoice:
    """Return the loss of an overridden `compute_loss`, which gets a copy of the batch and may remove entries of it.

    It is assumed to divide by the item count if the model's own loss does and it takes the count, unless
    `loss_is_scaled_for_ga` says otherwise. Under mixed precision the model returns float32 to it.
    """
    compute_loss, in_half = parts.hooks.compute_loss.method, parts.adapters.precision.name in HALF_FORMATS
    takes_count, scaled = accepts(compute_loss, "num_items_in_batch"), parts.loss_is_scaled_for_ga

    def compute(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        keywords: dict[str, Any] = {"return_outputs": True} if return_outputs else {}
        if takes_count:
            keywords["num_items_in_batch"] = num_items_in_batch
        with model.register_forward_hook(_full_precision_output) if in_half else nullcontext():
            return compute_loss(model, shallow_copy(inputs), **keywords)

    return LossChoice(compute, standard.normalises and takes_count if scaled is None else scaled, standard.shifted)


def _full_precision_output(_model: Any, _inputs: Any, outputs: Any) -> Any:
    return in_full_precision(outputs)


def prepared_loss(parts: TrainerParts, choice: LossChoice) -> LossChoice:
    """Return the loss of the inputs that an overridden `_prepare_inputs` returns."""
    if not parts.hooks.prepares_inputs:
        return choice

    def compute(model: Any, inputs: Any, *values: Any, **named: Any) -> Any:
        return choice.compute(model, parts.hooks.prepare_inputs(shallow_copy(inputs)), *values, **named)

    return evolve(choice, compute=compute)
