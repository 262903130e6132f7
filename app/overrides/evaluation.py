"""The user's methods that carry out an evaluation, or its loop."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.events import Evaluated
from hexloop.domain.run import Evaluation


class OpaquelyEvaluated(Evaluated):
    """An evaluation by an overridden `evaluate` is complete; the method itself has called the callbacks."""


def evaluation_by_override(parts: TrainerParts, draws: AbstractContextManager[Any]) -> Evaluation:
    """Carry out an evaluation of a run by the user's `_evaluate` or `evaluate`, as one action.

    draws: the context for its random draws.
    """
    hooks, ignored, step = parts.hooks, parts.ignore_keys_for_eval, parts.state.global_step
    with draws, parts.averages.shown():
        if hooks.evaluate_in_run.overridden:
            before_training = {"skip_scheduler": True} if parts.args.eval_on_start and step == 0 else {}
            metrics = hooks.evaluate_in_run(parts.trial, ignored, **before_training)
        else:
            metrics = hooks.evaluate(ignore_keys=ignored)
            hooks.report_to_hp_search.call_if(parts.live_trial is not None, parts.trial, step, metrics)
    yield OpaquelyEvaluated(step, metrics)
    return cast(dict[str, float], metrics)


class PredictedBatch(list[Any]):
    """The batch of a prediction, as an overridden `_get_num_items_in_batch` receives it, in a list.

    The standard method counts its items on this process alone.
    """


def looped_by_override(
    parts: TrainerParts, loader: Any, loss_only: bool | None, ignore_keys: list[str] | None, prefix: str
) -> Any:
    """Return what the user's `evaluation_loop` returns; None if there is none.

    Raises ConfigurationError if it returns None itself.
    """
    loop = parts.hooks.evaluation_loop.override
    if loop is None:
        return None
    with parts.averages.shown():
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
