"""A run of the loop over a trainer's parts, and what counts in it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from hexloop.adapters.losses.torch import TorchLosses
from hexloop.app.training.counters import OperationCounter, OperationMeter, TokenCounter, operations_in
from hexloop.app.training.evaluating import evaluation_apart
from hexloop.app.training.hooks import is_overridden
from hexloop.app.training.learning_rates import as_port, best_metric
from hexloop.app.training.loaders import global_batch_size
from hexloop.app.training.triggers import triggers_for
from hexloop.app.training.worlds import total_of
from hexloop.domain.plan import Plan, make_plan
from hexloop.domain.ranks import SharedLosses
from hexloop.domain.run import Run
from hexloop.domain.state import RunState
from hexloop.ports.batches import Batches
from hexloop.ports.learner import Learner
from hexloop.ports.losses import Losses

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def plan_for(trainer: Trainer, batches: Batches[Any]) -> Plan:
    """How long the run is, by the arguments and the data."""
    args = trainer.args
    return make_plan(
        batches.batches_per_epoch(), args.gradient_accumulation_steps, args.num_train_epochs, args.max_steps
    )


def make_run(
    trainer: Trainer, plan: Plan, batches: Batches[Any], learner: Learner[Any, Any], name: str | None = None
) -> Run[Any, Any]:
    """The run, which all processes call the same; it begins at its first step."""
    args = trainer.args
    state = RunState(
        run=str(trainer.adapters.collectives.broadcast(name or trainer.new_run_name())),
        seed=args.seed,
        data_seed=args.seed if args.data_seed is None else args.data_seed,
        global_batch_size=global_batch_size(args, trainer._train_batch_size) * args.gradient_accumulation_steps,
    )
    run: Run[Any, Any] = Run(
        learner=learner,
        batches=batches,
        losses=_losses(trainer),
        scheduler=as_port(trainer.lr_scheduler, trainer.optimizer, args),
        clock=trainer.adapters.clock,
        plan=plan,
        state=state,
        triggers=triggers_for(args, plan, trainer.callback_handler.has_default_flow),
        control=trainer.control,
        requests=trainer._requests,
        max_norm=args.max_grad_norm,
        report=trainer.log,
        evaluate=partial(evaluation_apart, trainer) if args.auto_find_batch_size else trainer.evaluation_in_training,
        best=best_metric(args),
        evaluate_first=args.eval_on_start,
    )
    run.counters = list(_counters(trainer, run))
    run.windows = getattr(learner, "windows", run.windows)
    return run


def _losses(trainer: Trainer) -> Losses[Any]:
    own = TorchLosses(trainer.adapters.device.name, trainer.args.logging_nan_inf_filter)
    collectives = trainer.adapters.collectives
    return own if collectives.world_size == 1 else SharedLosses(own, collectives)


def _counters(trainer: Trainer, run: Run[Any, Any]) -> Iterator[Any]:
    counting = trainer.args.include_num_input_tokens_seen
    if counting != "no":
        padding = getattr(trainer.processing_class, "pad_token_id", None)
        yield TokenCounter(run, trainer.main_input_name, counting == "non_padding", padding, total_of(trainer))
    told = trainer.floating_point_ops if is_overridden(trainer, "floating_point_ops") else operations_in(trainer.model)
    if told is not None:
        yield OperationCounter(run, told, total_of(trainer))


def settling(trainer: Trainer, run: Run[Any, Any], learner: Learner[Any, Any]) -> list[Any]:
    """Those whose counts wait to be settled; where nobody counts operations, they are measured."""
    waiting: list[Any] = list(run.counters)
    if not any(isinstance(each, OperationCounter) for each in run.counters) and not trainer.args.torch_compile:
        meter = OperationMeter(run, total_of(trainer))
        meter.measure(learner)
        waiting.append(meter)
    return waiting
