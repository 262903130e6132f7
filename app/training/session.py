"""One run of a Trainer, from its construction in the one order there is to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field

from hexloop.adapters.batches.torch.transfer import transfer_to
from hexloop.adapters.learner.deepspeed import DeepSpeedLearner
from hexloop.adapters.losses.torch import TorchLosses
from hexloop.adapters.trainable.torch.trainable import TorchTrainable
from hexloop.app.deepspeed.engine import deepspeed_learner, refuse_deepspeed
from hexloop.app.training.alike import refuse_unlike
from hexloop.app.training.attachments import attached
from hexloop.app.training.checkpoints import (
    RunCheckpoints,
    callbacks_state,
    make_store,
    prepare_after_first_update,
    refuse_unwritable,
    restore,
)
from hexloop.app.training.counters import OperationCounter, OperationMeter, TokenCounter, operations_in
from hexloop.app.training.evaluating import evaluation_apart
from hexloop.app.training.hooks import (
    OverriddenBatchSamples,
    OverriddenTrainingStep,
    computing_in_format,
    is_overridden,
)
from hexloop.app.training.inputs import named_by_position, named_on
from hexloop.app.training.journaling import journal_of
from hexloop.app.training.learning_rates import as_port, best_metric
from hexloop.app.training.live import Control as LiveControl
from hexloop.app.training.live import begin_control
from hexloop.app.training.loaders import check_batch, global_batch_size, stop_workers
from hexloop.app.training.losses import HALF_FORMATS, loss_in_force, preparing
from hexloop.app.training.outcome import watch_outcome
from hexloop.app.training.refusals import Refusals, refuse_evaluation_without_data, refuse_optimizer
from hexloop.app.training.sharded import layout_of
from hexloop.app.training.sharing import refuse_too_many_processes, training_batches
from hexloop.app.training.special_tokens import align_special_tokens
from hexloop.app.training.switches import switches_for
from hexloop.app.training.triggers import triggers_for
from hexloop.app.training.worlds import parallelism_of, total_of, world_of
from hexloop.app.wiring import Adapters
from hexloop.domain.agreement import agreement_for
from hexloop.domain.plan import Plan, make_plan
from hexloop.domain.run import Run
from hexloop.domain.shared_losses import SharedLosses
from hexloop.domain.state import RunState
from hexloop.domain.step import StandardLearner
from hexloop.ports.batches import Batches
from hexloop.ports.learner import Learner
from hexloop.ports.losses import Losses

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


@define
class Session:
    """A run, and what the Trainer's hooks need of it while it lasts."""

    run: Run[Any, Any]
    control: LiveControl
    standard: StandardLearner[Any, Any] | DeepSpeedLearner
    learner: Learner[Any, Any]
    checkpoints: RunCheckpoints
    counters: list[TokenCounter | OperationMeter] = field(factory=list)

    def settle_counters(self) -> None:
        """Bring the counts that wait on the device into the state."""
        for counter in self.counters:
            counter.settle()


