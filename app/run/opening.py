"""The rhythms that the arguments ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from attrs import frozen

from hexloop.adapters.batches.torch.structure import transfer_to
from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.adapters.losses.torch import TorchLosses
from hexloop.adapters.trainable.torch.counters import OperationCounter, OperationMeter, TokenCounter, operations_in
from hexloop.adapters.trainable.torch.forward import named_by_position
from hexloop.adapters.trainable.torch.special_tokens import align_special_tokens
from hexloop.app.arguments import TrainingArguments
from hexloop.app.run.checkpoints import RunCheckpoints, callbacks_state, make_store, refuse_unwritable, restore
from hexloop.app.run.checks import (
    Refusals,
    refuse_evaluation_without_data,
    refuse_optimizer,
    refuse_separate_folders,
    refuse_unlike,
)
from hexloop.app.run.determinism import Control as LiveControl
from hexloop.app.run.determinism import begin_control, switches_for
from hexloop.app.run.evaluation import evaluation_apart
from hexloop.app.run.journal import RunJournal, journal_of, total_of
from hexloop.app.run.reporting import watch
from hexloop.app.run.resume import note_finished, same_global_batch
from hexloop.app.run.session import RunHost, Session, settle, watch_outcome
from hexloop.app.wiring.data import (
    check_batch,
    global_batch_size,
    refuse_too_many_processes,
    stop_workers,
    training_batches,
)
from hexloop.app.wiring.learner import AfterStep, RunLearner, computing_in_format, make_learner
from hexloop.app.wiring.losses import HALF_FORMATS
from hexloop.app.wiring.model import Observer, as_port, attached, best_metric
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.plan import Plan, make_plan
from hexloop.domain.ranks import SharedLosses
from hexloop.domain.requests import make_agreement
from hexloop.domain.run import Evaluation, Run
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers, whole_steps
from hexloop.ports.batches import Batches
from hexloop.ports.engine import RunFacts
from hexloop.ports.learner import Learner
from hexloop.ports.losses import Losses

UNSET_STEPS = 500
"""The reference library's `state.eval_steps` where the arguments leave it open, which is where it decides nothing."""


def triggers_for(args: TrainingArguments, plan: Plan, has_default_flow: bool) -> Triggers:
    """When to log, evaluate and save; never, where the default flow was taken out of the callbacks."""
    evaluation_steps = UNSET_STEPS if args.eval_steps is None else args.eval_steps
    log = _trigger(args.logging_strategy, args.logging_steps, plan)
    evaluate = _trigger(args.eval_strategy, evaluation_steps, plan)
    save = _trigger(args.save_strategy, args.save_steps, plan)
    if has_default_flow:
        return Triggers(log, evaluate, save, args.logging_first_step, args.eval_delay)
    log, evaluate, save = (Trigger(Interval.NO, each.every) for each in (log, evaluate, save))
    return Triggers(log, evaluate, save)


def _trigger(strategy: Any, every: float, plan: Plan) -> Trigger:
    return Trigger(Interval(str(getattr(strategy, "value", strategy))), whole_steps(every, plan.total_steps))


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
    total = total_of(parts.adapters.collectives)
    counting = parts.args.include_num_input_tokens_seen
    if counting != "no":
        padding = getattr(parts.processing_class, "pad_token_id", None)
        yield TokenCounter(
            run, parts.main_input_name, counting == "non_padding", padding, total_of(parts.adapters.collectives)
        )
    own = parts.hooks.floating_point_ops
    operations = own.method if own.overridden else operations_in(parts.model)
    if operations is not None:
        yield OperationCounter(run, operations, total)


def counters_to_settle(parts: TrainerParts, run: Run[Any, Any], learner: Learner[Any, Any]) -> list[Any]:
    """Return the counters whose counts are still on the device; without an operation counter, measure operations."""
    waiting: list[Any] = list(run.counters)
    if not any(isinstance(each, OperationCounter) for each in run.counters) and not parts.args.torch_compile:
        meter = OperationMeter(run, total_of(parts.adapters.collectives))
        meter.measure(learner)
        waiting.append(meter)
    return waiting


@frozen
class Preparation:
    """What a run is constructed from, before its model is wrapped."""

    control: LiveControl
    model: Any
    loader: Any
    batches: Batches[Any]
    plan: Plan
    journal: RunJournal
    observers: Sequence[Observer]
    asked_accumulation: int


