"""A run of several processes saves and resumes as one, whichever of them fails."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain, product, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.background import ThreadBackground
from hexloop.adapters.collectives.simulated import Kill, RankKilled, SimulatedWorld
from hexloop.adapters.storage.faults import Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import Owner
from hexloop.domain.checkpoints.pace import Pacer
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import (
    CheckpointError,
    CollectiveError,
    StorageError,
    StorageFullError,
    UnreadableCheckpointError,
)
from hexloop.domain.events import AnyEvent, CheckpointPublished, Saved, SaveFailed, SaveWaits
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.domain.requests import Requests, make_agreement
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives
from hexloop.ports.storage import File, OpenFile, Publication, Storage
from tests.examples import examples
from tests.unit.checkpoints.gated_storage import PATIENCE
from tests.unit.checkpoints.small_contents import SmallContents
from tests.unit.checkpoints.small_store import checkpoint_names, names, tree

pytestmark = pytest.mark.filterwarnings("ignore:.*is skipped")

SIZE = 3


class RankContents(SmallContents):
    """Each rank writes one file; rank 0 writes the rest."""

    def __init__(self, rank: int) -> None:
        super().__init__(b"weights")
        self.rank = rank

    def files(self, state: RunState) -> Iterator[File]:
        """Return this rank's files."""
        yield File(f"random-{self.rank}.bin", [f"{self.rank} at {state.step}".encode()])
        if self.rank == 0:
            yield from super().files(state)

    def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
        """Return copies of this rank's files."""
        own = File(f"random-{self.rank}.bin", [f"{self.rank} at {state.step}".encode()])
        shared = super().snapshot(state) if self.rank == 0 else lambda: iter(())
        return lambda: chain([own], shared())

    def restore(self, names: Collection[str], open_file: OpenFile) -> RunState:
        """Load this rank's file and the shared ones."""
        self.weights = b"".join(open_file(f"random-{self.rank}.bin"))
        return super().restore(names, open_file)


class SlowContents(RankContents):
    """Yields nothing of a snapshot before the gate is open."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.gate = threading.Event()

    def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
        """Return a snapshot of this rank's files that waits for the gate."""
        files = super().snapshot(state)

        def when_open() -> Iterator[File]:
            assert self.gate.wait(30)
            yield from files()

        return when_open


def store_of(
    storage: Storage, ranks: Collectives, limit: int | None = None, in_background: bool = False
) -> CheckpointStore:
    """Return the store of one rank; each rank proposes a session, and all agree on one."""
    return CheckpointStore(
        storage,
        RankContents(ranks.rank),
        CheckpointPolicy(limit),
        collectives=ranks,
        pauses=(),
        background=ThreadBackground() if in_background else None,
    )


def save_steps(
    storage: Callable[[int], Storage], *steps: int, limit: int | None = None, in_background: bool = False
) -> Callable[..., list[AnyEvent]]:
    """Return a function that saves at these steps on a rank."""

    def run(ranks: Collectives) -> list[AnyEvent]:
        store, state = store_of(storage(ranks.rank), ranks, limit, in_background), RunState(run="mine")
        events: list[AnyEvent] = []
        for step in steps:
            state.step = step
            events += store.save(state)
        events += store.finish()
        return events

    return run


both_ways = pytest.mark.parametrize("in_background", [False, True])
"""Synchronous and background saves."""


@both_ways
@pytest.mark.parametrize("publication", list(Publication))
def test_all_ranks_write_one_checkpoint(publication: Publication, in_background: bool) -> None:
    """The manifest names every rank's files, each rank gets the same events, and all load what they saved."""
    storage = MemoryStorage(publication)
    events = SimulatedWorld(SIZE).run(save_steps(lambda _: storage, 1, 2, 3, limit=2, in_background=in_background))
    assert events[0] == events[1] == events[2]
    assert events[0][-2:] == [Saved(3, "checkpoint-3"), CheckpointPublished(3, "checkpoint-3")]
    assert names(storage) == checkpoint_names(2, 3)
    manifest = verify(storage, "checkpoint-3").manifest
    assert manifest.world_size == SIZE
    assert {f"random-{rank}.bin" for rank in range(SIZE)} < set(manifest.files)

    def resume(ranks: Collectives) -> bytes:
        store = store_of(storage, ranks)
        state = store.resume()
        assert state is not None
        assert state.step == 3
        assert isinstance(store.contents, RankContents)
        return store.contents.weights

    assert SimulatedWorld(SIZE).run(resume) == [b"weights"] * SIZE


