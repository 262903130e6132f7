"""One run of a Trainer, from its construction in the one order there is to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from hexloop.adapters.batches.torch.transfer import transfer_to
from hexloop.adapters.evaluator.torch.modes import Modes
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
from hexloop.app.training.counters import OperationMeter, TokenCounter
from hexloop.app.training.hooks import computing_in_format, is_overridden
from hexloop.app.training.inputs import named_by_position, named_on
from hexloop.app.training.journaling import RunJournal, journal_of
from hexloop.app.training.learners import AfterStep, make_learner, prepare
from hexloop.app.training.live import Control as LiveControl
from hexloop.app.training.live import begin_control
from hexloop.app.training.loaders import check_batch, stop_workers
from hexloop.app.training.losses import HALF_FORMATS
from hexloop.app.training.outcome import watch_outcome
from hexloop.app.training.refusals import Refusals, refuse_evaluation_without_data, refuse_optimizer
from hexloop.app.training.runs import make_run, plan_for, settling
from hexloop.app.training.shared_folder import refuse_separate_folders
from hexloop.app.training.sharing import refuse_too_many_processes, training_batches
from hexloop.app.training.special_tokens import align_special_tokens
from hexloop.app.training.switches import switches_for
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.plan import Plan
from hexloop.domain.requests import make_agreement
from hexloop.domain.run import Run
from hexloop.ports.batches import Batches
from hexloop.ports.engine import RunFacts
from hexloop.ports.learner import Learner

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


@define
class Session:
    """A run, and what the Trainer's hooks need of it while it lasts."""

    run: Run[Any, Any]
    control: LiveControl
    standard: Learner[Any, Any]
    learner: Learner[Any, Any]
    checkpoints: RunCheckpoints
    modes: Modes
    counters: Sequence[TokenCounter | OperationMeter] = ()

    def settle_counters(self) -> None:
        """Bring the counts that wait on the device into the state."""
        for counter in self.counters:
            counter.settle()


@frozen
class Parts:
    """What a run is made of before its model is wrapped."""

    control: LiveControl
    model: Any
    loader: Any
    batches: Batches[Any]
    plan: Plan
    journal: RunJournal
    observers: Sequence[Observer]


def open_session(trainer: Trainer, resume_from: str | bool | None, run_name: str | None = None) -> Session:
    """Construct a run: model on its device, data, plan, wrapped model and optimizer, compile, schedule, load.

    Raises ConfigurationError with every problem that can be known without data. What was begun is undone then.
    """
    with ExitStack() as undo:
        parts = _make_parts(trainer, resume_from, undo)
        refuse_unlike(trainer)
        refuse_separate_folders(trainer)
        wrapped = prepare(trainer, parts.model, parts.plan.total_steps)
        after_step = AfterStep(partial(trainer._dispatcher.call, "on_optimizer_step"))
        modes = Modes()
        standard, learner = make_learner(trainer, wrapped, after_step, modes.restore)
        if is_overridden(trainer, "training_step") and trainer.adapters.precision.name in HALF_FORMATS:
            undo.enter_context(computing_in_format(wrapped, trainer.adapters.precision))
        run = make_run(trainer, parts.plan, parts.batches, learner, run_name)
        store = make_store(trainer, run, trainer.adapters.storage)
        run.checkpoints = checkpoints = RunCheckpoints(trainer, store)
        run.agreement = make_agreement(trainer._requests, trainer.adapters.collectives, checkpoints.writing)
        after_step.first(checkpoints.prepare)  # makes room for snapshots once the optimizer has its state
        trainer.control.should_training_stop = False  # an earlier run left it on
        session = Session(run, parts.control, standard, learner, checkpoints, modes, settling(trainer, run, learner))
        run.further_figures = partial(_figures, trainer, session)
        undo.callback(trainer.end_session)
        _attach(trainer, session, parts.loader)
        restore(trainer, run, store, resume_from)
        _announce(trainer, run)
        watching = trainer.watch(run)
        trainer._dispatcher.observe(parts.journal.follow(run), watch_outcome(trainer), *parts.observers)
        run.cleanups = (undo.pop_all().close, parts.journal.close, *watching)
    return session


def _make_parts(trainer: Trainer, resume_from: str | bool | None, undo: ExitStack) -> Parts:
    """The model on its device, the data and the plan. Raises ConfigurationError with all that cannot work."""
    adapters = trainer.adapters
    with Refusals() as refusals:
        trainer.args.check()
    with refusals:
        refuse_unwritable(trainer)
    with refusals:
        refuse_evaluation_without_data(trainer)
    journal = journal_of(trainer)
    plan: Plan | None = None
    with refusals:
        undo.enter_context(same_global_batch(trainer, resume_from))
    control = begin_control(adapters.device, switches_for(trainer.args))
    undo.callback(control.release)
    adapters.device.seed(trainer.args.seed + adapters.collectives.rank)
    with refusals:
        model = trainer.place_model(moves=not adapters.parallelism.capabilities.sharded)
        align_special_tokens(model, trainer.processing_class)
        observers = undo.enter_context(attached(trainer, model))
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
            _check_engine(trainer, plan.total_steps)
    refusals.settle()
    assert plan is not None  # or what kept it from being made was refused
    return Parts(control, model, loader, batches, plan, journal, observers)


def _check_engine(trainer: Trainer, total_steps: int) -> None:
    """Raise ConfigurationError for what of the engine's options does not fit the run."""
    facts = RunFacts(trainer.model, total_steps, trainer.makes_optimizer, trainer.makes_scheduler)
    if problems := trainer.adapters.engine.check(trainer.args, facts):
        raise ConfigurationError(problems)


def _announce(trainer: Trainer, run: Run[Any, Any]) -> None:
    logging.getLogger("hexloop").info(
        "Training from step %d to %d, in steps of %d samples on %s; %d parameters are trained.",
        run.state.step,
        run.plan.total_steps,
        run.state.global_batch_size,
        trainer.adapters.device.name,
        trainer.get_num_trainable_parameters(),
    )


def _ways_of_batches(trainer: Trainer) -> tuple[Callable[[Any], Any], Callable[[Any], None]]:
    """How a batch gets to the device, and what looks at it before.

    A user's own step may take any batch as it comes; the standard one takes mappings of stacked tensors.
    """
    own = is_overridden(trainer, "compute_loss") or is_overridden(trainer, "training_step")
    transfer = named_on(trainer, transfer_to(trainer.adapters.device.name, non_blocking=True), own)
    named = named_by_position(trainer)
    return transfer, (lambda _batch: None) if own else (lambda batch: check_batch(named(batch)))


def _figures(trainer: Trainer, session: Session) -> dict[str, float]:
    """What is told of the whole run at its end: its memory; and its counts are complete then."""
    session.settle_counters()
    return trainer._memory.end("train")


def _attach(trainer: Trainer, session: Session, loader: Any) -> None:
    """Let the Trainer's attributes and the callbacks see this run."""
    trainer._session = session
    trainer.state.follow(session.run)
    trainer.state.train_batch_size = trainer._train_batch_size
    session.run.state.callbacks = callbacks_state(trainer)
    handler = trainer.callback_handler
    handler.model, handler.optimizer = trainer.model, trainer.optimizer
    handler.lr_scheduler, handler.train_dataloader = trainer.lr_scheduler, loader
