"""Checkpoints are written in the background."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from hexloop.adapters.background import NICENESS, ThreadBackground
from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import CheckpointSave
from hexloop.domain.checkpoints.pace import Pacer
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import StorageError
from hexloop.domain.events import CheckpointPublished, Saved, SaveFailed, SaveSkipped
from hexloop.domain.state import RunState
from hexloop.ports.storage import File, Storage
from tests.unit.checkpoints.gated_storage import PATIENCE, GatedStorage
from tests.unit.checkpoints.small_contents import SmallContents
from tests.unit.checkpoints.small_store import checkpoint_names, make_store, names, save_at, tree, weights_at


@pytest.fixture
def storage() -> Iterator[GatedStorage]:
    """Yield a storage whose gate is closed; it opens at the end, so that no thread keeps waiting."""
    gated = GatedStorage()
    yield gated
    gated.gate.set()


def wait_for_news(store: CheckpointStore) -> None:
    """Wait until the save in flight is done or waits for space."""
    deadline = time.monotonic() + PATIENCE
    while not store.has_news:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_run_continues_while_its_snapshot_is_written(storage: GatedStorage) -> None:
    """The save is reported at once, holds the state at that time, and is reported as published at a later boundary."""
    store = make_store(storage, in_background=True)
    state = RunState(run="mine")
    assert save_at(store, state, 5) == [Saved(5, "checkpoint-5")]
    assert storage.reached.wait(PATIENCE)
    assert (store.has_news, list(store.collect())) == (False, [])
    assert isinstance(store.contents, SmallContents)
    state.step, store.contents.weights = 6, b"later"
    storage.gate.set()
    wait_for_news(store)
    assert list(store.collect()) == [CheckpointPublished(5, "checkpoint-5")]
    assert not store.has_news
    resumed = make_store(storage)
    found = resumed.resume()
    assert found is not None
    assert found.step == 5
    assert b"".join(storage.read("checkpoint-5/weights/all.bin")) == weights_at("mine", 5)


def patient_store(storage: Storage) -> tuple[CheckpointStore, list[str]]:
    """Return a store whose next save is far away, so that it writes slowly, and the recorded phases of its saves."""
    phases: list[str] = []
    times = chain([0.0], repeat(8 * PATIENCE))
    store = make_store(storage, in_background=True, note=lambda phase, /, **_: phases.append(phase))
    store._pacer = Pacer(lambda: next(times))
    return store, phases


def test_writing_starts_at_the_next_boundary() -> None:
    """The step after the copy runs undisturbed: the first byte is written after the next boundary."""
    store, phases = patient_store(MemoryStorage())
    assert list(store.save(RunState(run="mine", step=1), required=False)) == [Saved(1, "checkpoint-1")]
    time.sleep(0.02)
    assert phases == ["began", "taken"]
    wait_for_news(store)
    assert phases == ["began", "taken", "first_byte", "written", "published"]


def test_writing_starts_at_once_if_the_save_is_waited_for() -> None:
    """A requested save, and the last save of a run, start at once."""
    for required in (True, False):
        store, phases = patient_store(MemoryStorage())
        began = time.monotonic()
        list(store.save(RunState(run="mine", step=1), required=required))
        assert list(store.finish()) == [CheckpointPublished(1, "checkpoint-1")]
        assert phases[-1] == "published"
        assert time.monotonic() - began < PATIENCE


def test_one_save_is_in_flight_at_most(storage: GatedStorage) -> None:
    """A second save waits for the first, and reports its publication before its own start."""
    store = make_store(storage, in_background=True)
    state = RunState(run="mine")
    save_at(store, state, 1)
    threading.Timer(0.05, storage.gate.set).start()
    assert save_at(store, state, 2) == [CheckpointPublished(1, "checkpoint-1"), Saved(2, "checkpoint-2")]
    assert list(store.finish()) == [CheckpointPublished(2, "checkpoint-2")]
    assert read_manifest(storage, "checkpoint-2").parent == "checkpoint-1"
    assert list(store.finish()) == []


def test_a_save_may_be_skipped_while_another_is_written(storage: GatedStorage) -> None:
    """If skipping is chosen, a save that is due meanwhile is reported as skipped, unless it is required."""
    store = make_store(storage, in_background=True, skip_when_busy=True)
    state = RunState(run="mine", step=1)
    assert list(store.save(state, required=False)) == [Saved(1, "checkpoint-1")]
    state.step = 2
    assert list(store.save(state, required=False)) == [SaveSkipped(2, "checkpoint-2")]
    storage.gate.set()
    state.step = 3
    assert list(store.save(state, required=True))[-1] == Saved(3, "checkpoint-3")
    assert store.close() == [CheckpointPublished(3, "checkpoint-3")]
    assert names(storage) == checkpoint_names(1, 3)


def test_a_save_of_the_best_is_not_skipped(storage: GatedStorage) -> None:
    """A save of the best step so far waits for the one in flight: the run may end with its weights."""
    store = make_store(storage, in_background=True, skip_when_busy=True)
    state = RunState(run="mine", step=1)
    assert list(store.save(state, required=False)) == [Saved(1, "checkpoint-1")]
    state.step = state.best_step = 2
    threading.Timer(0.05, storage.gate.set).start()
    assert list(store.save(state, required=False)) == [CheckpointPublished(1, "checkpoint-1"), Saved(2, "checkpoint-2")]
    assert store.close() == [CheckpointPublished(2, "checkpoint-2")]
    assert state.best_checkpoint == "checkpoint-2"


def test_a_save_in_flight_is_finished_when_the_run_ends(storage: GatedStorage) -> None:
    """Closing waits for the save, and reports its result."""
    store = make_store(storage, in_background=True)
    save_at(store, RunState(run="mine"), 1)
    threading.Timer(0.05, storage.gate.set).start()
    assert store.close() == [CheckpointPublished(1, "checkpoint-1")]
    assert verify(storage, "checkpoint-1").manifest.step == 1
    assert store.close() == []


@pytest.mark.parametrize("effect", [Effect.FAIL, Effect.FULL])
def test_a_background_failure_is_reported_at_the_next_boundary(effect: Effect) -> None:
    """The event comes with the next collection, the state has no such checkpoint, and no files are left over."""
    storage = MemoryStorage()
    store = make_store(storage, in_background=True)
    state = RunState(run="mine", best_step=1)
    save_at(store, state, 1)
    list(store.finish())
    store.storage = FaultyStorage(storage, [Fault(2, effect, "write")])
    state.best_step = 2
    assert save_at(store, state, 2) == [Saved(2, "checkpoint-2")]
    assert state.best_checkpoint == "checkpoint-2"
    wait_for_news(store)
    events = store.collect()
    with pytest.warns(UserWarning, match="checkpoint-2 was not saved"):
        assert isinstance(next(events), SaveFailed)
    assert (state.parent_checkpoint, state.best_checkpoint) == (None, "checkpoint-1")
    assert names(storage) == ["checkpoint-1"]
    if effect is Effect.FULL:
        with pytest.raises(StorageError, match=r"stayed full.*Everything up to checkpoint-1 is saved"):
            next(events)


def test_a_failure_while_the_run_closes_is_a_warning() -> None:
    """The caller gets the error that ended the run."""
    store = make_store(FaultyStorage(MemoryStorage(), [Fault(1, Effect.FULL, "write")]), in_background=True)
    save_at(store, RunState(run="mine"), 1)
    with pytest.warns(UserWarning, match="was not saved|stayed full"):
        assert [type(event) for event in store.close()] == [SaveFailed]


def test_a_fatal_error_in_the_background_ends_the_run() -> None:
    """An error that is not a failure of the storage is propagated unchanged."""
    store = make_store(FaultyStorage(MemoryStorage(), [Fault(1, Effect.DIE, "write")]), in_background=True)
    save_at(store, RunState(run="mine"), 1)
    with pytest.raises(Died):
        list(store.finish())
    assert store.close() == []


def test_a_second_interrupt_aborts_the_save(storage: GatedStorage) -> None:
    """A second interrupt while the run closes ends it at once: the save is undone completely."""
    store = make_store(storage, in_background=True)
    save_at(store, RunState(run="mine"), 1)
    assert store._in_flight is not None
    save, task, state = store._in_flight

    class Interrupted:
        done = False

        def wait(self) -> None:
            raise KeyboardInterrupt

    store._in_flight = save, Interrupted(), state
    with pytest.raises(KeyboardInterrupt):
        store.close()
    storage.gate.set()
    with pytest.raises(StorageError, match="abandoned"):
        task.wait()
    assert names(storage) == []
    assert newest(storage) is None


def test_rotation_works_in_the_background() -> None:
    """The limit holds once the newest is published, and the best stays."""
    storage = MemoryStorage()
    store = make_store(storage, limit=2, in_background=True)
    state = RunState(run="mine")
    for step in (1, 2, 3, 4):
        state.best_step = 2
        save_at(store, state, step)
    list(store.finish())
    assert names(storage) == checkpoint_names(2, 4)


def test_memory_is_prepared_before_the_first_snapshot() -> None:
    """Memory is prepared once, in another thread, and the first save waits for it."""
    prepared: list[str] = []
    may_go_on = threading.Event()

    class Slow(SmallContents):
        def prepare(self) -> Callable[[], None]:
            def make_room() -> None:
                assert may_go_on.wait(PATIENCE)
                prepared.append(threading.current_thread().name)

            return make_room

        def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
            assert prepared
            return super().snapshot(state)

    store = make_store(MemoryStorage(), in_background=True)
    store.contents = Slow(b"weights")
    store.prepare()
    store.prepare()
    threading.Timer(0.05, may_go_on.set).start()
    assert [type(event) for event in store.save(RunState(run="mine", step=1))] == [Saved]
    assert store.close() == [CheckpointPublished(1, "checkpoint-1")]
    assert prepared == ["hexloop makes room for snapshots"]


def test_memory_is_not_prepared_for_synchronous_saves() -> None:
    """Without snapshots, no memory is prepared."""
    store = make_store(MemoryStorage())

    class RefusingPrepare(SmallContents):
        def prepare(self) -> Callable[[], None]:
            raise AssertionError

    store.contents = RefusingPrepare()
    store.prepare()
    assert store.close() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has thread priorities")
def test_writing_has_low_priority_and_preparing_does_not() -> None:
    """The writing thread runs at low priority; preparing, which the first save waits for, runs at normal priority."""
    priorities: dict[str, int] = {}

    def note() -> None:
        thread = threading.current_thread()
        priorities[thread.name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    class NotingPriority(SmallContents):
        def prepare(self) -> Callable[[], None]:
            return note

        def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
            files = super().snapshot(state)

            def noted() -> Iterator[File]:
                note()
                return files()

            return noted

    store = make_store(MemoryStorage(), in_background=True)
    store.contents = NotingPriority(b"weights")
    store.prepare()
    assert [type(event) for event in store.save(RunState(run="mine", step=1))] == [Saved]
    assert store.close() == [CheckpointPublished(1, "checkpoint-1")]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities == {"hexloop makes room for snapshots": own, "hexloop writes checkpoint-1": max(own, NICENESS)}


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_task_runs_where_threads_have_no_priority(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Low priority is optional: the task runs without it."""
    monkeypatch.setattr(sys, "platform", platform)
    done: list[int] = []
    ThreadBackground().submit(lambda: done.append(1), "a task").wait()
    assert done == [1]