@both_ways
def test_all_ranks_complete_a_last_save_that_died(in_background: bool) -> None:
    """One rank removes the leftovers, and all ranks finish without waiting for a message that is not sent."""
    storage = MemoryStorage()
    SimulatedWorld(SIZE).run(save_steps(lambda _: storage, 1, 2, 3))
    storage.move("checkpoint-1", Owner("mine", "0").staging_name("checkpoint-1"))

    def finish(ranks: Collectives) -> list[AnyEvent]:
        store = store_of(storage, ranks, limit=1, in_background=in_background)
        assert store.resume() is not None
        return list(store.finish())

    assert SimulatedWorld(SIZE).run(finish) == [[]] * SIZE
    assert names(storage) == ["checkpoint-3"]


@both_ways
def test_a_failure_on_one_rank_fails_on_all(in_background: bool) -> None:
    """Whichever rank's write fails, every rank gets the failure, and nothing of the save is left."""
    for failing in range(SIZE):
        storage = MemoryStorage()
        seen: list[Storage] = [storage] * SIZE
        seen[failing] = FaultyStorage(storage, [Fault(1, Effect.FAIL, "write")])
        with pytest.warns(UserWarning, match="was not saved"):
            events = SimulatedWorld(SIZE).run(save_steps(seen.__getitem__, 1, in_background=in_background))
        received = [[type(event) for event in events] for events in events]
        assert received == [[Saved, SaveFailed] if in_background else [SaveFailed]] * SIZE
        assert names(storage) == []


@both_ways
def test_a_full_disk_on_one_rank_stops_all(in_background: bool) -> None:
    """A rank without space ends the run on every rank, each with an error of the same type."""
    storage = MemoryStorage()
    faulty = FaultyStorage(storage, [Fault(1, Effect.FULL, "write", times=9)])
    with pytest.warns(UserWarning, match="was not saved|Training waits") as warned:
        ended = SimulatedWorld(SIZE).outcomes(
            save_steps(lambda rank: faulty if rank == 1 else storage, 1, in_background=in_background)
        )
    assert any("was not saved" in str(each.message) for each in warned)
    assert [type(outcome.error) for outcome in ended] == [StorageFullError] * SIZE
    assert names(storage) == []


@both_ways
@pytest.mark.parametrize("effects", list(product([None, Effect.FAIL, Effect.FULL], repeat=2)))
def test_ranks_with_different_failures_agree(effects: tuple[Effect | None, ...], in_background: bool) -> None:
    """A rank without space does not retry alone if another cannot write: the save fails on all ranks or on none."""
    storage = MemoryStorage()
    seen = [storage if effect is None else FaultyStorage(storage, [Fault(1, effect, "write")]) for effect in effects]
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        ended = SimulatedWorld(2, timeout=5).outcomes(
            save_steps(seen.__getitem__, 1, 2, limit=1, in_background=in_background)
        )
    if Effect.FAIL in effects:
        assert [type(event) for event in ended[0].value or ()].count(SaveFailed) == 1
        assert [type(event) for event in ended[1].value or ()] == [type(event) for event in ended[0].value or ()]
    elif Effect.FULL in effects:
        assert [type(outcome.error) for outcome in ended] == [StorageFullError] * 2
        return
    assert names(storage) == ["checkpoint-2"]


@pytest.mark.one_in(4)
@both_ways
@pytest.mark.parametrize("publication", list(Publication))
@pytest.mark.parametrize("rank", [0, *(pytest.param(rank, marks=pytest.mark.matrix) for rank in range(1, SIZE))])
def test_a_rank_may_die_at_any_operation(publication: Publication, rank: int, in_background: bool) -> None:
    """Whichever rank dies in a save or rotation, a complete checkpoint or none is left, and the next start resumes."""
    operation = 1
    while True:
        storage = MemoryStorage(publication)
        SimulatedWorld(SIZE).run(save_steps([storage, storage, storage].__getitem__, 1, 2))
        world = SimulatedWorld(SIZE, [Kill(rank, operation)], timeout=5)

        def resume(ranks: Collectives, storage: Storage = storage) -> int:
            store = store_of(storage, ranks, 2, in_background)
            state = store.resume()
            assert state is not None
            for _ in range(2):
                state.step += 1
                list(store.save(state))
            list(store.finish())
            return state.step

        ended = world.outcomes(resume)
        errors = [type(outcome.error) for outcome in ended if outcome.error is not None]
        assert set(errors) <= {RankKilled, CollectiveError}
        found = newest(storage)
        assert found is not None
        assert found.manifest.step >= 2
        after = SimulatedWorld(SIZE).run(resume)
        assert len(set(after)) == 1
        assert names(storage) == checkpoint_names(after[0] - 1, after[0])
        assert not [path for path in tree(storage) if "unfinished" in path]
        if not errors:
            break
        operation += 1
    assert operation > 10


