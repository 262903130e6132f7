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

from hexloop.adapters.background.thread import NICENESS, ThreadBackground
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
from hexloop.ports.files import File
from hexloop.ports.storage import Storage
from tests.unit.checkpoints.gated_storage import PATIENCE, GatedStorage
from tests.unit.checkpoints.small_contents import SmallContents
from tests.unit.checkpoints.small_store import checkpoint_names, make_store, names, save_at, tree, weights_at


@pytest.fixture
def storage() -> Iterator[GatedStorage]:
    """A storage whose gate is closed; it opens at the end, so that no thread waits on."""
    gated = GatedStorage()
    yield gated
    gated.gate.set()


def wait_for_news(store: CheckpointStore) -> None:
    """Until the save in flight is done, or waits for room."""
    deadline = time.monotonic() + PATIENCE
    while not store.has_news:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_run_goes_on_while_its_snapshot_is_written(storage: GatedStorage) -> None:
    """The save is told at once, written with what the run was then, and its publication told at a later boundary."""
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
    """A store whose next save is far away, so that it need not hurry with this one, and the phases of its saves."""
    phases: list[str] = []
    times = chain([0.0], repeat(8 * PATIENCE))
    store = make_store(storage, in_background=True, note=lambda phase, /, **_: phases.append(phase))
    store._pacer = Pacer(lambda: next(times))
    return store, phases


def test_a_snapshot_is_written_from_the_next_boundary_on() -> None:
    """The step after the copy has memory and disk to itself: the first byte follows the boundary after it."""
    store, phases = patient_store(MemoryStorage())
    assert list(store.save(RunState(run="mine", step=1), required=False)) == [Saved(1, "checkpoint-1")]
    time.sleep(0.02)
    assert phases == ["began", "taken"]
    wait_for_news(store)
    assert phases == ["began", "taken", "first_byte", "written", "published"]


def test_who_waits_for_a_save_does_not_wait_for_a_boundary() -> None:
    """A save that somebody asked for, and one that the run ends with, begins at once."""
    for required in (True, False):
        store, phases = patient_store(MemoryStorage())
        began = time.monotonic()
        list(store.save(RunState(run="mine", step=1), required=required))
        assert list(store.finish()) == [CheckpointPublished(1, "checkpoint-1")]
        assert phases[-1] == "published"
        assert time.monotonic() - began < PATIENCE


def test_one_save_is_in_flight_at_most(storage: GatedStorage) -> None:
    """A second save waits for the first, whose publication it tells before its own beginning."""
    store = make_store(storage, in_background=True)
    state = RunState(run="mine")
    save_at(store, state, 1)
    threading.Timer(0.05, storage.gate.set).start()
    assert save_at(store, state, 2) == [CheckpointPublished(1, "checkpoint-1"), Saved(2, "checkpoint-2")]
    assert list(store.finish()) == [CheckpointPublished(2, "checkpoint-2")]
    assert read_manifest(storage, "checkpoint-2").parent == "checkpoint-1"
    assert list(store.finish()) == []


def test_a_save_may_be_left_out_while_another_is_written(storage: GatedStorage) -> None:
    """Where that is chosen, a save that comes due meanwhile is told as left out, unless it is required."""
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


def test_the_best_is_not_left_out(storage: GatedStorage) -> None:
    """A save at the step of the best evaluation so far waits for the one that is written: the run may end with it."""
    store = make_store(storage, in_background=True, skip_when_busy=True)
    state = RunState(run="mine", step=1)
    assert list(store.save(state, required=False)) == [Saved(1, "checkpoint-1")]
    state.step = state.best_step = 2
    threading.Timer(0.05, storage.gate.set).start()
    assert list(store.save(state, required=False)) == [CheckpointPublished(1, "checkpoint-1"), Saved(2, "checkpoint-2")]
    assert store.close() == [CheckpointPublished(2, "checkpoint-2")]
    assert state.best_checkpoint == "checkpoint-2"


def test_a_save_in_flight_is_finished_when_the_run_ends(storage: GatedStorage) -> None:
    """Closing waits for the save, and says how it ended."""
    store = make_store(storage, in_background=True)
    save_at(store, RunState(run="mine"), 1)
    threading.Timer(0.05, storage.gate.set).start()
    assert store.close() == [CheckpointPublished(1, "checkpoint-1")]
    assert verify(storage, "checkpoint-1").manifest.step == 1
    assert store.close() == []