@pytest.mark.parametrize("in_background", [False, True])
def test_each_phase_of_a_save_is_noted(in_background: bool) -> None:
    """A journal receives the phases in their order, with the bytes that were written."""
    notes: list[tuple[str, dict[str, Any]]] = []
    written_before: list[str] = []
    storage = MemoryStorage()

    def note(phase: str, /, **facts: Any) -> None:
        notes.append((phase, facts))
        if phase == "first_byte":
            written_before.extend(path for path in tree(storage) if path.endswith(".bin") and "unfinished" in path)

    store = make_store(storage, limit=1, in_background=in_background, note=note)
    state = RunState(run="mine")
    save_at(store, state, 1)
    list(store.finish())
    save_at(store, state, 2)
    list(store.finish())
    phases = ["began", *(["taken"] if in_background else []), "first_byte", "written", "published"]
    assert [phase for phase, _ in notes] == [*phases, *phases, "rotated"]
    assert written_before == []
    facts = dict(notes)
    sizes = [stored.size for stored in read_manifest(storage, "checkpoint-2").files.values()]
    assert facts["written"] == {"checkpoint": "checkpoint-2", "bytes": sum(sizes)}
    assert facts["rotated"] == {"checkpoint": "checkpoint-2", "removed": ["checkpoint-1"]}