@pytest.mark.parametrize("size", [2, 3])
def test_an_interrupted_rank_removes_nothing_of_the_others(size: int) -> None:
    """Other ranks may still be writing; leftovers are removed by the next session."""
    storage = MemoryStorage()
    removed: list[tuple[int, str]] = []

    class Watched(FaultyStorage):
        def remove(self, path: str) -> None:
            removed.append((ranks_here.rank, path))
            super().remove(path)

    ranks_here = threading.local()

    class Interrupted(RankContents):
        def files(self, state: RunState) -> Iterator[File]:
            if self.rank == size - 1:
                raise KeyboardInterrupt
            yield from super().files(state)

    def save(ranks: Collectives) -> None:
        ranks_here.rank = ranks.rank
        store = store_of(Watched(storage), ranks)
        store.contents = Interrupted(ranks.rank)
        list(store.save(RunState(run="mine", step=1)))

    ended = SimulatedWorld(size, timeout=5).outcomes(save)

    assert isinstance(ended[-1].error, KeyboardInterrupt)
    assert removed == []
    SimulatedWorld(size).run(save_steps(lambda _: storage, 1))
    assert names(storage) == checkpoint_names(1)


def test_two_ranks_with_one_file_are_refused() -> None:
    """If two ranks write the same file, the save fails and names it."""

    def save(ranks: Collectives) -> None:
        store = store_of(MemoryStorage(), ranks)  # a storage per rank, in which both files can be written
        store.contents = SmallContents(b"weights")
        list(store.save(RunState(run="mine", step=1)))

    with pytest.raises(CheckpointError, match=r"Rank 1 and another rank both wrote weights/all\.bin"):
        SimulatedWorld(2).run(save)


def test_a_damaged_checkpoint_is_refused_on_every_rank() -> None:
    """One rank verifies, and all ranks get the result."""
    storage = MemoryStorage()
    SimulatedWorld(SIZE).run(save_steps(lambda _: storage, 1))
    storage.damage("checkpoint-1/random-2.bin", b"rot")
    ended = SimulatedWorld(SIZE).outcomes(lambda ranks: store_of(storage, ranks).resume("checkpoint-1"))
    assert all(isinstance(outcome.error, CheckpointError) for outcome in ended)
    assert "On rank 0: checkpoint-1 in memory is damaged" in str(ended[1].error)


def test_unreadable_is_distinguished_from_damaged_on_every_rank() -> None:
    """The error on the other ranks also says that the checkpoint may be good."""
    storage = MemoryStorage()
    SimulatedWorld(SIZE).run(save_steps(lambda _: storage, 1))
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "read", times=9, within="state.json")])
    ended = SimulatedWorld(SIZE).outcomes(lambda ranks: store_of(faulty, ranks).resume())
    assert [type(outcome.error) for outcome in ended] == [UnreadableCheckpointError] * SIZE


@given(st.integers(2, 5), st.lists(st.integers(0, 30), min_size=5, max_size=5))
@settings(max_examples=examples(15), deadline=None)
def test_a_save_is_reported_at_the_same_boundary_on_all_ranks(size: int, slowness: list[int]) -> None:
    """All ranks report the checkpoint at the same boundary, once all have written, however long each takes.

    Boundaries pass meanwhile without waiting for the writers.
    """
    storage = MemoryStorage()

    def boundaries(ranks: Collectives) -> tuple[int, list[AnyEvent]]:
        store = store_of(storage, ranks, in_background=True)
        store.contents = contents = SlowContents(ranks.rank)
        agreement = make_agreement(Requests(), ranks, lambda: store.writing)
        for _ in range(3):  # at which all agree that nothing is in flight
            assert not agreement.agreed_requests().collect or list(store.collect()) == []
        assert list(store.save(RunState(run="mine", step=1))) == [Saved(1, "checkpoint-1")]
        for boundary in range(200):
            if boundary == slowness[ranks.rank]:
                contents.gate.set()
            if agreement.agreed_requests().collect and (received := list(store.collect())):
                assert boundary > max(slowness[:size])
                return boundary, received
            time.sleep(0.001)
        raise AssertionError("the save was not reported")

    events = SimulatedWorld(size).run(boundaries)
    assert events == [events[0]] * size
    assert events[0][1] == [CheckpointPublished(1, "checkpoint-1")]