def open_session(trainer: Trainer, resume_from: str | bool | None, run_name: str | None = None) -> Session:
    """Construct a run: model on its device, data, plan, wrapped model and optimizer, compile, schedule, load.

    Raises ConfigurationError with every problem that can be known without data. What was begun is undone then.
    """
    adapters = trainer.adapters
    with Refusals() as refusals:
        trainer.args.check()
    with refusals:
        refuse_unwritable(trainer)
    with refusals:
        refuse_evaluation_without_data(trainer)
    journal = journal_of(trainer)
    with ExitStack() as undo:
        control = begin_control(adapters.device, switches_for(trainer.args))
        undo.callback(control.release)
        adapters.device.seed(trainer.args.seed + adapters.collectives.rank)
        with refusals:
            model = trainer.place_model(moves=not adapters.parallelism.capabilities.sharded)
            align_special_tokens(model, trainer.processing_class)
            observers = undo.enter_context(attached(trainer, model))
        plan: Plan | None = None
        with refusals:
            loader = trainer.get_train_dataloader()
            undo.callback(stop_workers, loader)
            transfer, inspection = _ways_of_batches(trainer)
            batches = training_batches(trainer, loader, journal.fingerprinted(transfer), inspection)
            plan = plan_for(trainer, batches)
            refuse_too_many_processes(trainer, batches)
            refuse_optimizer(trainer, plan.total_steps)
        if plan is not None:
            with refusals:
                refuse_deepspeed(trainer, plan.total_steps)
        refusals.settle()
        assert plan is not None  # or what kept it from being made was refused
        refuse_unlike(trainer)
        wrapped = _prepare(trainer, adapters, model, plan)
        standard, learner = _learner(trainer, adapters, wrapped)
        if is_overridden(trainer, "training_step") and adapters.precision.name in HALF_FORMATS:
            undo.enter_context(computing_in_format(wrapped, adapters.precision))
        run = _run(trainer, adapters, plan, batches, learner)
        run.state.run = str(adapters.collectives.broadcast(run_name or run.state.run))
        run.windows = getattr(learner, "windows", run.windows)
        store = make_store(trainer, run, adapters.storage)
        run.checkpoints = checkpoints = RunCheckpoints(trainer, store)
        run.agreement = agreement_for(trainer.requests, adapters.collectives, checkpoints.writing)
        prepare_after_first_update(standard, checkpoints)
        trainer.control.should_training_stop = False  # an earlier run left it on
        session = Session(run, control, standard, learner, checkpoints)
        session.counters += [each for each in run.counters if hasattr(each, "settle")]  # type: ignore[misc]
        if not any(isinstance(each, OperationCounter) for each in run.counters) and not trainer.args.torch_compile:
            meter = OperationMeter(run, total_of(trainer))
            meter.measure(learner)
            session.counters.append(meter)
        run.further_figures = partial(_figures, trainer, session)
        undo.callback(trainer.end_session)
        _attach(trainer, session, loader)
        restore(trainer, run, store, resume_from)
        _announce(trainer, run)
        watching = trainer.watch(run)
        trainer.dispatcher.observe(journal.follow(run), watch_outcome(trainer), *observers)
        run.cleanups = (undo.pop_all().close, journal.close, *watching)
    return session


def _announce(trainer: Trainer, run: Run[Any, Any]) -> None:
    logging.getLogger("hexloop").info(
        "Training from step %d to %d, in steps of %d samples on %s; %d parameters are trained.",
        run.state.step,
        run.plan.total_steps,
        run.state.global_batch_size,
        trainer.adapters.device.name,
        trainer.get_num_trainable_parameters(),
    )


def plan_for(trainer: Trainer, batches: Batches[Any]) -> Plan:
    """How long the run is, by the arguments and the data."""
    args = trainer.args
    return make_plan(
        batches.batches_per_epoch(), args.gradient_accumulation_steps, args.num_train_epochs, args.max_steps
    )


def _prepare(trainer: Trainer, adapters: Adapters, model: Any, plan: Plan) -> Any:
    """Wrap the model, make the optimizer over what it then holds, compile, make the schedule."""
    trainer.forget_own_optimizer()

    def make_optimizer(wrapped: Any) -> Any:
        trainer.model_wrapped = wrapped
        trainer.create_optimizer_and_scheduler(plan.total_steps)
        return trainer.optimizer

    wrapped, trainer.optimizer = adapters.parallelism.prepare(model, make_optimizer)
    if trainer.lr_scheduler is None:  # the engine has made the optimizer itself
        trainer.create_scheduler(num_training_steps=plan.total_steps)
    if trainer.args.torch_compile:
        wrapped = torch.compile(
            wrapped, backend=trainer.args.torch_compile_backend or "inductor", mode=trainer.args.torch_compile_mode
        )
    trainer.model_wrapped = wrapped
    wrapped.train()
    return wrapped


