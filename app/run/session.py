"""A live run: what belongs to it, the Trainer's side of it, how it is constructed, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from attrs import define, field, frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.framework import Observer, RunCounters
from hexloop.app.assembly.learner import AfterStep, RunLearner, whole_windows
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.random_state import GlobalState, take_global_state
from hexloop.app.assembly.sharing import global_batch_size
from hexloop.app.callbacks import CallbackHandler
from hexloop.app.callbacks.progress import ProgressDisplay
from hexloop.app.callbacks.trainer_state import DetachedRun
from hexloop.app.control.listening import listener_for
from hexloop.app.overrides.checkpoints import with_overridden_saves
from hexloop.app.overrides.stages import Report, Stages, after_each_step, choose_best_metric, wait_while_paused
from hexloop.app.run import checks, messages
from hexloop.app.run.checkpoint_folders import changes_in_on_save
from hexloop.app.run.checkpoints import RunCheckpoints, callbacks_state, mark_finished, refuse_unwritable, restore
from hexloop.app.run.failed_steps import explain_failed_steps
from hexloop.app.run.guarding import guard_messages, make_guard
from hexloop.app.run.journal import RunJournal, journal_for, totals_over_ranks
from hexloop.app.run.memory_metrics import MemoryStages
from hexloop.app.run.meters import meter_for
from hexloop.app.run.profiling import profile_steps
from hexloop.app.run.publishing import finish_pushes_after, publishing_events
from hexloop.app.run.run_information import note_information
from hexloop.app.run.step_sizes import same_global_batch
from hexloop.app.run.system_metrics import sample_system
from hexloop.app.run.tracking import RunLoggers, run_loggers
from hexloop.app.run.trained_parameters import TrainedParameters
from hexloop.domain.checkpoints.manifest import checkpoint_name
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.evaluation import speed_metrics
from hexloop.domain.events import AnyEvent, CheckpointPublished, SaveFailed, TrainEnded
from hexloop.domain.requests import make_agreement
from hexloop.domain.run import Evaluation, Run
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Plan, Trigger, Triggers, make_plan, whole_steps
from hexloop.ports.batches import Batches
from hexloop.ports.engine import RunFacts

UNSET_STEPS = 500
"""`state.eval_steps` of transformers if the arguments do not set it; it decides nothing then."""


@define
class Reporting:
    """What a live run reports to, and what may interrupt it.

    loggers: None until they have started, and after the run.
    """

    parts: TrainerParts
    run: Run[Any, Any]
    loggers: RunLoggers | None = field(default=None, init=False)

    def start(self, cleanups: ExitStack) -> dict[type[AnyEvent], Callable[[Any], None]]:
        """Start the loggers and the sources of interrupts; return the event handlers that pass models to the loggers.

        cleanups: gets what stops them.
        """
        parts, interrupts = self.parts, self.parts.adapters.interrupts
        interrupts.start(self._preempt)  # may raise, so before the loggers
        cleanups.callback(interrupts.stop)
        self.loggers = run_loggers(parts, self.run)
        parts.state.takes_media = self.loggers.media.take
        cleanups.callback(self._finish, self.loggers)
        cleanups.callback(_close_bars, parts.callback_handler, ProgressDisplay)
        cleanups.push(self._note_failure)
        return self.loggers.events()

    def identifiers_to_save(self) -> dict[str, str]:
        """Return what identifies the run for its loggers, for a checkpoint that is being saved."""
        return self.run.state.trackers if self.loggers is None else self.loggers.identifiers_to_save()

    def _preempt(self, reason: str = "") -> None:
        if self.loggers is not None:
            self.loggers.preempted = True
        self.parts.requests.request_stop(reason, save=True)

    def _note_failure(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Note for the loggers that the run was not constructed, or that its end failed."""
        self.run.failure = self.run.failure or error

    def _finish(self, loggers: RunLoggers) -> None:
        self.loggers = self.parts.state.takes_media = None
        loggers.finish()


def _close_bars(handler: CallbackHandler, kind: type[Any]) -> None:
    """Close progress bars: a run that raises does not reach the event at which a bar closes itself.

    Takes all that it needs as parameters: when a program exits while a run is open, module globals are already gone.
    """
    for callback in handler.callbacks:
        if isinstance(callback, kind):
            callback.close()


