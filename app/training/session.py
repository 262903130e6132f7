"""One run of a Trainer, from its construction in the one order there is to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from attrs import define, frozen

from hexloop.adapters.batches.torch.structure import transfer_to
from hexloop.adapters.evaluator.torch.evaluator import Modes
from hexloop.app.training.accumulation import same_global_batch
from hexloop.app.training.alike import refuse_unlike
from hexloop.app.training.attachments import Observer, attached
from hexloop.app.training.checkpoints import (
    RunCheckpoints,
    callbacks_state,
    make_store,
    refuse_unwritable,
    restore,
)
from hexloop.app.training.counters import Counter
from hexloop.app.training.finished import note_finished
from hexloop.app.training.hooks import computing_in_format
from hexloop.app.training.inputs import named_by_position, named_on
from hexloop.app.training.journaling import RunJournal, journal_of
from hexloop.app.training.learners import AfterStep, RunLearner, make_learner
from hexloop.app.training.live import Control as LiveControl
from hexloop.app.training.live import begin_control
from hexloop.app.training.loaders import check_batch, stop_workers
from hexloop.app.training.losses import HALF_FORMATS
from hexloop.app.training.memory_metrics import MemoryStages
from hexloop.app.training.outcome import Outcome, watch_outcome
from hexloop.app.training.pausing import wait_while_paused
from hexloop.app.training.refusals import Refusals, refuse_evaluation_without_data, refuse_optimizer
from hexloop.app.training.reporting import watch
from hexloop.app.training.runs import counters_to_settle, make_run, plan_for
from hexloop.app.training.shared_folder import refuse_separate_folders
from hexloop.app.training.sharing import refuse_too_many_processes, training_batches
from hexloop.app.training.special_tokens import align_special_tokens
from hexloop.app.training.switches import switches_for
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.fail_safe import LoggerGroup
from hexloop.domain.plan import Plan
from hexloop.domain.requests import make_agreement
from hexloop.domain.run import Run
from hexloop.ports.batches import Batches
from hexloop.ports.engine import RunFacts


@define
class Session:
    """A run, and what the Trainer's hooks need of it while it lasts."""

    parts: TrainerParts
    run: Run[Any, Any]
    control: LiveControl
    learner: RunLearner
    checkpoints: RunCheckpoints
    modes: Modes
    counters: Sequence[Counter] = ()
    loggers: LoggerGroup | None = None

    def settle_counters(self) -> None:
        """Add the counts that are still on the device to the state."""
        settle(self.counters)

    def wait_while_paused(self) -> None:
        """Wait until the run is no longer paused; return earlier if other processes expect to hear from this one."""
        parts = self.parts
        wait_while_paused(parts.requests, parts.args, parts.adapters.collectives.world_size)


@frozen
class RunHost:
    """The Trainer's side of a run: what the run calls while it is constructed, and where it leaves its results.

    parts: collects the Trainer's parts as they stand. memory: measures the stages of the Trainer.
    renew_model: rebuilds a model that was trained, if there is a `model_init`. prepare: wraps the model and makes the
    optimizer and the schedule for a number of steps; returns the wrapped model. forget_run: drops the optimizer, the
    schedule and the wrapped model of the last run. attach: sets the session that is live, None at its end.
    """

    parts: Callable[[], TrainerParts]
    memory: MemoryStages
    renew_model: Callable[[], None]
    prepare: Callable[[Any, int], Any]
    forget_run: Callable[[], None]
    attach: Callable[[Session | None], None]
    set_outcome: Callable[[Outcome | None], None]
    set_train_batch_size: Callable[[int], None]


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


def settle(counters: Sequence[Counter]) -> None:
    """Add the counts that are still on the device to the state."""
    for counter in counters:
        counter.settle()


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
    transfer = named_on(parts, transfer_to(parts.adapters.device.name, non_blocking=True), own)
    named = named_by_position(parts)
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
