"""What the time of a run goes into: every second has one cause, whatever happens in whichever order."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.background import ThreadBackground
from hexloop.adapters.losses import PlainWindowValues
from hexloop.domain.evaluation import is_reading
from hexloop.domain.events import AnyEvent, CheckpointPublished, Paused, StepBegan, StepEnded, TrainBegan
from hexloop.domain.goodput import TimeAccount, no_time, shares_of, utilisation
from hexloop.domain.guard import Guard, GuardOptions, Reaction
from hexloop.domain.kept_state import StateInMemory
from hexloop.domain.loop import StandardLearner, train
from hexloop.domain.run import Checkpoints, Evaluation
from hexloop.domain.state import Cause, RunState, TimeSpent
from hexloop.ports.state import Exportable
from hexloop.testing import (
    InMemoryBatches,
    InMemorySnapshots,
    ManualClock,
    MemoryStorage,
    PlainPrecision,
    SingleProcess,
)
from tests.examples import examples
from tests.unit.checkpoints.gated_storage import GatedStorage
from tests.unit.loop.small import ROWS, Small, evaluate_small, every, make_small, resume

SECONDS = st.integers(0, 5).map(float)
"""Whole seconds, whose sums have no rounding."""


@define
class Clockwork:
    """A run in which everything takes the time that is given, and what the time of each cause should be.

    costs: seconds of each cause each time that it occurs. base: the cause of what precedes the first step.
    """

    clock: ManualClock
    costs: dict[Cause, float]
    base: Cause = Cause.STARTING
    expected: dict[Cause, float] = field(factory=no_time)
    compiled: float = 0.0
    stepped: bool = False

    def spend(self, cause: Cause) -> None:
        """Let the time pass that a cause takes."""
        seconds = self.costs.get(cause, 0.0)
        self.clock.advance(seconds)
        if cause is Cause.COMPILING:
            self.compiled += seconds
        if cause is Cause.DATA and not self.stepped:
            cause = self.base
        self.expected[cause] += seconds


class SlowBatches(InMemoryBatches[Any]):
    """Data for which the run waits."""

    works: Clockwork

    def epoch(self, epoch: int, position: int) -> Generator[list[Any], None, None]:
        for batch in super().epoch(epoch, position):
            self.works.spend(Cause.DATA)
            yield batch


@define
class SlowSaves:
    """Checkpoints for which the run waits."""

    store: Checkpoints
    works: Clockwork

    @property
    def has_news(self) -> bool:
        return self.store.has_news

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        self.works.spend(Cause.SAVING)
        return self._slowly(self.store.save(state, required))

    def collect(self) -> Iterator[AnyEvent]:
        return self._slowly(self.store.collect())

    def finish(self) -> Iterator[AnyEvent]:
        self.works.spend(Cause.SAVING)
        return self._slowly(self.store.finish())

    def load_best(self, state: RunState) -> None:
        self.store.load_best(state)

    def close(self) -> Any:
        return self.store.close()

    def _slowly(self, events: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
        for event in events:
            self.works.spend(Cause.SAVING)
            yield event


@define
class Measured:
    """A small run whose time is measured."""

    small: Small
    account: TimeAccount
    works: Clockwork

    def events(self) -> Generator[AnyEvent, None, None]:
        """Yield the events; what receives them takes its time."""
        with closing(self.account.watch(train(self.small.run))) as events:
            for event in events:
                self.works.stepped |= isinstance(event, StepBegan)
                self.works.spend(Cause.PAUSED if isinstance(event, Paused) else Cause.OTHER)
                yield event


def measured(costs: dict[Cause, float], clock: ManualClock | None = None, **parts: Any) -> Measured:
    """Return a run that takes the given times. `parts` are those of a small run."""
    clock = ManualClock(1e9) if clock is None else clock
    works = Clockwork(clock, costs)

    class Slow(StandardLearner[Any, Any]):
        def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Any:
            works.spend(Cause.STEP)
            works.spend(Cause.COMPILING)
            return super().micro_step(batch, window_items, last_of_window)

    batches = SlowBatches(parts.pop("rows", ROWS), parts.pop("batch_size", 2))
    batches.works = works
    made = make_small(
        batches=batches, learner=lambda trainable: Slow(trainable, PlainPrecision(), SingleProcess()), **parts
    )
    account = TimeAccount(clock, lambda: works.compiled)
    report = made.run.report

    def evaluate() -> Evaluation:
        works.spend(Cause.EVALUATING)
        return (yield from evaluate_small(made))

    def report_slowly(values: dict[str, float]) -> None:
        works.spend(Cause.OTHER)
        report(values)

    made.run.evaluate, made.run.report = evaluate, report_slowly
    made.run.checkpoints = SlowSaves(made.store, works)
    return Measured(made, account, works)


COSTS = st.dictionaries(
    st.sampled_from([cause for cause in Cause if cause not in (Cause.STARTING, Cause.RESTARTING)]), SECONDS
)
TRIGGERS = st.builds(every, st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
SIZES = st.fixed_dictionaries(
    {"batch_size": st.integers(1, 5), "accumulation": st.integers(1, 3), "epochs": st.sampled_from([1, 1.7, 2])}
)


@settings(deadline=None, max_examples=examples(150))
@given(COSTS, TRIGGERS, SIZES, st.booleans())
def test_every_second_is_counted_for_its_cause(
    costs: dict[Cause, float], triggers: Any, sizes: dict[str, Any], evaluates_first: bool
) -> None:
    """Also where actions yield events, whose receivers take time of their own."""
    run = measured(costs, triggers=triggers, evaluate_first=evaluates_first, **sizes)
    run.account.measure(run.small.run)
    for _ in run.events():
        pass
    assert run.account.so_far() == run.works.expected
    assert sum(run.account.seconds.values()) == run.works.clock.monotonic()


@settings(deadline=None, max_examples=examples(150))
@given(COSTS, TRIGGERS, SIZES, SECONDS, st.data())
def test_an_interruption_counts_as_restarting(
    costs: dict[Cause, float], triggers: Any, sizes: dict[str, Any], gap: float, data: st.DataObject
) -> None:
    """From the moment that the checkpoint knows to the first step after it, less what is evaluated and saved before."""
    parts: dict[str, Any] = {"triggers": triggers, **sizes, "storage": MemoryStorage()}
    first = measured(costs, **parts)
    first.account.measure(first.small.run)
    stop_after, request = data.draw(st.integers(0, 60)), None
    for number, _ in enumerate(first.events()):
        if number == stop_after:
            request = first.small.run.requests.request_save()
        if request is not None and request.done:
            break
    if request is None or not parts["storage"].list(""):
        return
    clock = ManualClock(first.works.clock.wall() + gap)
    second = measured(costs, clock, **parts)
    resume(second.small)
    saved = second.small.run.state.time_spent
    assert saved is not None
    second.works.base = Cause.RESTARTING
    second.account.resume(second.small.run.state)
    second.account.measure(second.small.run)
    for _ in second.events():
        pass
    expected = {cause: saved.seconds.get(cause.value, 0.0) + second.works.expected[cause] for cause in Cause}
    expected[Cause.RESTARTING] += clock._start - saved.until
    assert second.account.so_far() == expected
    assert sum(expected.values()) == clock.wall() - 1e9
    assert sum(shares_of(second.account.seconds).values()) == pytest.approx(100 if clock.wall() > 1e9 else 0, abs=0.1)


def test_a_killed_run_repeats_steps() -> None:
    """The steps after the checkpoint are not counted twice: their first time was lost."""
    costs = {Cause.STEP: 1.0}
    storage, clock = MemoryStorage(), ManualClock(1e9)
    first = measured(costs, clock, triggers=every(save=3), epochs=1, storage=storage)
    first.account.measure(first.small.run)
    for event in first.events():
        if isinstance(event, StepEnded) and event.step == 5:
            break
    assert first.account.so_far()[Cause.STEP] == 5
    clock.advance(10)
    second = measured(costs, clock, triggers=every(save=3), epochs=1, storage=storage)
    resume(second.small)
    second.account.resume(second.small.run.state)
    second.account.measure(second.small.run)
    for _ in second.events():
        pass
    seconds = second.account.so_far()
    assert (seconds[Cause.STEP], seconds[Cause.RESTARTING]) == (8, 12)
    assert sum(seconds.values()) == clock.monotonic()


@settings(deadline=None, max_examples=examples(60))
@given(COSTS, st.sets(st.integers(0, 10), max_size=3), st.sampled_from([Reaction.SKIP, Reaction.ROLLBACK]), TRIGGERS)
def test_what_a_run_returns_from_counts_as_restarting(
    costs: dict[Cause, float], bad: set[int], reaction: Reaction, triggers: Any
) -> None:
    """The time of steps that are given up is lost, and all time is counted."""
    rows = [(row[0], math.nan) if number // 2 in bad else row for number, row in enumerate(ROWS * 2)]
    run = measured(costs, rows=rows, triggers=triggers, max_steps=6)
    small = run.small
    kept: dict[str, Exportable] = {
        "model": small.trainable.model,
        "optimizer": small.trainable.optimizer,
        "losses": small.run.losses,
    }
    kept["scheduler"] = small.run.scheduler
    small.run.guard = Guard(GuardOptions(reaction), PlainWindowValues(), StateInMemory(kept, InMemorySnapshots()))
    run.account.measure(small.run)
    for _ in run.events():
        pass
    seconds = run.account.so_far()
    assert sum(seconds.values()) == run.works.clock.monotonic()
    assert sum(run.works.expected.values()) == run.works.clock.monotonic()
    lost = small.run.state.skipped
    assert (seconds[Cause.RESTARTING] > 0) <= bool(lost)
    if lost and costs.get(Cause.STEP):
        assert seconds[Cause.RESTARTING] > 0
        assert seconds[Cause.STEP] <= costs[Cause.STEP] * 6


def test_a_run_without_a_copy_keeps_its_random_state() -> None:
    """What a guard asks of the copy besides is passed on."""
    run = measured({})
    run.account.measure(run.small.run)
    run.small.run.guard.kept.random_state()()
    assert not run.small.run.checkpoints.close()


def test_reporting_a_save_in_flight_is_part_of_saving() -> None:
    """Where a save ends in the background, what the run takes to report it at a later step is not that step's."""
    run = measured({Cause.SAVING: 2.0, Cause.STEP: 1.0}, triggers=every(save=3), max_steps=4)
    store, storage = run.small.store, GatedStorage()
    store.storage, store.background = storage, ThreadBackground()
    run.account.measure(run.small.run)
    before, after, reported_at = no_time(), no_time(), 0
    for event in run.events():
        if isinstance(event, StepEnded) and event.step == 4:
            storage.gate.set()
            while not store.has_news:
                time.sleep(0.001)
            before = run.account.so_far()
        elif isinstance(event, CheckpointPublished) and event.step == 3:
            reported_at, after = run.small.run.state.step, run.account.so_far()
    assert reported_at == 4
    assert after == {**before, Cause.SAVING: before[Cause.SAVING] + 2}
    assert run.account.so_far() == run.works.expected


