"""The meters of a run: what its time goes into, and how much of its devices its steps use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

from attrs import define, field, frozen

from hexloop.app.assembly.framework import Observer, RunCounters
from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.evaluation import UTILISATION
from hexloop.domain.events import AnyEvent, EpochBegan, Logged, TrainEnded
from hexloop.domain.goodput import TimeAccount, shares_of, utilisation
from hexloop.domain.run import Run
from hexloop.domain.state import Cause

LOGGER = logging.getLogger("hexloop")

SECONDS_BETWEEN_NOTES = 10.0
"""The journal gets the times at the first log, and at logs after at least this many seconds; and at the end."""


class NoMeter:
    """The meter of a run that is not measured. It adds nothing to a step."""

    def attach(self, run: Run[Any, Any], counters: RunCounters, resumed: bool) -> None:
        """Drop the account of earlier sessions, which this one would leave a gap in."""
        run.state.time_spent = None

    def watch(self, events: Generator[AnyEvent, None, None]) -> Generator[AnyEvent, None, None]:
        """Return the events."""
        return events

    def handlers(self) -> Observer:
        """Return no event handlers."""
        return {}


@frozen(eq=False)
class SettledTime:
    """Notes the times in the run's state whenever its counts are settled, as for each checkpoint."""

    account: TimeAccount
    run: Run[Any, Any]

    def settle(self) -> None:
        """Note them."""
        self.account.settle(self.run.state)


@define(eq=False)
class RunMeter(NoMeter):
    """Measures a run, and adds the figures to its logs, its results and its journal.

    account: from the start of this process's part of the run. peak: operations per second of all devices of the run;
    None if that is not known.
    """

    parts: TrainerParts
    account: TimeAccount
    peak: float | None = field(default=None, init=False)
    _run: Run[Any, Any] | None = field(default=None, init=False)
    _counters: RunCounters = field(factory=RunCounters, init=False)
    _start: tuple[float, dict[Cause, float]] = field(init=False)
    _logged: float = field(default=0.0, init=False)
    _noted: float | None = field(default=None, init=False)
    _warned: bool = field(default=False, init=False)

    def attach(self, run: Run[Any, Any], counters: RunCounters, resumed: bool) -> None:
        """Measure a run that is about to start. resumed: it was restored from a checkpoint."""
        self._run, self._counters = run, counters
        counters.pending = [*counters.pending, SettledTime(self.account, run)]
        if resumed:
            self.account.resume(run.state)
        self._logged = run.state.operations
        self._start = run.state.operations, dict(self.account.seconds)
        self.account.measure(run)
        further = run.further_figures
        run.log_figures = self._figures_of_log
        run.further_figures = lambda: {**further(), **self._figures_of_run()}
        own = self.parts.adapters.framework.peak_flops(self.parts, self.parts.args.peak_flops)
        if own is None:
            self._warn(
                f"the operations per second that {self.parts.adapters.device.name} does at most in "
                f"{self.parts.adapters.precision.name} are not known; set peak_flops to those of one device"
            )
        else:
            self.peak = own * self.parts.adapters.mesh.size

    def watch(self, events: Generator[AnyEvent, None, None]) -> Generator[AnyEvent, None, None]:
        """Yield the events of a run; see `TimeAccount.watch`."""
        return self.account.watch(events)

    def handlers(self) -> Observer:
        """Return the event handlers that note the times in the journal."""
        return {EpochBegan: self._on_epoch, Logged: self._on_log, TrainEnded: self._note}

    def _figures_of_log(self) -> dict[str, float]:
        """Return the figures since the last log."""
        operations, passed = self._operations(), self.account.since_log()
        done, self._logged = operations - self._logged, operations
        return shares_of(passed) | self._utilisation(UTILISATION, done, passed)

    def _figures_of_run(self) -> dict[str, float]:
        """Return the shares of the whole run, and the utilisation since this process started."""
        operations, seconds = self._operations(), self.account.so_far()
        earlier, start = self._start
        here = {cause: max(each - start[cause], 0.0) for cause, each in seconds.items()}
        shares = {f"train_{name}": share for name, share in shares_of(seconds).items()}
        return shares | self._utilisation(f"train_{UTILISATION}", operations - earlier, here)

    def _operations(self) -> float:
        self._counters.settle()
        return 0.0 if self._run is None else self._run.state.operations

    def _utilisation(self, name: str, operations: float, seconds: dict[Cause, float]) -> dict[str, float]:
        if self.peak is None:
            return {}
        figure = utilisation(operations, seconds, self.peak)
        if operations == 0 and seconds[Cause.STEP] > 0:
            model = type(self.parts.unwrapped_model).__name__
            self._warn(f"the operations of {model} are not counted; give it a method floating_point_ops(batch)")
        return {} if figure is None else {name: figure}

    def _warn(self, reason: str) -> None:
        if not self._warned and self.parts.args.should_log:
            LOGGER.warning("log_goodput=True logs no model FLOP utilisation (mfu): %s.", reason)
        self._warned = True

    def _on_epoch(self, event: EpochBegan) -> None:
        """Forget operations that are given up, if the run has returned to a state before the last log."""
        assert self._run is not None
        self._logged = min(self._logged, self._run.state.operations)

    def _on_log(self, event: Logged) -> None:
        now = self.account.clock.monotonic()
        if self._noted is None or now - self._noted >= SECONDS_BETWEEN_NOTES:
            self._noted = now
            self._note(event)

    def _note(self, event: Logged | TrainEnded) -> None:
        seconds = {cause.value: round(each, 6) for cause, each in self.account.so_far().items()}
        self.parts.adapters.journal.note("goodput", step=event.step, seconds=seconds)


def meter_for(parts: TrainerParts, cleanups: ExitStack) -> NoMeter:
    """Return what measures a run that is about to be constructed. cleanups: gets what ends that."""
    if not parts.args.log_goodput:
        return NoMeter()
    adapters = parts.adapters
    compiling: Callable[[], float] = cleanups.enter_context(
        adapters.framework.compiling(adapters.device, adapters.clock)
    )
    return RunMeter(parts, TimeAccount(adapters.clock, compiling))
