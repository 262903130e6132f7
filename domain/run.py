"""A run: its state, the ports that training uses, and the bookkeeping of each step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, closing
from itertools import chain
from typing import Generic, Protocol, SupportsFloat, TypeVar

from attrs import define, field, frozen

from hexloop.domain.evaluation import BestMetric
from hexloop.domain.events import AnyEvent, CheckpointPublished, SaveFailed
from hexloop.domain.guard import Guard, WindowPlace
from hexloop.domain.requests import Agreement, LocalAgreement, Requests, SaveRequest
from hexloop.domain.state import RunState
from hexloop.domain.triggers import ControlFlags, Plan, Triggers
from hexloop.ports.batches import Batches
from hexloop.ports.learner import Learner, Losses, Scheduler
from hexloop.ports.process import Clock

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")

Evaluation = Generator[AnyEvent, None, Mapping[str, float] | None]
"""The events of an evaluation; it returns the metrics, or None if it was interrupted."""


class Checkpoints(Protocol):
    """What the loop asks of checkpoints; `hexloop.domain.checkpoints.store.CheckpointStore` implements it."""

    @property
    def has_news(self) -> bool:
        """Whether `collect` has events to yield. Read at every step."""

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Save a checkpoint of `state` and yield the events of the save.

        A save in the background is published later; `collect` yields that event. A save that is not `required` may be
        skipped, which an event reports.

        Args:
            state: the state of the run.
            required: False if the save may be skipped while another one is in flight.
        """

    def collect(self) -> Iterator[AnyEvent]:
        """Yield what happened to the save in flight since its last event. May wait if the storage is full."""

    def load_best(self, state: RunState) -> None:
        """Load the weights of the best checkpoint, if the run is to end with them.

        Args:
            state: the state of the run.
        """

    def finish(self) -> Iterator[AnyEvent]:
        """Wait until every save is durable. Called when the run pauses and when it finishes normally."""

    def close(self) -> Sequence[AnyEvent]:
        """Finish the save in flight, or discard it entirely, and return its events. Called however the run ends."""


class NoCheckpoints:
    """A `Checkpoints` that saves nothing."""

    has_news = False

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """No-op.

        Args:
            state: the state of the run.
            required: False if the save may be skipped while another one is in flight.
        """
        return iter(())

    def collect(self) -> Iterator[AnyEvent]:
        """No-op."""
        return iter(())

    def load_best(self, state: RunState) -> None:
        """No-op.

        Args:
            state: the state of the run.
        """

    def finish(self) -> Iterator[AnyEvent]:
        """No-op."""
        return iter(())

    def close(self) -> Sequence[AnyEvent]:
        """No-op."""
        return ()


def no_evaluation() -> Evaluation:
    """Evaluate nothing and return no metrics."""
    yield from ()
    return {}


def windows(batches: Generator[Batch, None, None], accumulation: int) -> Generator[list[Batch], None, None]:
    """Group the batches into windows of `accumulation` micro-batches; the last window may be smaller.

    A batch is only read when its window needs it.

    Args:
        batches: the micro-batches of an epoch.
        accumulation: micro-batches in a window.
    """
    with closing(batches):
        window: list[Batch] = []
        for batch in batches:
            window.append(batch)
            if len(window) == accumulation:
                yield window
                window = []
        if window:
            yield window


@frozen
class StartingPoint:
    """The clock in seconds and the counts when this process started training; speed is measured from there.

    Args:
        at: the clock, in seconds.
        step: optimizer steps done.
        samples: samples seen.
        tokens: tokens seen.
    """

    at: float = 0.0
    step: int = 0
    samples: int = 0
    tokens: int = 0


@frozen
class FailedStep(Generic[Batch]):
    """Where an error happened: in micro-batch `number` of `count` of optimizer step `step` of `steps`, all from 1 on.

    number: 0 while the batches of the step were read. place: where its samples are in the data; while they were read,
    where they begin. batch: the micro-batch; None in the update, whose samples are those of all micro-batches.
    """

    step: int
    steps: int
    number: int
    count: int
    place: WindowPlace
    batch: Batch | None

    @property
    def in_update(self) -> bool:
        """Whether all micro-batches were done."""
        return self.batch is None and self.number > 0

    @property
    def in_reading(self) -> bool:
        """Whether the batches of the step were being read."""
        return self.number == 0


