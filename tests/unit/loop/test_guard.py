"""A run finds losses that are not finite, and loss spikes, and continues as if the data lacked these windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.collectives.simulated import SimulatedWorld
from hexloop.adapters.losses import PlainLosses, PlainWindowValues
from hexloop.domain.errors import NotFiniteError
from hexloop.domain.events import AnyEvent, IrregularWindow, StepEnded
from hexloop.domain.guard import KEPT_EVERY, READ_AFTER, Guard, GuardOptions, Reaction, WindowPlace
from hexloop.domain.json_documents import json_part, only_value
from hexloop.domain.kept_state import StateInMemory
from hexloop.domain.loop import train
from hexloop.domain.ranks import SharedLosses, SharedWindowValues
from hexloop.domain.requests import make_agreement
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives
from hexloop.ports.state import Exportable
from hexloop.testing import InMemoryBatches, InMemorySnapshots
from tests.examples import examples
from tests.unit.loop.small import ROWS, Small, every, make_small, resume

LEAVES_OUT = [Reaction.SKIP, Reaction.ROLLBACK]
BAD = (math.nan, math.inf, -math.inf)
CLOCK = ("runtime", "second")
STEPS = 12


def with_bad(rows: Sequence[Any], window: int, bad: dict[int, float]) -> list[Any]:
    """Return the rows with a target that is not finite in each bad window of `window` rows."""
    found = list(rows)
    for number, value in bad.items():
        at = number * window + number % window
        found[at] = (found[at][0], value)
    return found


def without(rows: Sequence[Any], window: int, bad: Sequence[int]) -> list[Any]:
    """Return the rows that are in no bad window."""
    return [row for at, row in enumerate(rows) if at // window not in bad]


def guarded(
    rows: Sequence[Any], options: GuardOptions, values: Any = None, losses: Any = None, random: Any = None, **parts: Any
) -> Small:
    """Return a small run with a guard."""
    small = make_small(rows=rows, **parts)
    if losses is not None:
        small.run.losses = losses
    run, trainable = small.run, small.trainable
    exportables: dict[str, Exportable] = {
        "model": trainable.model, "optimizer": trainable.optimizer, "losses": run.losses, "scheduler": run.scheduler,
    }  # fmt: skip
    if random is not None:
        exportables["random"] = random
    kept = StateInMemory(exportables, InMemorySnapshots(), random)
    run.guard = Guard(options, PlainWindowValues() if values is None else values, kept)
    return small


def outcome(small: Small) -> tuple[Any, ...]:
    """Return what is equal in a run that leaves windows out, and one whose data lacks them."""
    state = small.run.state
    logs = [{k: v for k, v in log.items() if not k.endswith(CLOCK)} for log in state.history]
    return small.parameters, logs, state.step, state.updates, state.samples, state.loss_total, state.learning_rate


SIZES = st.fixed_dictionaries({"batch_size": st.integers(1, 3), "accumulation": st.integers(1, 3)})
PLANTED = st.dictionaries(st.integers(0, 15), st.sampled_from(BAD), max_size=8)
INTERVALS = st.builds(every, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))


def planted(sizes: dict[str, int], bad: dict[int, float]) -> tuple[list[Any], list[Any], dict[int, float]]:
    """Return rows with bad windows, the same rows without them, and the bad ones among the windows of the data."""
    window, rows = sizes["batch_size"] * sizes["accumulation"], ROWS * 3
    bad = {number: value for number, value in bad.items() if number < len(rows) // window - 1}
    return with_bad(rows, window, bad), without(rows, window, [*bad]), bad


@settings(deadline=None, max_examples=examples(150))
@given(SIZES, PLANTED, INTERVALS, st.sampled_from(LEAVES_OUT))
def test_the_result_is_that_of_data_without_the_windows(
    sizes: dict[str, int], bad: dict[int, float], triggers: Any, reaction: Reaction
) -> None:
    """Weights, logs and counts are those of a run whose data lacks the windows, wherever losses are read."""
    rows, rest, bad = planted(sizes, bad)
    small = guarded(rows, GuardOptions(reaction, limit=100), triggers=triggers, max_steps=STEPS, **sizes)
    events = small.events()
    other = guarded(rest, GuardOptions(), triggers=triggers, max_steps=STEPS, **sizes)
    other.events()
    assert outcome(small) == outcome(other)
    reported = [event for event in events if isinstance(event, IrregularWindow)]
    window = sizes["batch_size"] * sizes["accumulation"]
    assert {event.position // window for event in reported} <= set(bad)
    assert all(event.reaction == reaction.value and event.back_to is not None for event in reported)


@settings(deadline=None, max_examples=examples(100))
@given(SIZES, PLANTED, INTERVALS, st.sampled_from(LEAVES_OUT), st.data())
def test_a_resumed_run_leaves_out_the_same_windows(
    sizes: dict[str, int], bad: dict[int, float], triggers: Any, reaction: Reaction, data: st.DataObject
) -> None:
    """At whichever event the run is saved and ended, the resumed run ends as the whole one."""
    rows, rest, _ = planted(sizes, bad)
    whole = guarded(rest, GuardOptions(), triggers=triggers, max_steps=STEPS, **sizes)
    whole.events()
    given_ = {"triggers": triggers, "max_steps": STEPS, **sizes}
    broken = guarded(rows, GuardOptions(reaction, limit=100), **given_)
    stop_after, request = data.draw(st.integers(0, 60)), None
    for number, _ in enumerate(train(broken.run)):
        if number == stop_after:
            request = broken.run.requests.request_save()
        if request is not None and request.done:
            break
    if not broken.storage.list(""):
        return
    resumed = guarded(rows, GuardOptions(reaction, limit=100), storage=broken.storage, **given_)
    resume(resumed)
    resumed.events()
    assert outcome(resumed) == outcome(whole)


class CountedDraws:
    """A random generator that is drawn from whenever a row is read, and at each step."""

    def __init__(self) -> None:
        self.drawn = 0

    def export(self) -> Any:
        yield json_part("drawn", self.drawn)

    def load(self, parts: Any) -> None:
        self.drawn = only_value(parts, "drawn")


def test_a_window_that_is_left_out_draws_nothing() -> None:
    """The random state after it is that from before it was read, also where a resumed run reads it again."""

    class Drawing(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            generator.drawn += not isinstance(index, slice)
            return super().__getitem__(index)

    def draws(rows: list[Any], reaction: Reaction) -> list[int]:
        generator.drawn = 0
        order = lambda _: range(len(rows))  # noqa: E731 - so that rows are read in each epoch
        batches = InMemoryBatches(Drawing(rows), 2, order)
        small = guarded(rows, GuardOptions(reaction), random=generator, batches=batches, triggers=every(log=2, save=3))
        for event in train(small.run):
            if isinstance(event, StepEnded):
                seen[event.step] = generator.drawn
        return [seen[step] for step in range(1, small.run.state.step + 1)]

    seen: dict[int, int] = {}
    generator = CountedDraws()
    bad = [2, 5]
    left_out = draws(with_bad(ROWS, 2, dict.fromkeys(bad, math.nan)), Reaction.SKIP)
    assert left_out == draws(without(ROWS, 2, bad), Reaction.WARN)


def irregular(events: Sequence[AnyEvent]) -> list[tuple[str, int, int]]:
    """Return the kind, step and first sample of what was reported."""
    return [(each.kind, each.step, each.position) for each in events if isinstance(each, IrregularWindow)]


def test_a_warning_names_the_first_window_only() -> None:
    """The log has the mean of the finite losses and their number, NaN if there are none; so has the end of the run."""
    small = guarded(with_bad(ROWS, 2, {2: math.nan}), GuardOptions(), triggers=every(log=4), epochs=1)
    (reported,) = [event for event in small.events() if isinstance(event, IrregularWindow)]
    assert (reported.kind, reported.step, reported.position, reported.samples) == ("loss", 3, 4, 2)
    assert reported.described == "At step 3 the loss is nan (samples 4 to 5 of epoch 0)"
    first, second, end = small.logs
    plain = make_small(rows=ROWS, triggers=every(log=2), epochs=1)
    plain.events()
    assert first["loss"] == plain.logs[0]["loss"]  # of the two steps before it
    assert first["nonfinite_steps"] == 2
    assert math.isnan(second["loss"])
    assert second["nonfinite_steps"] == 4
    assert math.isnan(end["train_loss"])
    assert end["train_nonfinite_steps"] == 6


@pytest.mark.parametrize("options", [GuardOptions(filters=False), GuardOptions(counts=False)])
def test_a_log_without_the_filter_has_the_sum_as_it_is(options: GuardOptions) -> None:
    """The loss is then NaN, and nothing was filtered that could be counted."""
    small = guarded(with_bad(ROWS, 2, {2: math.nan}), options, triggers=every(log=4), epochs=1)
    small.events()
    assert math.isnan(small.logs[0]["loss"])
    assert not any("nonfinite_steps" in log for log in small.logs[:-1])


def test_a_resumed_run_does_not_warn_again_and_logs_the_same() -> None:
    """What was read at the save between two logs is not lost."""
    given_: dict[str, Any] = {"triggers": every(log=4, save=3), "epochs": 1}
    rows = with_bad(ROWS, 2, {1: math.inf})
    whole = guarded(rows, GuardOptions(), **given_)
    assert irregular(whole.events()) == [("loss", 2, 2)]
    resumed = guarded(rows, GuardOptions(), storage=whole.storage, **given_)
    resume(resumed, "checkpoint-3")
    assert irregular(resumed.events()) == []
    assert [str(log) for log in resumed.run.state.history] == [str(log) for log in whole.run.state.history]


def test_stop_raises_and_saves_nothing_after_the_window() -> None:
    """The error has the step and the samples, and no checkpoint holds what followed."""
    small = guarded(with_bad(ROWS, 2, {4: math.nan}), GuardOptions(Reaction.STOP), triggers=every(save=3))
    with pytest.raises(NotFiniteError, match=r"At step 5 the loss is nan \(samples 8 to 9 of epoch 0\)"):
        small.events()
    assert [entry.name for entry in small.storage.list("")] == ["checkpoint-3"]


class Norms:
    """Values of windows with chosen gradient norms."""

    def __init__(self, norms: dict[int, float]) -> None:
        self.own, self.norms, self.step = PlainWindowValues(), norms, 0

    def add(self, shares: Any, gradient_norm: Any) -> None:
        self.own.add(shares, self.norms.get(self.step, gradient_norm))
        self.step += 1

    def drain(self) -> Any:
        return self.own.drain()


def test_a_gradient_norm_counts_as_a_loss_does() -> None:
    """The window is reported, and left out."""
    small = guarded(ROWS, GuardOptions(Reaction.SKIP), values=Norms({3: math.inf}), triggers=every(log=2))
    assert irregular(small.events()) == [("gradient norm", 4, 6)]
    assert [each.position for each in small.run.state.skipped] == [6]
    warned = guarded(ROWS, GuardOptions(), values=Norms({3: math.nan, 5: math.nan}), triggers=every(log=2))
    (event,) = [each for each in warned.events() if isinstance(each, IrregularWindow)]
    assert event.described == "At step 4 the gradient norm is nan (samples 6 to 7 of epoch 0)"
    assert warned.run.state.nonfinite_norms == 2


def spiky(at: int) -> list[Any]:
    """Return rows whose target is far off at one place."""
    rows = ROWS * 4
    return [(features, 1e4 if number == at else target) for number, (features, target) in enumerate(rows)]


@pytest.mark.parametrize("reaction", LEAVES_OUT)
def test_a_spike_is_left_out(reaction: Reaction) -> None:
    """It is judged by the median of the recent losses, once there are enough of them."""
    options = GuardOptions(spike_factor=100.0, on_spike=reaction)
    small = guarded(spiky(40), options, batch_size=1, triggers=every(log=5), max_steps=60)
    (event,) = [each for each in small.events() if isinstance(each, IrregularWindow)]
    assert (event.kind, event.position) == ("spike", 40)
    assert "against a median of" in event.described
    other = guarded(without(spiky(40), 1, [40]), GuardOptions(), batch_size=1, triggers=every(log=5), max_steps=60)
    other.events()
    assert outcome(small) == outcome(other)
    early = guarded(spiky(5), options, batch_size=1, triggers=every(log=5), max_steps=12)
    assert irregular(early.events()) == []


def test_a_spike_is_warned_of_once() -> None:
    """All of them are counted."""
    rows = [(features, 1e6 if number in (40, 50) else target) for number, (features, target) in enumerate(ROWS * 4)]
    small = guarded(rows, GuardOptions(spike_factor=1000.0), batch_size=1, triggers=every(log=5), max_steps=60)
    assert irregular(small.events()) == [("spike", 41, 40)]
    assert small.run.state.spikes >= 1


def test_too_many_windows_in_a_row_end_the_run() -> None:
    """The error says that it is not the data of single windows."""
    rows = with_bad(ROWS, 2, dict.fromkeys(range(2, 6), math.nan))
    small = guarded(rows, GuardOptions(Reaction.ROLLBACK), triggers=every(log=1))
    with pytest.raises(NotFiniteError, match="after 3 windows in a row"):
        small.events()
    apart = with_bad(ROWS, 2, dict.fromkeys((0, 2, 3, 5, 6), math.nan))
    assert guarded(apart, GuardOptions(Reaction.ROLLBACK), triggers=every(log=1)).events()
    assert guarded(rows, GuardOptions(Reaction.SKIP), triggers=every(log=1)).events()
    assert GuardOptions(limit=0).most_in_a_row(Reaction.SKIP) == 0


def test_a_requested_save_waits_for_the_return() -> None:
    """A save or a stop that is requested after such a window is applied once the run has returned."""
    small = guarded(with_bad(ROWS, 2, {2: math.nan}), GuardOptions(Reaction.SKIP))
    for event in train(small.run):
        if isinstance(event, StepEnded) and event.step == 3 and not small.run.state.skipped:
            small.run.requests.request_stop("enough", save=True)
    (name,) = [entry.name for entry in small.storage.list("")]
    assert all(map(math.isfinite, small.parameters))
    assert name == "checkpoint-1"
    assert small.run.stopped


def test_a_stop_without_a_save_reports_the_window() -> None:
    """Nothing is left to return for."""
    small = guarded(with_bad(ROWS, 2, {0: math.nan}), GuardOptions(Reaction.SKIP))
    events = []
    for event in train(small.run):
        events.append(event)
        if isinstance(event, StepEnded) and event.step == 2:
            small.run.requests.request_stop()
    assert irregular(events) == [("loss", 1, 0)]


def test_values_are_read_even_if_nothing_is_logged() -> None:
    """So that a run without logs and saves does not collect them without end."""

    class Counted(PlainWindowValues):
        def drain(self) -> Any:
            found = super().drain()
            reads.append(len(found))
            return found

    reads: list[int] = []
    small = guarded(ROWS, GuardOptions(), values=Counted(), max_steps=2 * READ_AFTER + 5)
    small.events()
    assert reads == [READ_AFTER, READ_AFTER, 5]


class Copies:
    """A kept state that notes when it is copied."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def keep(self, state: RunState) -> None:
        self.steps.append(state.step)

    def restore(self) -> RunState:
        raise AssertionError

    def random_state(self) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("reaction", "steps"),
    [
        (Reaction.WARN, []),
        (Reaction.STOP, []),
        (Reaction.ROLLBACK, [0, 150, 300]),
        (Reaction.SKIP, [0, KEPT_EVERY, 150, 250, 300]),
    ],
)
def test_when_the_state_is_copied(reaction: Reaction, steps: list[int]) -> None:
    """At the start and at saves, with SKIP also at logs that are some steps apart; never if nothing is left out."""
    small = guarded(ROWS, GuardOptions(reaction), triggers=every(log=10, save=150), max_steps=310)
    small.run.guard.kept = copies = Copies()
    small.events()
    assert copies.steps == steps


