"""torch as the framework of a run, with the user's methods where there are some; here those of a prediction.

Those of a step are in `hexloop.app.overrides.steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hexloop.app.assembly.framework import METHODS
from hexloop.app.assembly.learner import RunLearner
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.evaluation import TorchEvaluator, make_evaluator, standard_prediction_step
from hexloop.app.assembly.torch.framework import TorchFramework
from hexloop.app.assembly.torch.learner import make_learner
from hexloop.app.assembly.torch.losses import (
    PredictedCount,
    is_loss_of_tokens,
    items_of_predictions,
    with_forward_in_half,
)
from hexloop.app.assembly.torch.transfer import shallow_copy
from hexloop.app.overrides.evaluation import PredictedBatch
from hexloop.app.overrides.steps import prepared_loss, reduced_precision, run_loss, with_overridden_steps
from hexloop.ports.learner import MIXED_FORMATS


def evaluator_for(
    parts: TrainerParts, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str, keep: bool
) -> TorchEvaluator:
    """Return what evaluates over `loader`, by the user's methods where there are some; see `make_evaluator`."""
    count = _counted_by_override(parts)
    step = _prediction_by_override(parts) or prediction_step(parts, count)
    wrap = partial(_wrapped_by_override, parts, loader)
    items_in = items_of_predictions(parts, count)
    of_tokens = items_in is not None and not parts.hooks.predicts_any_batch and is_loss_of_tokens(parts)
    return make_evaluator(parts, loader, loss_only, ignore_keys, prefix, keep, step, wrap, items_in, of_tokens)


def prediction_step(parts: TrainerParts, count: PredictedCount | None = None) -> Callable[..., Any]:
    """Return the standard prediction step, with the user's loss, item count and preparation of the inputs.

    count: calls the user's count of items; by default, one of its own.
    """
    step = standard_prediction_step(parts, run_loss(parts), count or _counted_by_override(parts))
    if not parts.hooks.prepares_inputs:
        return step
    prepare = parts.hooks.prepare_inputs
    return lambda model, inputs, *given, **named: step(model, prepare(shallow_copy(inputs)), *given, **named)


def _counted_by_override(parts: TrainerParts) -> PredictedCount | None:
    """Return how the user's `_get_num_items_in_batch` counts the items of a batch; None if there is none."""
    count, device = parts.hooks.get_num_items_in_batch.override, parts.args.device
    return None if count is None else PredictedCount(lambda samples: count(PredictedBatch(samples), device))


def _wrapped_by_override(parts: TrainerParts, loader: Any, model: Any) -> Any:
    """Return what the user's `_wrap_model` returns for an evaluation over `loader`; `model` if there is none."""
    wrap = parts.hooks.wrap_model.override
    if wrap is None:
        return model
    wrapped = wrap(parts.model, training=False, dataloader=loader)
    if parts.run is None:
        wrapped.eval()
    return wrapped


def _prediction_by_override(parts: TrainerParts) -> Callable[..., Any] | None:
    """Return the user's `prediction_step`, during which the model computes in the run's precision, if there is one."""
    step = parts.hooks.prediction_step.override
    if step is None or parts.adapters.precision.name not in MIXED_FORMATS:
        return step
    return with_forward_in_half(parts, step)  # it may call the model itself


class TorchWithOverrides(TorchFramework):
    """torch, by the user's `training_step`, `compute_loss`, `prediction_step` and so on."""

    calls = frozenset(METHODS)

    def learner(self, parts: TrainerParts, wrapped: Any, after: Callable[[], None]) -> RunLearner:
        """See `Framework.learner`."""
        loss = prepared_loss(parts, run_loss(parts))
        return with_overridden_steps(parts, make_learner(parts, wrapped, loss, after), wrapped)

    precision = staticmethod(reduced_precision)
    evaluator = staticmethod(evaluator_for)