def test_a_pause_has_a_cause_of_its_own() -> None:
    """A run that is paused for an hour did not spend it on callbacks."""
    run = measured({Cause.PAUSED: 3600.0}, epochs=1)
    run.account.measure(run.small.run)
    requests = run.small.run.requests
    for event in run.events():
        if isinstance(event, StepEnded) and event.step == 2:
            requests.pause()
        elif isinstance(event, Paused):
            requests.resume()
    assert run.account.so_far() == {**no_time(), Cause.PAUSED: 3600.0}


@given(
    st.lists(st.tuples(st.sampled_from([each for each in Cause if each is not Cause.COMPILING]), SECONDS, SECONDS)),
    st.lists(st.integers(0, 20), max_size=5),
)
def test_any_sequence_of_causes_adds_up(changes: list[tuple[Cause, float, float]], logs: list[int]) -> None:
    """To the time that passed, in all and between logs, with at most that much compiling; shares add up to 100 %."""
    clock, compiled = ManualClock(), [0.0]
    account, between = TimeAccount(clock, lambda: compiled[0]), 0.0
    for number, (cause, seconds, compiling) in enumerate(changes):
        account.switch(cause)
        clock.advance(seconds)
        compiled[0] += compiling
        if number in logs:
            passed = account.since_log()
            assert all(part >= 0 for part in passed.values())
            between += sum(passed.values())
    so_far = account.so_far()
    assert sum(so_far.values()) == clock.monotonic() == between + sum(account.since_log().values())
    assert so_far[Cause.COMPILING] <= min(clock.monotonic(), compiled[0])
    shares = shares_of(so_far)
    assert sum(shares.values()) == pytest.approx(100 if clock.monotonic() else 0, abs=0.1)
    assert all(map(is_reading, shares))


