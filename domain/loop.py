"""The training loop, what happens at a step boundary (log, evaluate, save, requests), and the two actions of a step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Generic, SupportsFloat, TypeVar

from hexloop.domain.errors import DataError
from hexloop.domain.evaluation import speed_metrics
from hexloop.domain.events import (
    AnyEvent,
    EpochBegan,
    EpochEnded,
    Logged,
    MicroStepEnded,
    Paused,
    StepBegan,
    StepEnded,
    TrainBegan,
    TrainEnded,
    WindowLeftOut,
)
from hexloop.domain.run import Run
from hexloop.domain.triggers import Interval
from hexloop.ports.learner import Precision, Trainable
from hexloop.ports.parallelism import Parallelism

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


def train(run: Run[Batch, Loss]) -> Generator[AnyEvent, None, None]:
    """Train until the plan's last step or until a stop is requested, and yield an event for everything that happens.

    In pseudocode:

        start the run: set the learning rates, finish the boundary that a resumed run was interrupted at
        for each epoch:
            for each window of micro-batches:
                for each micro-batch:
                    loss = learner.micro_step(batch)    # forward, backward
                learner.update()                        # clip, optimizer step
                count the step, advance the learning rates, check the triggers
                log, evaluate and save what is due; apply stop, save and pause requests
                if a loss is not usable: return to the kept state, and leave this window out
            log, evaluate and save what is due at the end of the epoch
        finish the run: wait for the last save, log the totals, load the best weights

    Each `next` may come from a different thread. However the generator ends, everything that the run holds is released
    and the original exception propagates; nothing is yielded or saved on that path.

    Args:
        run: the run, with its ports and its plan.
    """
    try:
        yield from start_run(run)
        while not run.control.should_training_stop:
            if run.state.step < run.plan.total_steps:
                run.control.should_epoch_stop = False
                yield EpochBegan(run.state.step, run.state.epoch)
                yield from run.around_epoch(_train_epoch(run))
            else:
                run.control.should_training_stop = True
                yield from end_epoch(run)
        yield from run.around_finish(finish_run(run))
    except BaseException as error:
        run.failure = run.failure or error
        raise
    finally:
        run.close()


def _train_epoch(run: Run[Batch, Loss]) -> Generator[AnyEvent, None, None]:
    """Train on the rest of the current epoch, one optimizer step per window of micro-batches, and end the epoch."""
    state, control, learner, guard = run.state, run.control, run.learner, run.guard
    count_items, add_loss, add_values = learner.count_items, run.losses.add, guard.values.add
    control.set_due_actions([])
    guard.keep(state)
    windows = run.windows(run.read(), run.plan.accumulation)
    with closing(guard.reading(state, windows) if state.skipped else windows) as epoch_windows:
        for window in epoch_windows:
            if state.skipped and guard.leaves_out():
                run.leave_out(window)
                yield WindowLeftOut(state.step, len(window))
                continue
            run.signals["sync_gradients"] = len(window) == 1
            yield StepBegan(state.step)
            items = count_items(window)
            shares: list[Loss] = []
            try:
                for batch in window:
                    last_of_window = len(shares) + 1 == len(window)
                    run.signals["sync_gradients"] = last_of_window
                    share = learner.micro_step(batch, items, last_of_window)
                    shares.append(share)
                    add_loss(share)
                    if not last_of_window:
                        yield MicroStepEnded(state.step, share)
                run.gradient_norm, taken = learner.update(run.max_norm)
            except Exception as error:
                run.note_failed_step(error, window, len(shares))
                raise
            add_values(shares, run.gradient_norm if taken else None)
            run.record_step(window, taken)
            yield StepEnded(state.step, shares, run.gradient_norm, taken)
            if run.anything_due():
                yield from run_due_actions(run)
                if guard.returns_to_kept:
                    break
                if not control.should_training_stop:
                    guard.keep(state)
            if control.should_training_stop:
                break
            if control.should_epoch_stop:
                end_pass(run)
                break
        else:
            end_pass(run)
    if guard.options.acts and not run.stopped:
        yield from guard.check(state)
    if guard.returns_to_kept:
        run.return_to_kept()
    elif not run.stopped:
        yield from end_epoch(run)


def start_run(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Set the learning rates, and run the actions that were still due at the boundary a resumed run stopped at."""
    state, control = run.state, run.control
    run.start_timing()
    run.gradient_norm = state.gradient_norm
    run.scheduler.start(state.updates)
    yield TrainBegan(state.step)
    set_by_callbacks = control.due_actions()  # visible to callbacks until the first step, and never acted on
    control.set_due_actions(state.due)
    state.due = []
    if run.evaluate_first and state.step == 0:
        yield from run.evaluate()  # seen by neither the schedule nor the best metric
    yield from run_due_actions(run)
    if run.stopped:
        return
    if control.should_training_stop:  # a callback that stopped the run before stopped it again
        if state.batches and not state.epoch_ended:
            yield from end_epoch(run)
    elif state.epoch_ended:
        if state.step >= run.plan.total_steps or (state.pass_complete and run.is_last_epoch):
            control.should_training_stop = True
        elif state.pass_complete:
            state.begin_next_epoch()
        else:  # the plan ended in the middle of the epoch, and is longer now
            state.epoch_ended = False
    if not control.should_training_stop:
        control.set_due_actions(set_by_callbacks)