def test_a_run_that_no_longer_leaves_out_keeps_to_its_list() -> None:
    """A run that is resumed with a warning only still leaves out the windows that its checkpoint lists."""
    rows = with_bad(ROWS, 2, {5: math.nan})
    first = guarded(rows, GuardOptions(Reaction.SKIP), triggers=every(log=8, save=4), epochs=1)
    for event in train(first.run):
        if isinstance(event, StepEnded) and event.step == 5 and first.run.state.skipped:
            first.run.requests.request_stop(save=True)
    resumed = guarded(rows, GuardOptions(), storage=first.storage, triggers=every(log=1), epochs=1)
    resume(resumed)
    assert irregular(resumed.events()) == []
    assert all(map(math.isfinite, resumed.parameters))


@settings(deadline=None, max_examples=examples(20))
@given(st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 2), st.sampled_from(BAD)), max_size=4))
def test_what_one_rank_finds_all_ranks_leave_out(bad: dict[int, tuple[int, float]]) -> None:
    """Every rank trains the same steps, although the value that is not finite is only in one rank's share."""

    def run_rank(rank: Collectives) -> Any:
        own = {number: value for number, (at, value) in bad.items() if at == rank.rank}
        small = guarded(
            with_bad(ROWS, 2, own),
            GuardOptions(Reaction.SKIP, limit=100),
            values=SharedWindowValues(PlainWindowValues(), rank),
            losses=SharedLosses(PlainLosses(), rank),
            triggers=every(log=3),
            epochs=1,
        )
        small.run.agreement = make_agreement(small.run.requests, rank)
        events = small.events()
        return small.parameters, [each.position for each in small.run.state.skipped], irregular(events)

    for parameters, positions, _ in SimulatedWorld(3).run(run_rank):
        assert all(map(math.isfinite, parameters))
        assert sorted(positions) == [2 * number for number in sorted(bad)]


def test_shared_values_are_sums_of_losses_and_the_norm() -> None:
    """A norm that was not measured stays so, and nothing is exchanged if there are no windows."""

    def add_and_drain(rank: Collectives) -> Any:
        values = SharedWindowValues(PlainWindowValues(), rank)
        first = list(values.drain())
        values.add([1.0 + rank.rank, 2.0], 0.5)
        values.add([math.inf if rank.rank else 0.0], None)
        return [first, list(values.drain()), list(values.drain())]

    assert SimulatedWorld(2).run(add_and_drain) == [[[], [(7.0, 0.5), (math.inf, None)], []]] * 2


def test_a_guard_that_never_checks() -> None:
    """A run without a guard of its own reads nothing, and has nothing to return to."""
    guard: Guard[float] = Guard()
    guard.values.add([1.0], None)
    assert guard.values.drain() == ()
    assert list(guard.check(RunState())) == []
    assert guard.indices_of(WindowPlace(0, 0, 1)) is None
    guard.kept.keep(RunState())
    guard.kept.random_state()()
    with pytest.raises(NotImplementedError):
        guard.kept.restore()
    StateInMemory({}, InMemorySnapshots()).random_state()()