@pytest.mark.parametrize("effect", [Effect.FAIL, Effect.FULL])
def test_a_failure_behind_the_loop_is_told_at_the_next_boundary(effect: Effect) -> None:
    """The event comes with the next collection, the state knows of no such checkpoint, and nothing is left over."""
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
    """Whatever ended the run is what its caller hears of."""
    store = make_store(FaultyStorage(MemoryStorage(), [Fault(1, Effect.FULL, "write")]), in_background=True)
    save_at(store, RunState(run="mine"), 1)
    with pytest.warns(UserWarning, match="was not saved|stayed full"):
        assert [type(event) for event in store.close()] == [SaveFailed]


def test_a_death_behind_the_loop_ends_the_run() -> None:
    """What is no failure of the storage comes out of the run as it is."""
    store = make_store(FaultyStorage(MemoryStorage(), [Fault(1, Effect.DIE, "write")]), in_background=True)
    save_at(store, RunState(run="mine"), 1)
    with pytest.raises(Died):
        list(store.finish())
    assert store.close() == []


def test_an_interrupted_close_gives_the_save_up(storage: GatedStorage) -> None:
    """Who asks a second time that the run ends at once gets that: the save is undone whole."""
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


def test_rotation_happens_behind_the_loop_as_well() -> None:
    """The limit holds once the newest is published, and the best stays."""
    storage = MemoryStorage()
    store = make_store(storage, limit=2, in_background=True)
    state = RunState(run="mine")
    for step in (1, 2, 3, 4):
        state.best_step = 2
        save_at(store, state, step)
    list(store.finish())
    assert names(storage) == checkpoint_names(2, 4)


def test_room_is_made_before_the_first_snapshot() -> None:
    """Preparing happens once, in another thread, and the first save waits for it."""
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


def test_room_is_not_made_for_a_run_that_writes_in_line() -> None:
    """Where no snapshot is taken, none is prepared."""
    store = make_store(MemoryStorage())

    class Refusing(SmallContents):
        def prepare(self) -> Callable[[], None]:
            raise AssertionError

    store.contents = Refusing()
    store.prepare()
    assert store.close() == []


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_writing_stands_back_and_making_room_does_not() -> None:
    """A thread that writes leaves the processor to the steps; one that the first save waits for takes its share."""
    priorities: dict[str, int] = {}

    def note() -> None:
        thread = threading.current_thread()
        priorities[thread.name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    class Noting(SmallContents):
        def prepare(self) -> Callable[[], None]:
            return note

        def snapshot(self, state: RunState) -> Callable[[], Iterator[File]]:
            files = super().snapshot(state)

            def noted() -> Iterator[File]:
                note()
                return files()

            return noted

    store = make_store(MemoryStorage(), in_background=True)
    store.contents = Noting(b"weights")
    store.prepare()
    assert [type(event) for event in store.save(RunState(run="mine", step=1))] == [Saved]
    assert store.close() == [CheckpointPublished(1, "checkpoint-1")]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities == {"hexloop makes room for snapshots": own, "hexloop writes checkpoint-1": max(own, NICENESS)}


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_task_is_done_wherever_threads_have_no_priority(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standing back is a courtesy; the task is done without it."""
    monkeypatch.setattr(sys, "platform", platform)
    done: list[int] = []
    ThreadBackground().submit(lambda: done.append(1), "a task").wait()
    assert done == [1]


@pytest.mark.parametrize("in_background", [False, True])
def test_each_phase_of_a_save_is_noted(in_background: bool) -> None:
    """Whoever keeps a journal hears of the phases in their order, with the bytes that were written."""
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


def test_a_save_is_required_unless_it_is_said_not_to_be(storage: GatedStorage) -> None:
    """Whoever asks for a save in so many words gets it, also where others may be left out."""
    store = make_store(storage, in_background=True, skip_when_busy=True)
    state = RunState(run="mine")
    save_at(store, state, 1)
    threading.Timer(0.05, storage.gate.set).start()
    assert save_at(store, state, 2)[-1] == Saved(2, "checkpoint-2")
    assert store.close() == [CheckpointPublished(2, "checkpoint-2")]


def saves_in_memory() -> int:
    """How many there are, of whatever store."""
    return sum(type(each) is CheckpointSave for each in gc.get_objects())


@pytest.mark.parametrize("in_background", [False, True])
def test_a_save_leaves_nothing_for_a_collection_of_garbage(in_background: bool) -> None:
    """What held the snapshot goes with the save: a collection would hold up the loop from the thread that writes."""
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