def test_each_process_writes_from_its_next_boundary() -> None:
    """A process starts to write even though it cannot know alone whether the save is done."""
    storage = MemoryStorage()

    def boundaries(ranks: Collectives) -> list[AnyEvent]:
        first_bytes = threading.Event()
        times = chain([0.0], repeat(8 * PATIENCE))
        store = store_of(storage, ranks, in_background=True)
        store.note = lambda phase, /, **_: first_bytes.set() if phase == "first_byte" else None
        store._pacer = Pacer(lambda: next(times))
        list(store.save(RunState(run="mine", step=1), required=False))
        assert not first_bytes.wait(0.02)
        assert not store.has_news
        assert first_bytes.wait(PATIENCE / 2)
        return list(store.finish())

    assert SimulatedWorld(SIZE).run(boundaries) == [[CheckpointPublished(1, "checkpoint-1")]] * SIZE


def test_a_full_disk_on_one_rank_pauses_all() -> None:
    """At one of the next boundaries all ranks learn that the save waits for space, and continue once it is written."""
    storage = MemoryStorage()
    full = FaultyStorage(storage, [Fault(1, Effect.FULL, "write", times=4)])

    def boundaries(ranks: Collectives) -> list[AnyEvent]:
        store = store_of(full if ranks.rank == 1 else storage, ranks, in_background=True)
        store.pauses = (0.1,) * 5
        agreement = make_agreement(Requests(), ranks, lambda: store.writing)
        assert list(store.save(RunState(run="mine", step=1))) == [Saved(1, "checkpoint-1")]
        for _ in range(200):
            if agreement.agreed_requests().collect and (received := list(store.collect())):
                return received
            time.sleep(0.001)
        raise AssertionError("no rank waited")

    with pytest.warns(UserWarning, match="Training waits"):
        events = SimulatedWorld(SIZE).run(boundaries)
    assert [[type(event) for event in received] for received in events] == [[SaveWaits, CheckpointPublished]] * SIZE


def test_a_single_process_exchanges_nothing() -> None:
    """It gets its own value, and its own error."""
    assert run_on_all_ranks(None, lambda: 5) == [5]
    assert run_on_rank0(SimulatedWorld(1).rank(0), lambda: 6) == 6

    def fail() -> int:
        raise StorageError("mine")

    with suppress(StorageError):
        run_on_all_ranks(None, fail)
        raise AssertionError


@pytest.mark.parametrize("size", [1, 2, 3])
def test_run_on_rank_0_is_done_once(size: int) -> None:
    """Rank 0 acts and all get its result; what runs on all ranks is done by each."""
    by: list[int] = []

    def act(rank: int) -> int:
        by.append(rank)
        return 7 + rank

    assert SimulatedWorld(size).run(lambda ranks: run_on_rank0(ranks, lambda: act(ranks.rank))) == [7] * size
    assert by == [0]
    everybody = [7 + rank for rank in range(size)]
    assert (
        SimulatedWorld(size).run(lambda ranks: run_on_all_ranks(ranks, lambda: act(ranks.rank))) == [everybody] * size
    )
    assert sorted(by) == [0, *range(size)]


def test_errors_of_any_type_reach_the_other_ranks() -> None:
    """An error that is not a storage error reaches other ranks as one, and is raised unchanged on its own rank."""

    def act(ranks: Collectives) -> list[int]:
        def fail_on_one() -> int:
            if ranks.rank == 1:
                raise ValueError("odd")
            return ranks.rank

        return run_on_all_ranks(ranks, fail_on_one)

    errors = [outcome.error for outcome in SimulatedWorld(SIZE).outcomes(act)]
    assert [type(error) for error in errors] == [StorageError, ValueError, StorageError]
    assert str(errors[0]) == "On rank 1: odd"


def test_a_remote_error_has_the_local_one_as_its_cause() -> None:
    """The traceback of each rank shows what happened on that rank."""
    raised = [StorageFullError("no space"), StorageError("no network"), None]

    def act(ranks: Collectives) -> list[int]:
        def fail_differently() -> int:
            if (error := raised[ranks.rank]) is not None:
                raise error
            return ranks.rank

        return run_on_all_ranks(ranks, fail_differently)

    errors = [outcome.error for outcome in SimulatedWorld(SIZE).outcomes(act)]
    assert [str(error) for error in errors] == ["On rank 1: no network", "no network", "On rank 1: no network"]
    assert [error.__cause__ for error in errors if error is not None] == [raised[0], None, None]