@define
class Session:
    """A live run and what belongs to it.

    parts: the Trainer's parts, with the prepared model.
    """

    parts: TrainerParts
    run: Run[Any, Any]
    global_state: GlobalState
    learner: RunLearner
    checkpoints: RunCheckpoints
    counters: RunCounters
    stages: Stages
    reporting: Reporting

    def wait_while_paused(self) -> None:
        """Wait until the run is no longer paused.

        Return earlier in a run of several processes: a process that does not communicate for `ddp_timeout` seconds
        counts as lost.
        """
        wait_while_paused(self.parts)

    def end_here(self, reason: str) -> None:
        """End the run at this boundary, without a further save. Every rank calls it at the same one."""
        run = self.run
        run.requests.explain_stop(reason)
        run.stopped = run.control.should_training_stop = True
        run.control.should_save = False

    def token_speed(self, tokens: int) -> dict[str, float]:
        """Return the tokens per second since the start, if there are `tokens` by now."""
        start = self.run.start
        return speed_metrics("train", self.run.clock.monotonic() - start.at, tokens=tokens - start.tokens)


@frozen
class RunHost:
    """The Trainer's side of a run: what the run calls while it is constructed, and where it leaves its results.

    parts: collects the Trainer's parts as they are now. memory: measures the stages of the Trainer.
    renew_model: rebuilds a model that was trained, if there is a `model_init`. prepare: wraps the model and makes the
    optimizer and the schedule for a number of steps; returns the wrapped model. It also receives the loader and what
    the run resumes from. forget_run: drops the optimizer, the schedule and the wrapped model of the last run.
    set_active: is called with True before a run is constructed, with False at its end. attach: sets the live session,
    None at its end.
    """

    parts: Callable[[], TrainerParts]
    memory: MemoryStages
    renew_model: Callable[[], None]
    prepare: Callable[[Any, int, Any, str | bool | None], Any]
    forget_run: Callable[[], None]
    set_active: Callable[[bool], None]
    attach: Callable[[Session | None], None]
    set_outcome: Callable[[RunOutcome | None], None]
    set_train_batch_size: Callable[[int], None]