def end_epoch(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Run the actions that are due at the end of the epoch, then move the state to the next epoch."""
    state, control = run.state, run.control
    state.epoch_ended = True
    if state.batches == run.plan.batches_per_epoch:
        state.pass_complete = True
    run.triggers.after_epoch(state, run.plan, control)
    yield EpochEnded(state.step, state.epoch)
    yield from run_due_actions(run)
    if run.is_last_epoch:
        control.should_training_stop = True
    if not control.should_training_stop:
        state.begin_next_epoch()


def run_due_actions(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Log, evaluate and save what is due at this boundary, then apply requests."""
    yield from log_evaluate_save(run)
    if run.agreement.waiting and not run.stopped:
        yield from apply_requests(run)
    if not run.stopped:
        run.control.set_due_actions([])


def log_evaluate_save(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Run the due actions in this order. A callback that handles an earlier action may make a later one due."""
    control, agreement, guard = run.control, run.agreement, run.guard
    if run.checkpoints.has_news:
        yield from _resolving_saves(run, run.checkpoints.collect())
    agreement.start_boundary(control)
    if control.should_log or control.should_save or guard.is_full or (control.should_evaluate and guard.options.acts):
        yield from guard.check(run.state)
        if guard.returns_to_kept:
            control.set_due_actions([])
            return
    if control.should_log:
        control.should_log = False
        yield from _log(run)
        agreement.after_action(control)
    if control.should_evaluate:
        yield from _evaluate(run)
        agreement.after_action(control)
    if control.should_save and not run.stopped:
        control.should_save = False
        yield from save(run, requested=agreement.is_single_process and run.requests.current.save)
        agreement.after_action(control)


def apply_requests(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Apply the requests that all ranks agreed on: save, pause, stop."""
    requested = run.agreement.agreed_requests()
    if requested.collect:
        yield from _resolving_saves(run, run.checkpoints.collect())
    while True:
        if requested.save:
            yield from run.guard.check(run.state)
            if run.guard.returns_to_kept:  # the requests stay, and are applied at the next boundary
                return
        if requested.stop:  # before the save, which must not be skipped, because it is the run's last
            run.stopped = run.control.should_training_stop = True
        if requested.save:
            yield from save(run, requested=True)
            run.agreement.after_action(run.control)
        if requested.stop or not requested.pause:
            return
        yield from _resolving_saves(run, run.checkpoints.finish())  # no later boundary would collect it
        yield Paused(run.state.step)
        requested = run.agreement.agreed_requests()


def save(run: Run[Batch, Loss], requested: bool) -> Iterator[AnyEvent]:
    """Save a checkpoint of the current state, with the actions that are still due, and resolve the save requests."""
    state = run.state
    state.due = run.control.due_actions()
    state.gradient_norm = None if run.gradient_norm is None else float(run.gradient_norm)
    required = requested or run.stopped or state.step >= run.plan.total_steps
    if requested:
        run.take_save_requests()
    yield from _resolving_saves(run, run.checkpoints.save(state, required))
    run.guard.note_save()
    state.due = []


def _resolving_saves(run: Run[Batch, Loss], events: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
    """Yield the events of saves, after resolving the save requests that they complete."""
    for event in events:
        run.resolve_save_requests(event)
        yield event


def _log(run: Run[Batch, Loss]) -> Iterator[AnyEvent]:
    """Log the mean loss of the steps since the last log, and the last step's gradient norm and learning rate."""
    state = run.state
    steps = state.step - state.logged_step
    if steps == 0:
        return
    total, further = run.guard.loss_of_log(state, run.losses.drain(), steps)
    values = {"loss": total / steps}
    values |= {name: each / steps for name, each in run.losses.drain_components().items()}
    if run.gradient_norm is not None:
        values["grad_norm"] = float(run.gradient_norm)
    if state.learning_rate is not None:
        values["learning_rate"] = state.learning_rate
        values |= {f"learning_rate/{name}": rate for name, rate in state.learning_rates.items()}
    values |= further
    values |= run.log_figures()
    state.loss_total += total
    state.logged_step = state.step
    run.report(values)
    yield Logged(state.step, values)


def _evaluate(run: Run[Batch, Loss]) -> Generator[AnyEvent, None, None]:
    """Evaluate, pass the metrics to the schedule, and update the best metric.

    An evaluation that was interrupted by a stop stays due.
    """
    control = run.control
    metrics = yield from run.evaluate()
    if metrics is None:
        return
    control.should_evaluate = False
    if run.schedule_observes:
        run.scheduler.observe(metrics)
    improved = run.best.observe(run.state, metrics)
    if run.triggers.save.interval is Interval.BEST:
        control.should_save = improved


def end_pass(run: Run[Batch, Loss]) -> None:
    """Mark the current pass over the data as complete.

    If it had no batch at all, raise DataError before the first step, and stop the run with a warning after it.
    """
    state = run.state
    state.pass_complete = True
    if state.batches > 0:
        return
    if state.step == 0:
        raise DataError("The training data yielded no batches: it is empty. Provide at least one sample.")
    run.warn(
        f"The training data yielded no batches in epoch {state.epoch}, so training stops after step {state.step} "
        f"of {run.plan.total_steps}. Pass data that can be iterated more than once, or set a smaller max_steps."
    )
    run.control.should_training_stop = True


def finish_run(run: Run[Batch, Loss]) -> Generator[AnyEvent, None, None]:
    """Wait for the last save, log the totals of the run, and load the best weights if the run is to end with them."""
    state, start = run.state, run.start
    yield from _resolving_saves(run, run.checkpoints.finish())
    yield from run.guard.check(state, acts=False)
    total, _ = run.guard.loss_of_log(state, run.losses.drain(), state.step - state.logged_step)
    state.loss_total += total
    metrics = speed_metrics(
        "train", run.clock.monotonic() - start.at, samples=state.samples - start.samples, steps=state.step - start.step
    )
    further = run.further_figures()
    metrics["total_flos"] = state.operations
    metrics["train_loss"] = state.loss_total / max(state.step, 1)
    if state.nonfinite_losses and run.guard.options.counts:
        metrics["train_nonfinite_steps"] = state.nonfinite_losses
    metrics |= further
    run.report(metrics)
    yield Logged(state.step, metrics)
    run.checkpoints.load_best(state)
    yield TrainEnded(state.step, metrics, run.stopped, run.requests.reasons if run.stopped else ())


class StandardLearner(Generic[Batch, Loss]):
    """Implements the Learner port with a model in pieces (Trainable), a Precision and a Parallelism.

    In pseudocode:

        micro_step: parallelism.synchronise(last_of_window)        # reduce gradients over ranks, or accumulate
                    loss = trainable.loss(batch) under precision   # forward
                    parallelism.backward(precision.scale(loss))    # backward
        update:     precision.unscale(optimizer)
                    trainable.clip(max_norm)
                    precision.step(optimizer)                      # skipped if a scaled gradient overflowed
                    trainable.clear_gradients()

    Args:
        trainable: the pieces of a step.
        precision: the number format.
        parallelism: the engine that reduces gradients over ranks.
        before_optimizer_step: called before the optimizer's step, if given.
        after_optimizer_step: called after it, if given.
        backward: called with the loss instead of the parallelism's backward pass of the scaled loss, if given.

    Attributes:
        before_clearing: called last before the gradients are cleared, with whether the step was taken.
    """

    def __init__(
        self,
        trainable: Trainable[Batch, Loss],
        precision: Precision[Loss],
        parallelism: Parallelism[Loss],
        before_optimizer_step: Callable[[], None] | None = None,
        after_optimizer_step: Callable[[], None] | None = None,
        backward: Callable[[Loss], None] | None = None,
    ) -> None:
        self.count_items = trainable.count_items
        self._forward = precision.wrap(trainable.loss)
        self._trainable = trainable
        self._precision = precision
        self._parallelism = parallelism
        self._before_optimizer_step = before_optimizer_step
        self.after_optimizer_step = after_optimizer_step
        self.before_clearing: Callable[[bool], None] | None = None
        self._backward = backward

    def micro_step(self, batch: Batch, window_items: object, last_of_window: bool) -> Loss:
        """Run forward and backward of one micro-batch; see `Learner.micro_step`."""
        forward, precision, parallelism = self._forward, self._precision, self._parallelism
        parallelism.synchronise(last_of_window)
        loss = forward(batch, window_items)
        if self._backward is None:
            parallelism.backward(precision.scale(loss))
        else:
            self._backward(loss)
        return self._trainable.detached(loss)

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip the gradients and take the optimizer step; see `Learner.update`."""
        trainable, precision = self._trainable, self._precision
        precision.unscale(trainable.optimizer)
        norm = trainable.clip(max_norm)
        if self._before_optimizer_step:
            self._before_optimizer_step()
        taken = precision.step(trainable.optimizer)
        if self.after_optimizer_step:
            self.after_optimizer_step()
        if self.before_clearing:
            self.before_clearing(taken)
        trainable.clear_gradients()
        return norm, taken

    # Bound in __init__ to the trainable's method, which saves a call per step.
    count_items: Callable[[Sequence[Batch]], object]