def test_compiling_is_taken_from_where_it_is_found() -> None:
    """Of a step of ten seconds in which the process compiled for eight, two are the step's."""
    clock, compiled = ManualClock(), [3.0]
    account = TimeAccount(clock, lambda: compiled[0])
    account.switch(Cause.STEP)
    clock.advance(10)
    compiled[0] = 11.0
    assert account.so_far() == {**no_time(), Cause.STEP: 2, Cause.COMPILING: 8}


def test_a_resumed_run_without_an_account_starts_one() -> None:
    """Its restart is all that is known of the time before; a clock that is behind changes nothing."""
    clock = ManualClock(500.0)
    account = TimeAccount(clock)
    clock.advance(4)
    account.resume(RunState(step=3))
    assert account.so_far() == {**no_time(), Cause.RESTARTING: 4}
    account.resume(RunState(step=3, time_spent=TimeSpent({"step": 7.0}, 1e6)))
    assert account.so_far() == {**no_time(), Cause.STEP: 7, Cause.RESTARTING: 4}


def test_utilisation_is_that_of_the_time_between_waits() -> None:
    """2e12 operations in four seconds are half of what a device of 1e12 per second could do."""
    seconds = {**no_time(), Cause.STEP: 1.0, Cause.DATA: 2.0, Cause.OTHER: 1.0, Cause.EVALUATING: 50.0}
    assert utilisation(2e12, seconds, 1e12) == 50
    assert utilisation(0.0, seconds, 1e12) is None
    assert utilisation(2e12, no_time(), 1e12) is None
    assert shares_of(no_time()) == {}


class Counting(ManualClock):
    """A clock that counts its readings."""

    readings = 0

    def monotonic(self) -> float:
        self.readings += 1
        return super().monotonic()


def test_a_step_costs_six_readings_of_the_clock() -> None:
    """Before and after each of two events and of the data. Without an account there is none."""

    def readings(epochs: int, measures: bool) -> int:
        run = measured({}, clock := Counting(), epochs=epochs)
        run.small.run.clock = clock
        if measures:
            run.account.measure(run.small.run)
        for event in run.account.watch(train(run.small.run)) if measures else train(run.small.run):
            if isinstance(event, TrainBegan):
                clock.readings = 0
        return clock.readings

    steps = len(ROWS) // 2
    per_epoch = 2 * 3  # EpochBegan, EpochEnded, and the end of the data
    assert readings(5, True) - readings(1, True) == 4 * (6 * steps + per_epoch)
    assert readings(5, False) == readings(1, False)