@frozen
class RunOutcome:
    """How a run ended.

    Args:
        step: optimizer steps done.
        stopped: whether a request ended it before its last step.
        reasons: of all requests.
        checkpoint: the one that holds the last step, None if there is none.
        save_failed: whether the newest save failed, so that the steps since the last checkpoint are lost.
    """

    step: int
    stopped: bool
    reasons: tuple[str, ...]
    checkpoint: str | None
    save_failed: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code for a script: 0 done, 3 stopped and saved, 1 not saved although it should be."""
        if not self.stopped:
            return 1 if self.save_failed else 0
        return 3 if self.checkpoint is not None else 1


# Construction, in the only order that works: checks, model, data, plan, optimizer, learner, checkpoint


@frozen
class Preparation:
    """What a run is constructed from before its model is wrapped."""

    global_state: GlobalState
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
        cleanups = undo.enter_context(ExitStack())
        host.set_active(True)
        cleanups.callback(host.set_active, False)
        parts = host.parts()
        meter = meter_for(parts, cleanups)
        prepared = _prepare(parts, resume_from, cleanups)
        checks.refuse_inconsistent_ranks(parts)
        checks.refuse_separate_folders(parts)
        wrapped = host.prepare(prepared.model, prepared.plan.total_steps, prepared.loader, resume_from)
        parts = host.parts()  # now with the wrapped model, its optimizer and its schedule
        each_step, report = after_each_step(parts)
        after_step = AfterStep(each_step)
        framework = parts.adapters.framework
        parts.averages.weights = framework.averages(parts, prepared.plan.total_steps)
        learner = framework.learner(parts, wrapped, after_step)
        cleanups.callback(learner.close)
        cleanups.enter_context(framework.precision(parts, wrapped))
        run = _make_run(parts, prepared.plan, prepared.batches, learner, run_name, report, cleanups.close)
        totals = [totals_over_ranks(each) for each in (parts.adapters.collectives, parts.adapters.data_collectives)]
        sums = [lambda number, of=each: of([number])[0] for each in totals]
        counters = framework.counters(parts, run, learner, *sums)
        trained = TrainedParameters.of(parts, run, counters.settle)
        reporting = Reporting(parts, run)
        checkpoints = RunCheckpoints(
            parts,
            run,
            prepared.asked_accumulation,
            host.parts,
            trained,
            reporting.identifiers_to_save,
        )
        run.connect(
            with_overridden_saves(parts, checkpoints),
            make_guard(parts, run, prepared.loader, counters.settle),
            make_agreement(parts.requests, parts.adapters.collectives, lambda: checkpoints.writing),
            counters.each_batch,
            partial(_further_figures, host.memory, parts, run, counters),
        )
        explain_failed_steps(parts, run, prepared.loader)
        after_step.first(checkpoints.prepare)  # allocates the snapshots once the optimizer has its state
        parts.control.should_training_stop = False  # an earlier run left it on
        parts.adapters.precision.discard_update()  # an earlier run may have failed before a step
        stages = Stages(parts, run, prepared.loader, partial(finish_pushes_after, parts))
        session = Session(parts, run, prepared.global_state, learner, checkpoints, counters, stages, reporting)
        cleanups.callback(_detach, host, session)
        _attach(host, session, prepared.loader)
        restore(parts, run, checkpoints, resume_from)
        resumed = messages.resumed_from(parts.adapters.storage, resume_from, checkpoints.latest)
        meter.attach(run, counters, resumed is not None)
        stages.start(resumed, meter.watch)
        messages.log_start(parts, run, prepared.loader, resumed)
        messages.log_nothing_left(run, resumed, resume_from)
        cleanups.callback(prepared.journal.close)
        sample_system(parts, run, cleanups)
        passes_models = reporting.start(cleanups)
        parts.dispatcher.observe(
            meter.handlers(),
            note_information(parts, cleanups),  # called after the journal, which starts the session
            prepared.journal.follow(run, framework.group_lines(parts)),
            _watch_outcome(host, session),
            messages.end_messages(parts, run),
            guard_messages(parts.args),
            trained.handlers(),
            _listen(parts, run, cleanups),
            profile_steps(parts, cleanups),
            *prepared.observers,
            late=(changes_in_on_save(parts), publishing_events(parts, run, checkpoints.latest), passes_models),
        )
        undo.pop_all()  # the run closes them from now on
    return session


def _listen(parts: TrainerParts, run: Run[Any, Any], cleanups: ExitStack) -> Observer:
    """Read the commands of the board until the run is closed; return the event handlers."""
    listener = listener_for(parts.args, parts.adapters, parts.requests, run.state.run, lambda: run.state.step)
    if listener is None:
        return {}
    listener.start()
    cleanups.callback(listener.stop)
    return listener.handlers()


def _prepare(parts: TrainerParts, resume_from: str | bool | None, cleanups: ExitStack) -> Preparation:
    """Return the model on its device, the data and the plan. Raises ConfigurationError with every problem found."""
    args, adapters, framework = parts.args, parts.adapters, parts.adapters.framework
    with checks.Refusals() as refusals:
        args.check()
    with refusals:
        refuse_unwritable(args, adapters.storage)
    with refusals:
        checks.refuse_evaluation_without_data(parts)
    journal = journal_for(parts)
    plan: Plan | None = None
    asked_accumulation = args.gradient_accumulation_steps
    with refusals:
        cleanups.enter_context(same_global_batch(parts, resume_from))
    global_state = take_global_state(adapters.device, framework.flags(args, adapters.device))
    cleanups.callback(global_state.release)
    if parts.rules.own_order:
        adapters.device.seed(args.seed + adapters.mesh.data.rank)
    with refusals:
        model = parts.hooks.place_model(moves=not adapters.parallelism.capabilities.sharded)
        observers = cleanups.enter_context(framework.patched(model, args, parts.processing_class))
    with refusals:
        loader = parts.hooks.get_train_dataloader()
        cleanups.callback(framework.stop_workers, loader)
        transfer, inspect = framework.batch_preparation(parts)
        batches = framework.batches(parts, loader, journal.fingerprinted(transfer), inspect)
        per_epoch = batches.batches_per_epoch()
        plan = make_plan(per_epoch, args.gradient_accumulation_steps, args.num_train_epochs, args.max_steps)
        checks.refuse_optimizer(parts, plan.total_steps)
    if plan is not None:
        facts = RunFacts(parts.model, plan.total_steps, parts.makes_optimizer, parts.makes_scheduler)
        with refusals:
            if problems := adapters.engine.check(args, facts):
                raise ConfigurationError(problems)
    refusals.settle()
    assert plan is not None  # otherwise a problem was raised
    return Preparation(global_state, model, loader, batches, plan, journal, observers, asked_accumulation)


def _make_run(
    parts: TrainerParts,
    plan: Plan,
    batches: Batches[Any],
    learner: RunLearner,
    name: str | None,
    report: Report,
    clean_up: Callable[[], None],
) -> Run[Any, Any]:
    """Return the run at its first step, under one name on all processes."""
    args = parts.args
    state = RunState(
        run=str(parts.adapters.collectives.broadcast(name or parts.hooks.new_run_name())),
        seed=args.seed,
        data_seed=args.seed if args.data_seed is None else args.data_seed,
        global_batch_size=global_batch_size(args, parts.adapters.mesh.data, parts.train_batch_size)
        * args.gradient_accumulation_steps,
    )
    run = learner.window.run = Run(
        learner=learner.learner,
        batches=batches,
        losses=parts.adapters.framework.losses(parts),
        scheduler=parts.adapters.framework.scheduler(parts, learner),
        clock=parts.adapters.clock,
        plan=plan,
        state=state,
        triggers=triggers_of(args, plan, parts.callback_handler.has_default_flow),
        control=parts.control,
        requests=parts.requests,
        max_norm=args.max_grad_norm,
        report=report,
        warn=partial(parts.notices.warn, "no batches"),
        evaluate=_evaluation(parts),
        best=choose_best_metric(parts),
        schedule_observes=not parts.hooks.observes_metrics,
        windows=learner.windows if parts.rules.own_order or plan.batches_per_epoch else whole_windows(learner.windows),
        rate_groups=parts.adapters.framework.rate_groups(parts),
        evaluate_first=args.eval_on_start,
        cleanups=(clean_up,),
    )
    return run


def _evaluation(parts: TrainerParts) -> Callable[[], Evaluation]:
    """Return the evaluation of the run. If it runs out of memory, no smaller training batch size must be tried."""
    evaluate: Callable[[], Evaluation] = parts.hooks.evaluation_in_training.method
    device, eval_batch_size = parts.adapters.device, parts.args.eval_batch_size

    def evaluate_reporting_memory() -> Evaluation:
        try:
            return (yield from evaluate())
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            raise RunStateError(
                f"{device.name} ran out of memory for evaluation batches of {eval_batch_size}; auto_find_batch_size "
                "only finds a training batch size, so choose a smaller per_device_eval_batch_size."
            ) from error

    return evaluate_reporting_memory if parts.args.auto_find_batch_size else evaluate


def triggers_of(args: TrainingArguments, plan: Plan, has_default_flow: bool) -> Triggers:
    """Return when to log, evaluate and save: never, if the default flow was removed from the callbacks."""

    def trigger(strategy: Any, every: float) -> Trigger:
        interval = Interval(str(getattr(strategy, "value", strategy))) if has_default_flow else Interval.NO
        return Trigger(interval, whole_steps(every, plan.total_steps))

    log = trigger(args.logging_strategy, args.logging_steps)
    evaluate = trigger(args.eval_strategy, UNSET_STEPS if args.eval_steps is None else args.eval_steps)
    save = trigger(args.save_strategy, args.save_steps)
    return Triggers(log, evaluate, save, args.logging_first_step and has_default_flow, args.eval_delay)


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


def _detach(host: RunHost, session: Session) -> None:
    """Let the Trainer show how the run ended, and break the cycles of references through the run.

    What it holds on a device is freed at once, not by the garbage collector in a process that was forked later.
    """
    parts, run = session.parts, session.run
    host.attach(None)
    parts.state.follow(DetachedRun(run.state, run.plan, run.triggers))
    parts.dispatcher.observe()
    run.disconnect()


def _watch_outcome(host: RunHost, session: Session) -> dict[type[AnyEvent], Callable[[Any], None]]:
    """Return the event handlers that find out how the run ended, and record that it is finished if its end is saved."""
    published: set[str] = set()
    failed: set[int] = set()
    host.set_outcome(None)

    def on_published(event: CheckpointPublished) -> None:
        published.add(event.name)
        failed.clear()

    def on_end(event: TrainEnded) -> None:
        last = checkpoint_name(event.step)
        checkpoint = last if last in published else None
        host.set_outcome(RunOutcome(event.step, event.stopped, event.reasons, checkpoint, bool(failed)))
        adapters = session.parts.adapters
        if not event.stopped and published and not failed and adapters.mesh.writes:
            mark_finished(adapters.storage, session.parts.args, session.run.state, session.checkpoints.latest)

    return {CheckpointPublished: on_published, SaveFailed: lambda event: failed.add(event.step), TrainEnded: on_end}


def _further_figures(
    memory: MemoryStages, parts: TrainerParts, run: Run[Any, Any], counters: RunCounters
) -> dict[str, float]:
    """Complete the counts at the end of the run, and return the figures of its memory and further ones."""
    counters.settle()
    return {**memory.end("train"), **parts.adapters.framework.loss_figures(parts, run.losses, run.state.step)}