@define
class Run(Generic[Batch, Loss]):
    """Everything that the loop reads and changes. Attributes with a default are optional.

    Args:
        learner: trains the model: micro-steps and updates.
        batches: provides the micro-batches of each epoch.
        losses: adds up losses, and reads them when a log is due.
        scheduler: sets the learning rates.
        clock: the time.
        plan: the length of the run.
        state: the state, which a checkpoint keeps.
        triggers: when to log, evaluate and save.
        control: the flags that triggers and callbacks set.
        requests: stop, save and pause requests from any thread.
        max_norm: the gradient norm to clip to (0: no clipping).
        report: completes a mapping of logged values, appends it to the history and passes it to the loggers.
        warn: called with what the user should know about the data while the run continues.
        evaluate: implements the action "evaluate".
        checkpoints: implements the action "save".
        best: which metric decides which evaluation is the best.
        counters: called with every micro-batch that was trained on, to count tokens or floating-point operations.
        further_figures: additional totals that are logged when the run finishes.
        log_figures: additional values of each log of a loss.
        rate_groups: the parameter groups whose rates are logged besides the first one's, by the names in the log.
        windows: groups micro-batches into windows, one per optimizer step.
        evaluate_first: evaluate before the first step.
        around_epoch: receives the events of an epoch and yields them; by default unchanged.
        around_finish: receives the events of the end of the run and yields them; by default unchanged.
        schedule_observes: whether the schedule receives the metrics of each evaluation; False if `evaluate` passes
            them.
        guard: looks at the losses and gradient norms of all windows.
        agreement: how ranks agree on requests and flags.
        cleanups: called however the run ends.

    Attributes:
        next_due: no trigger fires before this step; set it to 0 after changing `triggers`.
        gradient_norm: the last step's, left on the device until a log or a checkpoint reads it.
        update_taken: whether the last update changed the weights; loss scaling may skip one.
        stopped: a stop request ends the run before the plan does.
        explain: receives an error in a step and where it happened, to add a note to it.
        failure: the exception that ended the run, also that of a callback or of the caller; None if none did.
        signals: where the loop writes `sync_gradients`, whether the current micro-batch is the last of its window.
            Another library's mapping may take its place.
        start: where speed is measured from.
    """

    learner: Learner[Batch, Loss]
    batches: Batches[Batch]
    losses: Losses[Loss]
    scheduler: Scheduler
    clock: Clock
    plan: Plan
    state: RunState = field(factory=RunState)
    triggers: Triggers = field(factory=Triggers)
    control: ControlFlags = field(factory=ControlFlags)
    requests: Requests = field(factory=Requests)
    max_norm: float = 0.0
    report: Callable[[dict[str, float]], None] = lambda _: None
    warn: Callable[[str], None] = warnings.warn
    evaluate: Callable[[], Evaluation] = no_evaluation
    checkpoints: Checkpoints = field(factory=NoCheckpoints)
    best: BestMetric = field(factory=BestMetric)
    counters: Sequence[Callable[[Batch], None]] = ()
    further_figures: Callable[[], Mapping[str, float]] = dict
    log_figures: Callable[[], Mapping[str, float]] = dict
    rate_groups: Mapping[str, int] = field(factory=dict)
    windows: Callable[[Generator[Batch, None, None], int], Generator[list[Batch], None, None]] = windows
    evaluate_first: bool = False
    around_epoch: Callable[[Generator[AnyEvent, None, None]], Iterator[AnyEvent]] = iter
    around_finish: Callable[[Generator[AnyEvent, None, None]], Iterator[AnyEvent]] = iter
    schedule_observes: bool = True
    guard: Guard[Loss] = field(factory=Guard)
    agreement: Agreement = field()
    cleanups: Sequence[Callable[[], None]] = ()
    next_due: int = field(default=0, init=False)
    gradient_norm: SupportsFloat | None = field(default=None, init=False)
    update_taken: bool = field(default=True, init=False)
    stopped: bool = field(default=False, init=False)
    failure: BaseException | None = field(default=None, init=False)
    signals: MutableMapping[str, object] = field(factory=lambda: {"sync_gradients": True}, init=False)
    start: StartingPoint = field(factory=StartingPoint, init=False)
    explain: Callable[[Exception, FailedStep[Batch]], None] = field(default=lambda *_: None, init=False)
    _unresolved: dict[int, list[SaveRequest]] = field(factory=dict, init=False)

    @agreement.default
    def _agree_locally(self) -> Agreement:
        return LocalAgreement(self.requests)

    def connect(
        self,
        checkpoints: Checkpoints,
        guard: Guard[Loss],
        agreement: Agreement,
        counters: Sequence[Callable[[Batch], None]],
        further_figures: Callable[[], Mapping[str, float]],
    ) -> None:
        """Use these collaborators, which read or change the run and so are made after it. Called before it starts.

        Args:
            checkpoints: implements the action "save".
            guard: looks at the losses and gradient norms of all windows.
            agreement: how ranks agree on requests and flags.
            counters: called with every micro-batch that was trained on.
            further_figures: additional totals that are logged when the run finishes.
        """
        self.checkpoints, self.guard, self.agreement = checkpoints, guard, agreement
        self.counters, self.further_figures = counters, further_figures

    def disconnect(self) -> None:
        """Let go of these collaborators and of the error after the end: no cycle of references keeps what they hold."""
        self.failure, self.explain = None, lambda *_: None
        self.connect(NoCheckpoints(), Guard(), LocalAgreement(self.requests), (), dict)
        self.log_figures = dict

    def note_failed_step(self, error: Exception, window: Sequence[Batch], done: int) -> None:
        """Let `explain` add a note to an error in a step.

        Args:
            error: the error.
            window: the micro-batches of the step.
            done: how many of them succeeded.
        """
        state, batch = self.state, window[done] if done < len(window) else None
        counts = [self.batches.rows(each) for each in window]
        samples = sum(counts) if batch is None else counts[done]
        place = WindowPlace(state.epoch, state.position + (0 if batch is None else sum(counts[:done])), samples)
        self.explain(error, FailedStep(state.step + 1, self.plan.total_steps, done + 1, len(window), place, batch))

    def read(self) -> Generator[Batch, None, None]:
        """Yield the rest of the current epoch's batches, and let `explain` add a note to an error in reading them."""
        state = self.state
        try:
            yield from self.batches.epoch(state.epoch, state.position)
        except Exception as error:
            place = WindowPlace(state.epoch, state.position, 0)
            step, steps, count = state.step + 1, self.plan.total_steps, self.plan.accumulation
            self.explain(error, FailedStep(step, steps, 0, count, place, None))
            raise

    def start_timing(self) -> None:
        """Measure speed from now on."""
        state = self.state
        self.start = StartingPoint(self.clock.monotonic(), state.step, state.samples, state.tokens)

    def record_step(self, window: Sequence[Batch], taken: bool) -> None:
        """Update the state, the learning rates and the due flags after an optimizer step on `window`.

        Args:
            window: the micro-batches of the step.
            taken: whether the optimizer changed the weights; loss scaling may skip an update.
        """
        state, scheduler, count = self.state, self.scheduler, len(window)
        rows = self.batches.rows(window[0]) if count == 1 else sum(map(self.batches.rows, window))
        self.guard.note_window(state.epoch, state.position, rows)
        state.position += rows
        state.samples += rows
        state.batches += count
        for counter in self.counters:
            for batch in window:
                counter(batch)
        state.step += 1
        self.update_taken = taken
        rates = scheduler.rates()
        state.learning_rate = rates[0]
        if self.rate_groups:
            state.learning_rates = {name: rates[number] for name, number in self.rate_groups.items()}
        if taken:
            state.updates += 1
            scheduler.advance(state.updates)
        if state.step >= self.next_due:
            self.triggers.after_step(state, self.plan, self.control)
            self.next_due = self.triggers.quiet_until(state.step, self.plan)

    def leave_out(self, window: Sequence[Batch]) -> None:
        """Move the position after `window`, which is not trained on.

        Args:
            window: the micro-batches of the step.
        """
        self.state.position += sum(map(self.batches.rows, window))
        self.state.batches += len(window)

    def return_to_kept(self) -> None:
        """Continue from the state that the guard keeps, without the window that it found."""
        self.state = state = self.guard.return_to_kept()
        self.control.set_due_actions([])
        self.control.should_epoch_stop = False
        self.control.should_training_stop = self.stopped
        self.gradient_norm, self.next_due = state.gradient_norm, 0
        self.scheduler.start(state.updates)

    @property
    def is_last_epoch(self) -> bool:
        """Whether no epoch follows. With `max_steps`, further epochs make up for windows that were left out."""
        makes_up = self.plan.counts_steps and self.state.skipped and self.state.step < self.plan.total_steps
        return self.plan.is_last(self.state.epoch) and not makes_up

    def anything_due(self) -> Collection[str] | bool:
        """Return a true value if this boundary has an action to run, a request to apply, or news about a save."""
        control = self.control
        return (
            control.should_log
            or control.should_evaluate
            or control.should_save
            or self.agreement.waiting
            or self.checkpoints.has_news
            or self.guard.is_full
        )

    def change_triggers(self, triggers: Triggers) -> None:
        """Use other triggers from the next step on.

        Args:
            triggers: the new intervals.
        """
        self.triggers = triggers
        self.next_due = 0

    def take_save_requests(self) -> None:
        """Assign the pending save requests to the save of the current step."""
        self._unresolved.setdefault(self.state.step, []).extend(self.requests.take_saves())

    def resolve_save_requests(self, event: AnyEvent) -> None:
        """Complete the save requests of the step whose checkpoint was published or failed, according to `event`.

        Args:
            event: says that a checkpoint is durable, or that its save failed.
        """
        if isinstance(event, CheckpointPublished):
            for request in self._unresolved.pop(event.step, ()):
                request.succeed(event.name)
        elif isinstance(event, SaveFailed):
            for request in self._unresolved.pop(event.step, ()):
                request.fail(event.error)

    def close(self) -> None:
        """Release what the run holds. Every cleanup is called even if another one fails; the first error is raised."""
        with ExitStack() as stack:
            for cleanup in (self._fail_save_requests, *self.cleanups, self._close_checkpoints):
                stack.callback(cleanup)

    def _close_checkpoints(self) -> None:
        for event in self.checkpoints.close():
            self.resolve_save_requests(event)

    def _fail_save_requests(self) -> None:
        """Fail every request that is still unresolved, so that no thread waits for a run that is over."""
        self.requests.clear(chain.from_iterable(self._unresolved.values()))
        self._unresolved.clear()
