"""The user's methods of an evaluation: all of it, its prediction step, its model and its item count."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.evaluation import TorchEvaluator, make_evaluator, standard_prediction_step
from hexloop.app.assembly.torch.losses import with_forward_in_half
from hexloop.app.assembly.torch.transfer import shallow_copy
from hexloop.app.overrides.steps import run_loss
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.events import Evaluated
from hexloop.domain.run import Evaluation
from hexloop.ports.learner import HALF_FORMATS


class OpaquelyEvaluated(Evaluated):
    """An evaluation by an overridden `evaluate` is complete; the method itself has called the callbacks."""


def evaluation_by_override(parts: TrainerParts, draws: AbstractContextManager[Any]) -> Evaluation:
    """Carry out an evaluation of a run by the user's `_evaluate` or `evaluate`, as one action.

    draws: the context for its random draws.
    """
    hooks, ignored, step = parts.hooks, parts.ignore_keys_for_eval, parts.state.global_step
    with draws:
        if hooks.evaluate_in_run.overridden:
            before_training = {"skip_scheduler": True} if parts.args.eval_on_start and step == 0 else {}
            metrics = hooks.evaluate_in_run(parts.trial, ignored, **before_training)
        else:
            metrics = hooks.evaluate(ignore_keys=ignored)
            hooks.report_to_hp_search.call_override(parts.trial, step, metrics)
    yield OpaquelyEvaluated(step, metrics)
    return cast(dict[str, float], metrics)


class PredictedBatch(list[Any]):
    """The batch of a prediction, as an overridden `_get_num_items_in_batch` receives it, in a list.

    The standard method counts its items on this process alone.
    """


def evaluator_for(
    parts: TrainerParts, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str, keep: bool
) -> TorchEvaluator:
    """Return what evaluates over `loader`, by the user's methods where there are some; see `make_evaluator`."""
    step = _prediction_by_override(parts) or prediction_step(parts)
    wrap = partial(_wrapped_by_override, parts, loader)
    return make_evaluator(parts, loader, loss_only, ignore_keys, prefix, keep, step, wrap)


def prediction_step(parts: TrainerParts) -> Callable[..., Any]:
    """Return the standard prediction step, with the user's loss, item count and preparation of the inputs."""
    step = standard_prediction_step(parts, run_loss(parts), _counted_by_override(parts))
    if not parts.hooks.prepares_inputs:
        return step
    prepare = parts.hooks.prepare_inputs
    return lambda model, inputs, *given, **named: step(model, prepare(shallow_copy(inputs)), *given, **named)


def looped_by_override(
    parts: TrainerParts, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str
) -> Any:
    """Return what the user's `evaluation_loop` returns; None if there is none.

    Raises ConfigurationError if it returns None itself.
    """
    loop = parts.hooks.evaluation_loop.override
    if loop is None:
        return None
    output = loop(
        loader,
        description="Evaluation",
        prediction_loss_only=loss_only,
        ignore_keys=ignore_keys,
        metric_key_prefix=prefix,
    )
    if output is None:
        raise ConfigurationError(
            "The overridden evaluation_loop returned None; let it return an EvalLoopOutput, such as that of super()."
        )
    return output


def _counted_by_override(parts: TrainerParts) -> Callable[[list[Any]], Any] | None:
    """Return how the user's `_get_num_items_in_batch` counts the items of a batch; None if there is none."""
    count, device = parts.hooks.get_num_items_in_batch.override, parts.args.device
    return None if count is None else lambda samples: count(PredictedBatch(samples), device)


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
    if step is None or parts.adapters.precision.name not in HALF_FORMATS:
        return step
    return with_forward_in_half(parts, step)  # it may call the model itself
