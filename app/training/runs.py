"""A run of the loop over a trainer's parts, and what counts in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from hexloop.adapters.losses.torch import TorchLosses
from hexloop.app.training.counters import OperationCounter, OperationMeter, TokenCounter, operations_in
from hexloop.app.training.evaluating import evaluation_apart
from hexloop.app.training.learners import RunLearner
from hexloop.app.training.learning_rates import as_port, best_metric
from hexloop.app.training.loaders import global_batch_size
from hexloop.app.training.triggers import triggers_for
from hexloop.app.training.worlds import total_of
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.plan import Plan, make_plan
from hexloop.domain.ranks import SharedLosses
from hexloop.domain.run import Evaluation, Run
from hexloop.domain.state import RunState
from hexloop.ports.batches import Batches
from hexloop.ports.learner import Learner
from hexloop.ports.losses import Losses


def plan_for(parts: TrainerParts, batches: Batches[Any]) -> Plan:
    """How long the run is, by the arguments and the data."""
    args = parts.args
    return make_plan(
        batches.batches_per_epoch(), args.gradient_accumulation_steps, args.num_train_epochs, args.max_steps
    )


def make_run(
    parts: TrainerParts, plan: Plan, batches: Batches[Any], learner: RunLearner, name: str | None = None
) -> Run[Any, Any]:
    """The run, which all processes call the same; it begins at its first step."""
    args = parts.args
    state = RunState(
        run=str(parts.adapters.collectives.broadcast(name or parts.hooks.new_run_name())),
        seed=args.seed,
        data_seed=args.seed if args.data_seed is None else args.data_seed,
        global_batch_size=global_batch_size(args, parts.train_batch_size) * args.gradient_accumulation_steps,
    )
    run: Run[Any, Any] = Run(
        learner=learner.learner,
        batches=batches,
        losses=_losses(parts),
        scheduler=as_port(parts.lr_scheduler, parts.optimizer, args),
        clock=parts.adapters.clock,
        plan=plan,
        state=state,
        triggers=triggers_for(args, plan, parts.callback_handler.has_default_flow),
        control=parts.control,
        requests=parts.requests,
        max_norm=args.max_grad_norm,
        report=parts.hooks.log.method,
        evaluate=_evaluation(parts),
        best=best_metric(args),
        windows=learner.windows,
        evaluate_first=args.eval_on_start,
    )
    run.counters = list(_counters(parts, run))
    return run


def _evaluation(parts: TrainerParts) -> Callable[[], Evaluation]:
    evaluate = parts.hooks.evaluation_in_training.method
    if not parts.args.auto_find_batch_size:
        return evaluate
    return partial(evaluation_apart, evaluate, parts.adapters.device, parts.args.eval_batch_size)


def _losses(parts: TrainerParts) -> Losses[Any]:
    own = TorchLosses(parts.adapters.device.name, parts.args.logging_nan_inf_filter)
    collectives = parts.adapters.collectives
    return own if collectives.world_size == 1 else SharedLosses(own, collectives)


def _counters(parts: TrainerParts, run: Run[Any, Any]) -> Iterator[Any]:
    counting = parts.args.include_num_input_tokens_seen
    if counting != "no":
        padding = getattr(parts.processing_class, "pad_token_id", None)
        yield TokenCounter(run, parts.main_input_name, counting == "non_padding", padding, total_of(parts))
    own = parts.hooks.floating_point_ops
    operations = own.method if own.overridden else operations_in(parts.model)
    if operations is not None:
        yield OperationCounter(run, operations, total_of(parts))


def counters_to_settle(parts: TrainerParts, run: Run[Any, Any], learner: Learner[Any, Any]) -> list[Any]:
    """Return the counters whose counts are still on the device; without an operation counter, measure operations."""
    waiting: list[Any] = list(run.counters)
    if not any(isinstance(each, OperationCounter) for each in run.counters) and not parts.args.torch_compile:
        meter = OperationMeter(run, total_of(parts))
        meter.measure(learner)
        waiting.append(meter)
    return waiting
