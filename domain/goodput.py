"""Goodput: the share of a run's wall time that goes into useful steps, and what the rest goes into.

The account of a run is in one cause at any moment. What the loop calls (data, evaluations, saves, logs) is wrapped, so
that the account is in the cause of that meanwhile, and what the receiver of an event does with it counts as OTHER. The
times of all causes are therefore the wall time, whatever happens in whichever order.

All times are the host's, and no wait for the device is added. An accelerator works on its queue while the host
continues, so its time appears where the host waits for it: in a step whose queue is full, and where a log, a save or a
check of the losses reads values from the device. These waits count as STEP. Between two of them a step looks shorter
than it is; over the time between two logs, which both read, the times are those of the run. A host that waits for data
while the device still works counts that as DATA: compare goodput with the utilisation of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from attrs import define, field

from hexloop.domain.events import AnyEvent, Paused, StepBegan
from hexloop.domain.guard import KeptState
from hexloop.domain.run import Checkpoints, Run
from hexloop.domain.state import Cause, RunState, TimeSpent
from hexloop.ports.process import Clock

Result = TypeVar("Result")
Window = TypeVar("Window")
Batch = TypeVar("Batch")

Seconds = Mapping[Cause, float]

Windows = Callable[[Generator[Batch, None, None], int], Generator[list[Batch], None, None]]

USES_DEVICE = (Cause.STEP, Cause.DATA, Cause.OTHER)
"""The causes between two waits for the device in which it may work on steps."""


def no_time() -> dict[Cause, float]:
    """Return the times of a run that has not started."""
    return dict.fromkeys(Cause, 0.0)


def shares_of(seconds: Seconds) -> dict[str, float]:
    """Return the share of each cause in percent, by the name under which it is logged; nothing if no time has passed.

    They are rounded to three decimals.

    Args:
        seconds: seconds, by cause.
    """
    total = sum(seconds.values())
    return {cause.logged_as: round(100 * part / total, 3) for cause, part in seconds.items()} if total > 0 else {}


def utilisation(operations: float, seconds: Seconds, peak: float) -> float | None:
    """Return the model FLOP utilisation in percent, with four digits; None if no step was taken.

    The operations that the model's steps need, not those that were executed, over what the devices could have done in
    that time: Chowdhery et al. 2022, "PaLM", appendix B. Evaluations, saves, compilation, pauses and starts are left
    out of the time. Waits for data are not, because the device may work meanwhile.

    Args:
        operations: floating-point operations of these steps, of all devices.
        seconds: what these steps took.
        peak: operations per second of all devices.
    """
    time = sum(seconds[cause] for cause in USES_DEVICE)
    return float(f"{100 * operations / (time * peak):.4g}") if operations > 0 and time > 0 else None


@define(eq=False)
class TimeAccount:
    """What the wall time of a run goes into, from when this is created.

    Args:
        clock: tells the time.
        compiling: returns the seconds that the process has spent on compiling so far. They are taken from the cause in
            which they are found.

    Attributes:
        seconds: so far, by cause, up to the last change of the cause.
    """

    clock: Clock
    compiling: Callable[[], float] = lambda: 0.0
    seconds: dict[Cause, float] = field(factory=no_time, init=False)
    _cause: Cause = field(default=Cause.STARTING, init=False)
    _since: float = field(init=False)
    _compiled: float = field(init=False)
    _logged: dict[Cause, float] = field(factory=no_time, init=False)

    def __attrs_post_init__(self) -> None:
        self._since, self._compiled = self.clock.monotonic(), self.compiling()

    def switch(self, cause: Cause) -> Cause:
        """Count the time since the last call, and continue in another cause; return the one before.

        Args:
            cause: what the time goes into.
        """
        now, compiled = self.clock.monotonic(), self.compiling()
        spent, before = now - self._since, self._cause
        if compiled > self._compiled:
            part = min(compiled - self._compiled, spent)
            self.seconds[Cause.COMPILING] += part
            spent -= part
        self.seconds[before] += spent
        self._since, self._compiled, self._cause = now, compiled, cause
        return before

    def so_far(self) -> dict[Cause, float]:
        """Return the times up to now."""
        self.switch(self._cause)
        return dict(self.seconds)

    def since_log(self) -> dict[Cause, float]:
        """Return the times since the last call, or since the state that the run resumed from or returned to."""
        before, self._logged = self._logged, self.so_far()
        return {cause: max(seconds - before[cause], 0.0) for cause, seconds in self._logged.items()}

    # Wrapping what the loop calls

    def watch(self, events: Generator[AnyEvent, None, None]) -> Generator[AnyEvent, None, None]:
        """Yield the events of a run, or of a part of it. The time until the next one is asked for is not the loop's.

        Args:
            events: those of the run, or of a part of it.
        """
        with closing(events):
            for event in events:
                kind = type(event)
                before = self.switch(Cause.PAUSED if kind is Paused else Cause.OTHER)
                yield event
                self.switch(Cause.STEP if kind is StepBegan else before)

    def reading(self, windows: Windows[Batch]) -> Windows[Batch]:
        """Return `windows`, during which the account is in DATA. The first window belongs to the start.

        Args:
            windows: those of the run, as they are read.
        """

        def read(batches: Generator[Batch, None, None], accumulation: int) -> Generator[list[Batch], None, None]:
            with closing(windows(batches, accumulation)) as found:
                while True:
                    cause = self._cause
                    window = self.within(Cause.DATA if cause is Cause.STEP else cause, lambda: next(found, None))
                    if window is None:
                        return
                    yield window

        return read

    def during(self, cause: Cause, events: Callable[[], Iterator[AnyEvent]]) -> Generator[AnyEvent, None, Any]:
        """Yield the events of an action, during which the account is in a cause; return its result.

        Args:
            cause: what the time goes into.
            events: returns those of the action.
        """
        before = self.switch(cause)
        try:
            return (yield from events())
        finally:
            self.switch(before)

    def within(self, cause: Cause, act: Callable[[], Result]) -> Result:
        """Return the result of `act`, during which the account is in a cause.

        Args:
            cause: what the time goes into.
            act: what is done.
        """
        before = self.switch(cause)
        try:
            return act()
        finally:
            self.switch(before)

    def measure(self, run: Run[Any, Any]) -> None:
        """Wrap what the loop calls of a run that is about to start.

        Args:
            run: the run, not yet started.
        """
        evaluate, report = run.evaluate, run.report
        run.windows = self.reading(run.windows)
        run.evaluate = lambda: self.during(Cause.EVALUATING, evaluate)
        run.report = lambda values: self.within(Cause.OTHER, partial(report, values))
        run.checkpoints = MeasuredCheckpoints(run.checkpoints, self)
        run.guard.kept = MeasuredState(run.guard.kept, self)

    # The state of a run

    def settle(self, state: RunState) -> None:
        """Note in the state what the time went into up to now.

        Args:
            state: that of the run.
        """
        spent = {cause.value: seconds for cause, seconds in self.so_far().items() if seconds}
        state.time_spent = TimeSpent(spent, self.clock.wall())

    def resume(self, state: RunState) -> None:
        """Continue the account of a run that was restored from a checkpoint.

        All time since the state was settled is RESTARTING: steps that are repeated, and the way to the first new one.

        Args:
            state: that of the run.
        """
        self.switch(Cause.RESTARTING)
        lost = sum(self.seconds.values())
        if state.time_spent is not None:
            lost = max(lost, self.clock.wall() - state.time_spent.until)
        self._return_to(state.time_spent, lost)

    def repeat_from(self, state: RunState) -> None:
        """Count all time since a state was settled as RESTARTING, because the run has returned to it.

        Args:
            state: that of the run.
        """
        assert state.time_spent is not None  # `MeasuredState.keep` settled it
        self._return_to(state.time_spent, sum(self.so_far().values()) - sum(state.time_spent.seconds.values()))

    def _return_to(self, saved: TimeSpent | None, lost: float) -> None:
        known = {} if saved is None else saved.seconds
        self.seconds = {cause: known.get(cause, 0.0) for cause in Cause}
        self._logged = dict(self.seconds)
        self.seconds[Cause.RESTARTING] += max(lost, 0.0)


@define(eq=False)
class MeasuredCheckpoints:
    """Implements `hexloop.domain.run.Checkpoints` with others, whose time is that of saves.

    Args:
        checkpoints: those whose time is measured.
        account: where the time is counted.
    """

    _checkpoints: Checkpoints
    _account: TimeAccount

    @property
    def has_news(self) -> bool:
        """Whether `collect` has events to yield."""
        return self._checkpoints.has_news

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Save a checkpoint, with what the time went into until now.

        Args:
            state: that of the run.
            required: as in `Checkpoints.save`.
        """

        def save() -> Iterator[AnyEvent]:
            self._account.settle(state)
            return self._checkpoints.save(state, required)

        return self._account.during(Cause.SAVING, save)

    def collect(self) -> Iterator[AnyEvent]:
        """Yield what happened to the save in flight."""
        return self._account.during(Cause.SAVING, self._checkpoints.collect)

    def finish(self) -> Iterator[AnyEvent]:
        """Wait until every save is durable."""
        return self._account.during(Cause.SAVING, self._checkpoints.finish)

    def load_best(self, state: RunState) -> None:
        """Load the weights of the best checkpoint, after the run.

        Args:
            state: that of the run.
        """
        self._checkpoints.load_best(state)

    def close(self) -> Sequence[AnyEvent]:
        """Finish or discard the save in flight, after the run."""
        return self._checkpoints.close()


@define(eq=False)
class MeasuredState:
    """Implements `hexloop.domain.guard.KeptState` with another one: copies are saves, and returns start again.

    Args:
        kept: what keeps copies of the state.
        account: where the time is counted.
    """

    _kept: KeptState
    _account: TimeAccount

    def keep(self, state: RunState) -> None:
        """Copy the state, with what the time went into until now.

        Args:
            state: that of the run.
        """
        before = self._account.switch(Cause.SAVING)
        self._account.settle(state)
        self._kept.keep(state)
        self._account.switch(before)

    def restore(self) -> RunState:
        """Restore everything; the time since the copy was lost."""
        state = self._kept.restore()
        self._account.repeat_from(state)
        return state

    def random_state(self) -> Callable[[], None]:
        """Return a function that restores the random generators as they are now."""
        return self._kept.random_state()