def test_a_requested_save_is_required_by_default(storage: GatedStorage) -> None:
    """An explicit save is taken even if saves may be skipped, unless `required` is False."""
    store = make_store(storage, in_background=True, skip_when_busy=True)
    state = RunState(run="mine")
    save_at(store, state, 1)
    threading.Timer(0.05, storage.gate.set).start()
    assert save_at(store, state, 2)[-1] == Saved(2, "checkpoint-2")
    assert store.close() == [CheckpointPublished(2, "checkpoint-2")]


def saves_in_memory() -> int:
    """Return the number of saves in memory, over all stores."""
    return sum(type(each) is CheckpointSave for each in gc.get_objects())


@pytest.mark.parametrize("in_background", [False, True])
def test_a_save_leaves_no_garbage(in_background: bool) -> None:
    """The snapshot is freed with its save: a garbage collection in the writing thread would stall the loop."""
    gc.collect()
    gc.disable()
    try:
        before = saves_in_memory()
        store = make_store(MemoryStorage(), limit=1, in_background=in_background)
        state = RunState(run="mine")
        for step in (1, 2, 3):
            save_at(store, state, step)
        assert list(store.finish()) == ([CheckpointPublished(3, "checkpoint-3")] if in_background else [])
        assert saves_in_memory() == before
    finally:
        gc.enable()
