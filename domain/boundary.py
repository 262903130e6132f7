"""What happens between steps: logs, evaluations, saves, and what somebody asked of the run."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from typing import TypeVar

from hexloop.domain.errors import DataError
from hexloop.domain.events import (
    AnyEvent,
    EpochEnded,
    Logged,
    Paused,
    TrainBegan,
    TrainEnded,
)
from hexloop.domain.run import Run
from hexloop.domain.speed import speed_metrics
from hexloop.domain.triggers import Interval

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


def begin(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Put the learning rates in force, tell that the run begins, and do what an interrupted boundary still owes."""
    state, control = run.state, run.control
    run.begin_session()
    run.gradient_norm = state.gradient_norm
    run.scheduler.start(state.updates)
    yield TrainBegan(state.step)
    switched_on = control.due()  # seen until the first step begins, and without effect
    control.set_due(state.due)
    state.due = []
    if run.evaluate_first and state.step == 0:
        yield from run.evaluate()  # neither the schedule nor the best metric takes notice of it
    yield from settle(run)
    if run.stopped:
        return
    if control.should_training_stop:  # a callback that had ended the run has done so again
        if state.batches and not state.epoch_ended:
            yield from end_epoch(run)
    elif state.epoch_ended:
        if state.step >= run.plan.total_steps or (state.pass_complete and run.plan.is_last(state.epoch)):
            control.should_training_stop = True
        elif state.pass_complete:
            state.begin_next_epoch()
        else:  # the plan ended within the pass, and is longer now
            state.epoch_ended = False
    if not control.should_training_stop:
        control.set_due(switched_on)


def end_epoch(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Announce the end of the present pass over the data, do what is due then, and turn to the next."""
    state, control = run.state, run.control
    state.epoch_ended = True
    if state.batches == run.plan.batches_per_epoch:
        state.pass_complete = True
    run.triggers.after_epoch(state, run.plan, control)
    yield EpochEnded(state.step, state.epoch)
    yield from settle(run)
    if run.plan.is_last(state.epoch):
        control.should_training_stop = True
    if not control.should_training_stop:
        state.begin_next_epoch()


def settle(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Do what is due at this boundary, and last what somebody asked for."""
    yield from settle_due(run)
    if run.agreement.waiting and not run.stopped:
        yield from heed(run)
    if not run.stopped:
        run.control.set_due([])


def settle_due(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Do what is due, in order: log, evaluate, save.

    A callback may switch a later action on while an earlier one is done.
    """
    control, agreement = run.control, run.agreement
    if run.checkpoints.news:
        yield from _answering(run, run.checkpoints.collect())
    agreement.begin(control)
    if control.should_log:
        control.should_log = False
        yield from _log(run)
        agreement.go_on(control)
    if control.should_evaluate:
        yield from _evaluate(run)
        agreement.go_on(control)
    if control.should_save and not run.stopped:
        control.should_save = False
        yield from save(run, asked=agreement.alone and run.requests.asked.save)
        agreement.go_on(control)


def heed(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Do what the processes agree on having been asked: save, stand still, stop."""
    asked = run.agreement.reached()
    if asked.collect:
        yield from _answering(run, run.checkpoints.collect())
    while True:
        if asked.stop:  # before the save, which is the run's last then and must not be left out
            run.stopped = run.control.should_training_stop = True
        if asked.save:
            yield from save(run, asked=True)
            run.agreement.go_on(run.control)
        if asked.stop or not asked.pause:
            return
        yield from _answering(run, run.checkpoints.finish())  # nobody comes to a boundary at which to collect it
        yield Paused(run.state.step)
        asked = run.agreement.reached()


def save(run: Run[Batch, Loss], asked: bool) -> Iterator[AnyEvent]:
    """Take a checkpoint of the run as it stands, with what is still due, and answer those who `asked` for one."""
    state = run.state
    state.due = run.control.due()
    state.gradient_norm = None if run.gradient_norm is None else float(run.gradient_norm)
    required = asked or run.stopped or state.step >= run.plan.total_steps
    if asked:
        run.await_saves()
    yield from _answering(run, run.checkpoints.save(state, required))
    state.due = []


def _answering(run: Run[Batch, Loss], events: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
    """Events about saves, on whose way those who asked for one hear of it."""
    for event in events:
        run.answer(event)
        yield event


def _log(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Log the mean loss of the steps since the last log, with the last step's gradient norm and learning rate."""
    state = run.state
    steps = state.step - state.logged_step
    if steps == 0:
        return
    total = run.losses.drain()
    values = {"loss": total / steps}
    if run.gradient_norm is not None:
        values["grad_norm"] = float(run.gradient_norm)
    if state.learning_rate is not None:
        values["learning_rate"] = state.learning_rate
    state.loss_total += total
    state.logged_step = state.step
    run.report(values)
    yield Logged(state.step, values)


def _evaluate(run: Run[Batch, Loss]) -> Generator[AnyEvent, None, None]:
    """Evaluate, let the schedule see the metrics, and note whether they are the best so far.

    An evaluation in whose middle the run is stopped stays due.
    """
    control = run.control
    metrics = yield from run.evaluate()
    if metrics is None:
        return
    control.should_evaluate = False
    run.scheduler.observe(metrics)
    improved = run.best.observe(run.state, metrics)
    if run.triggers.save.interval is Interval.BEST:
        control.should_save = improved


def end_pass(run: Run[Batch, Loss]) -> None:
    """The present pass over the data has no further step.

    Raises DataError where the data gave nothing at all; data that give nothing in a later pass end the run.
    """
    state = run.state
    state.pass_complete = True
    if state.batches > 0:
        return
    if state.step == 0:
        raise DataError("The training data gave no batch: it is empty; give it at least one sample.")
    warnings.warn(
        f"The training data gave no batch in epoch {state.epoch}, so training ends after step {state.step} "
        f"of {run.plan.total_steps}; give data that can be read again, or a smaller max_steps.",
        stacklevel=2,
    )
    run.control.should_training_stop = True


def finish(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Wait for the last save, log the figures of the whole run, and end with the best weights where that was wished."""
    state, session = run.state, run.session
    yield from _answering(run, run.checkpoints.finish())
    state.loss_total += run.losses.drain()
    metrics = speed_metrics(
        "train",
        run.clock.monotonic() - session.at,
        samples=state.samples - session.samples,
        steps=state.step - session.step,
    )
    further = run.further_figures()
    metrics["total_flos"] = state.operations
    metrics["train_loss"] = state.loss_total / max(state.step, 1)
    metrics |= further
    run.report(metrics)
    yield Logged(state.step, metrics)
    run.checkpoints.load_best(state)
    yield TrainEnded(state.step, metrics, run.stopped, run.requests.reasons if run.stopped else ())