def _learner(
    trainer: Trainer, adapters: Adapters, wrapped: Any
) -> tuple[StandardLearner[Any, Any] | DeepSpeedLearner, Learner[Any, Any]]:
    """The standard learner, and the one that the loop gets: the same, unless `training_step` is overridden."""
    choice = preparing(trainer, loss_in_force(trainer))
    trainable = TorchTrainable(
        wrapped,
        trainer.optimizer,
        choice.compute,
        normalises=choice.normalises,
        exact=trainer.args.loss_weighting == "exact",
        label_names=trainer.label_names,
        shifted=choice.shifted,
        world=world_of(trainer, choice.normalises),
        layout=layout_of(trainer),
    )
    before, after = _before_optimizer_step(trainer), lambda: trainer.dispatcher.call("on_optimizer_step")
    standard: StandardLearner[Any, Any] | DeepSpeedLearner
    if adapters.parallelism.capabilities.owns_update:
        standard = deepspeed_learner(trainer, wrapped, trainable, before, after)
    else:
        standard = StandardLearner(trainable, adapters.precision, parallelism_of(trainer), before, after)
    learner: Any = standard
    if is_overridden(trainer, "training_step"):
        learner = OverriddenTrainingStep(standard, wrapped, trainer.training_step)
    if is_overridden(trainer, "get_batch_samples"):
        learner = OverriddenBatchSamples(learner, trainer.get_batch_samples, trainer.args.device)
    return standard, learner


def _before_optimizer_step(trainer: Trainer) -> Callable[[], None]:
    """Tell the callbacks; every so many steps, where that is asked for, also empty the device's cache."""
    every, release = trainer.args.torch_empty_cache_steps, trainer.adapters.device.release_memory

    def tell() -> None:
        trainer.dispatcher.call("on_pre_optimizer_step")

    def tell_and_release() -> None:
        tell()
        if trainer.state.global_step % (every or 1) == 0:
            release()

    return tell_and_release if every else tell


def _ways_of_batches(trainer: Trainer) -> tuple[Callable[[Any], Any], Callable[[Any], None]]:
    """How a batch gets to the device, and what looks at it before.

    A user's own step may take any batch as it comes; the standard one takes mappings of stacked tensors.
    """
    own = is_overridden(trainer, "compute_loss") or is_overridden(trainer, "training_step")
    transfer = named_on(trainer, transfer_to(trainer.adapters.device.name, non_blocking=True), own)
    named = named_by_position(trainer)
    return transfer, (lambda _batch: None) if own else (lambda batch: check_batch(named(batch)))


def _run(
    trainer: Trainer, adapters: Adapters, plan: Plan, batches: Batches[Any], learner: Learner[Any, Any]
) -> Run[Any, Any]:
    args = trainer.args
    state = RunState(
        run=trainer.new_run_name(),
        seed=args.seed,
        data_seed=args.seed if args.data_seed is None else args.data_seed,
        global_batch_size=global_batch_size(args, trainer._train_batch_size) * args.gradient_accumulation_steps,
    )
    run: Run[Any, Any] = Run(
        learner=learner,
        batches=batches,
        losses=_losses(trainer),
        scheduler=as_port(trainer.lr_scheduler, trainer.optimizer, args),
        clock=adapters.clock,
        plan=plan,
        state=state,
        triggers=triggers_for(args, plan, trainer.callback_handler.has_default_flow),
        control=trainer.control,
        requests=trainer.requests,
        max_norm=args.max_grad_norm,
        report=trainer.log,
        evaluate=partial(evaluation_apart, trainer) if args.auto_find_batch_size else trainer.evaluation_in_training,
        best=best_metric(args),
        evaluate_first=args.eval_on_start,
    )
    run.counters = list(_counters(trainer, run))
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


def _figures(trainer: Trainer, session: Session) -> dict[str, float]:
    """What is told of the whole run at its end: its memory; and its counts are complete then."""
    session.settle_counters()
    return trainer.memory.end("train")


def _attach(trainer: Trainer, session: Session, loader: Any) -> None:
    """Let the Trainer's attributes and the callbacks see this run."""
    trainer.session = session
    trainer.state.follow(session.run)
    trainer.state.train_batch_size = trainer._train_batch_size
    session.run.state.callbacks = callbacks_state(trainer)
    handler = trainer.callback_handler
    handler.model, handler.optimizer = trainer.model, trainer.optimizer
    handler.lr_scheduler, handler.train_dataloader = trainer.lr_scheduler, loader
