"""A run: its state, and those who take part in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Generic, Protocol, SupportsFloat, TypeVar

from attrs import define, field, frozen

from hexloop.domain.agreement import Agreement, LocalAgreement
from hexloop.domain.best import BestMetric
from hexloop.domain.control import Control
from hexloop.domain.events import AnyEvent, CheckpointPublished, SaveFailed
from hexloop.domain.plan import Plan
from hexloop.domain.requests import Requests, SaveRequest
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Triggers
from hexloop.domain.windows import windows
from hexloop.ports.batches import Batches
from hexloop.ports.clock import Clock
from hexloop.ports.learner import Learner
from hexloop.ports.losses import Losses
from hexloop.ports.scheduler import Scheduler

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")

Evaluation = Generator[AnyEvent, None, Mapping[str, float] | None]
"""Events of an evaluation, and at its end the metrics (None where it was interrupted)."""


class Checkpoints(Protocol):
    """Who saves the run."""

    @property
    def news(self) -> bool:
        """Whether `collect` has anything to tell. Asked at every step."""
        ...

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Take the run's state for a checkpoint; the events say which, and when it is published.

        That may be later: then `collect` tells. A save that is not `required` may be left out, which an event says.
        """
        ...

    def collect(self) -> Iterator[AnyEvent]:
        """What became of a save since the last event about it. May wait where the run had better stand still."""
        ...

    def load_best(self, state: RunState) -> None:
        """Put the weights of the best checkpoint in force, where the run is to end with them."""
        ...

    def finish(self) -> Iterator[AnyEvent]:
        """Wait until every save is durable; called once, at the end of a run that was not cut short."""
        ...

    def close(self) -> Sequence[AnyEvent]:
        """Finish a save in flight, or discard it whole, and say which; called however the run ends."""
        ...


class NoCheckpoints:
    """Nothing is saved."""

    news = False

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """No checkpoint, no event."""
        return iter(())

    def collect(self) -> Iterator[AnyEvent]:
        """There is nothing to tell."""
        return iter(())

    def load_best(self, state: RunState) -> None:
        """There is no checkpoint to load."""

    def finish(self) -> Iterator[AnyEvent]:
        """There is nothing to wait for."""
        return iter(())

    def close(self) -> Sequence[AnyEvent]:
        """There is nothing in flight."""
        return ()


def no_evaluation() -> Evaluation:
    """An evaluation without data: no metrics."""
    yield from ()
    return {}


def _report_nowhere(values: dict[str, float]) -> None:
    """Nobody reads along."""


@frozen
class Session:
    """Where the clock and the counts stood when this process began to train; speed is measured from there."""

    at: float = 0.0
    step: int = 0
    samples: int = 0
    tokens: int = 0


@define
class Run(Generic[Batch, Loss]):
    """Everything that the loop reads. Whoever has a default may be left out.

    learner, batches, losses, scheduler, clock: the ports that training needs.
    plan, triggers: how long, and when to do what. max_norm: gradients are clipped to it (0: never).
    report: completes a mapping of numbers, enters it in the history and shows it to the watchers.
    evaluate, checkpoints: what the actions "evaluate" and "save" do.
    counters: called with every micro-batch that was trained on (tokens, floating-point operations).
    further_figures: what else is told of the whole run at its end, beside its speed and its loss.
    windows: puts micro-batches together, each group for one optimizer step.
    evaluate_first: evaluate before the first step. cleanups: called at the end, however it came.
    next_due: no trigger fires before this step; set it to 0 after a change of `triggers`.
    gradient_norm: the last step's, left on the device until a log or a checkpoint reads it.
    stopped: somebody asked for the end, which therefore comes before the plan's.
    session: where speed is measured from.
    """

    learner: Learner[Batch, Loss]
    batches: Batches[Batch]
    losses: Losses[Loss]
    scheduler: Scheduler
    clock: Clock
    plan: Plan
    state: RunState = field(factory=RunState)
    triggers: Triggers = field(factory=Triggers)
    control: Control = field(factory=Control)
    requests: Requests = field(factory=Requests)
    max_norm: float = 0.0
    report: Callable[[dict[str, float]], None] = _report_nowhere
    evaluate: Callable[[], Evaluation] = no_evaluation
    checkpoints: Checkpoints = field(factory=NoCheckpoints)
    best: BestMetric = field(factory=BestMetric)
    counters: Sequence[Callable[[Batch], None]] = ()
    further_figures: Callable[[], Mapping[str, float]] = dict
    windows: Callable[[Generator[Batch, None, None], int], Generator[list[Batch], None, None]] = windows
    evaluate_first: bool = False
    agreement: Agreement = field()
    cleanups: Sequence[Callable[[], None]] = ()
    next_due: int = field(default=0, init=False)
    gradient_norm: SupportsFloat | None = field(default=None, init=False)
    stopped: bool = field(default=False, init=False)
    session: Session = field(factory=Session, init=False)
    _awaited: dict[int, list[SaveRequest]] = field(factory=dict, init=False)

    def begin_session(self) -> None:
        """Measure speed from here."""
        state = self.state
        self.session = Session(self.clock.monotonic(), state.step, state.samples, state.tokens)

    def note_step(self, window: Sequence[Batch], taken: bool) -> None:
        """A step on `window` is done: move the state and the learning rates along, and switch on what is due."""
        state, scheduler, count = self.state, self.scheduler, len(window)
        rows = self.batches.rows(window[0]) if count == 1 else sum(map(self.batches.rows, window))
        state.position += rows
        state.samples += rows
        state.batches += count
        for counter in self.counters:
            for batch in window:
                counter(batch)
        state.step += 1
        state.learning_rate = scheduler.rates()[0]
        if taken:
            state.updates += 1
            scheduler.advance(state.updates)
        if state.step >= self.next_due:
            self.triggers.after_step(state, self.plan, self.control)
            self.next_due = self.triggers.quiet_until(state.step, self.plan)

    def anything_due(self) -> Collection[str] | bool:
        """By its truth, whether there is something to do at this boundary, or to ask the other processes about."""
        control = self.control
        return (
            control.should_log
            or control.should_evaluate
            or control.should_save
            or self.agreement.waiting
            or self.checkpoints.news
        )

    def answer(self, event: AnyEvent) -> None:
        """Tell those who asked for a save what became of it."""
        if isinstance(event, CheckpointPublished):
            for request in self._awaited.pop(event.step, ()):
                request.succeed(event.name)
        elif isinstance(event, SaveFailed):
            for request in self._awaited.pop(event.step, ()):
                request.fail(event.error)

    def await_saves(self) -> None:
        """Take along those who ask for a save at this step."""
        self._awaited.setdefault(self.state.step, []).extend(self.requests.take_saves())

    def close(self) -> None:
        """Release what the run holds. Every cleanup is called, whatever the others do; the first error is raised."""
        with ExitStack() as stack:
            for cleanup in (self._dismiss, *self.cleanups, self._close_checkpoints):
                stack.callback(cleanup)

    def change_triggers(self, triggers: Triggers) -> None:
        """Go by other rhythms from the next step on."""
        self.triggers = triggers
        self.next_due = 0

    def _close_checkpoints(self) -> None:
        for event in self.checkpoints.close():
            self.answer(event)

    def _dismiss(self) -> None:
        """Nobody waits in vain for a run that is over."""
        for waiting in self._awaited.values():
            self.requests.give_back(waiting)
        self._awaited.clear()
        self.requests.clear()

    @agreement.default
    def _agree_alone(self) -> Agreement:
        return LocalAgreement(self.requests)