def open_session(host: RunHost, resume_from: str | bool | None, run_name: str | None = None) -> Session:
    """Construct a run: model on its device, data, plan, wrapped model and optimizer, compile, schedule, load.

    Raises ConfigurationError with every problem that can be known without data; everything is undone in that case.
    """
    with ExitStack() as undo:
        parts = host.parts()
        prepared = _prepare(parts, resume_from, undo)
        refuse_unlike(parts)
        refuse_separate_folders(parts)
        wrapped = host.prepare(prepared.model, prepared.plan.total_steps)
        parts = host.parts()  # now with the wrapped model, its optimizer and its schedule
        after_step = AfterStep(partial(parts.dispatcher.call, "on_optimizer_step"))
        modes = Modes()
        learner = make_learner(parts, wrapped, after_step, modes.restore)
        if parts.hooks.training_step.overridden and parts.adapters.precision.name in HALF_FORMATS:
            undo.enter_context(computing_in_format(wrapped, parts.adapters.precision))
        run = make_run(parts, prepared.plan, prepared.batches, learner, run_name)
        counters = counters_to_settle(parts, run, learner.learner)
        store = make_store(parts, run, prepared.asked_accumulation, host.parts)
        run.checkpoints = checkpoints = RunCheckpoints(parts, store, partial(settle, counters))
        run.agreement = make_agreement(parts.requests, parts.adapters.collectives, checkpoints.writing)
        after_step.first(checkpoints.prepare)  # makes room for snapshots once the optimizer has its state
        parts.control.should_training_stop = False  # an earlier run left it on
        session = Session(parts, run, prepared.control, learner, checkpoints, modes, counters)
        run.further_figures = partial(_figures, host, session)
        undo.callback(host.attach, None)
        _attach(host, session, prepared.loader)
        restore(parts, run, store, resume_from)
        _announce(parts, run)
        watching = watch(session)
        outcome = watch_outcome(host.set_outcome, partial(_note_finished, session))
        parts.dispatcher.observe(prepared.journal.follow(run), outcome, *prepared.observers)
        run.cleanups = (undo.pop_all().close, prepared.journal.close, *watching)
    return session


def _prepare(parts: TrainerParts, resume_from: str | bool | None, undo: ExitStack) -> Preparation:
    """Return the model on its device, the data and the plan. Raises ConfigurationError with every problem found."""
    args, adapters = parts.args, parts.adapters
    with Refusals() as refusals:
        args.check()
    with refusals:
        refuse_unwritable(args, adapters.storage)
    with refusals:
        refuse_evaluation_without_data(parts)
    journal = journal_of(parts)
    plan: Plan | None = None
    asked_accumulation = args.gradient_accumulation_steps
    with refusals:
        undo.enter_context(same_global_batch(parts, resume_from))
    control = begin_control(adapters.device, switches_for(args))
    undo.callback(control.release)
    adapters.device.seed(args.seed + adapters.collectives.rank)
    with refusals:
        model = parts.hooks.place_model(moves=not adapters.parallelism.capabilities.sharded)
        align_special_tokens(model, parts.processing_class)
        observers = undo.enter_context(attached(args, model))
    with refusals:
        loader = parts.hooks.get_train_dataloader()
        undo.callback(stop_workers, loader)
        transfer, inspection = _ways_of_batches(parts)
        batches = training_batches(parts, loader, journal.fingerprinted(transfer), inspection)
        plan = plan_for(parts, batches)
        refuse_too_many_processes(parts, batches)
        refuse_optimizer(parts, plan.total_steps)
    if plan is not None:
        with refusals:
            _check_engine(parts, plan.total_steps)
    refusals.settle()
    assert plan is not None  # or what kept it from being made was refused
    return Preparation(control, model, loader, batches, plan, journal, observers, asked_accumulation)


def _check_engine(parts: TrainerParts, total_steps: int) -> None:
    """Raise ConfigurationError if the engine's options do not fit the run."""
    facts = RunFacts(parts.model, total_steps, parts.makes_optimizer, parts.makes_scheduler)
    if problems := parts.adapters.engine.check(parts.args, facts):
        raise ConfigurationError(problems)


def _note_finished(session: Session) -> None:
    parts = session.parts
    if parts.adapters.collectives.rank == 0:
        note_finished(parts.adapters.storage, parts.args, session.run.state, session.checkpoints.latest)


def _announce(parts: TrainerParts, run: Run[Any, Any]) -> None:
    logging.getLogger("hexloop").info(
        "Training from step %d to %d, in steps of %d samples on %s; %d parameters are trained.",
        run.state.step,
        run.plan.total_steps,
        run.state.global_batch_size,
        parts.adapters.device.name,
        parts.hooks.get_num_trainable_parameters(),
    )


def _ways_of_batches(parts: TrainerParts) -> tuple[Callable[[Any], Any], Callable[[Any], None]]:
    """How a batch gets to the device, and what looks at it before.

    A user's own step may take any batch as it comes; the standard one takes mappings of stacked tensors.
    """
    own = parts.hooks.compute_loss.overridden or parts.hooks.training_step.overridden
    transfer = parts.naming(transfer_to(parts.adapters.device.name, non_blocking=True), own)
    named = named_by_position(parts.model, parts.has_own_loss)
    return transfer, (lambda _batch: None) if own else (lambda batch: check_batch(named(batch)))


def _figures(host: RunHost, session: Session) -> dict[str, float]:
    """Complete the counts at the end of the run, and return the figures of its memory."""
    session.settle_counters()
    return host.memory.end("train")


def _attach(host: RunHost, session: Session, loader: Any) -> None:
    """Let the Trainer's attributes and the callbacks show this run."""
    parts = session.parts
    host.attach(session)
    parts.state.follow(session.run)
    parts.state.train_batch_size = parts.train_batch_size
    session.run.state.callbacks = callbacks_state(parts.callback_handler, parts.control)
    handler = parts.callback_handler
    handler.model, handler.optimizer = parts.model, parts.optimizer
    handler.lr_scheduler, handler.train_dataloader = parts.lr_scheduler, loader
