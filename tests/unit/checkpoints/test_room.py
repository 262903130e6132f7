from __future__ import annotations

from collections.abc import Callable

import pytest

from hexloop.adapters.storage.faults import Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import FullStorageRetry
from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.domain.events import CheckpointPublished, Saved, SaveFailed, SaveWaits
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication
from tests.unit.checkpoints.small_store import checkpoint_names, make_store, names, save_all, save_at
from tests.unit.checkpoints.test_behind import wait_for_news


def make_room(waits: list[float]) -> FullStorageRetry:
    """Somebody who waits without waiting."""
    return FullStorageRetry(waits.append, pauses=(1.0, 2.0))


def can_remove(things: int) -> Callable[[], bool]:
    """Something that removes one thing at each call, of so many."""
    left = iter([True] * things)
    return lambda: next(left, False)


def test_what_finds_room_is_done_once() -> None:
    """Nothing is waited for or removed where there is room."""
    done: list[int] = []
    waits: list[float] = []
    room = make_room(waits)
    room.attempt(lambda: done.append(1), can_remove(1))
    assert (done, waits, room.full) == ([1], [], None)


@pytest.mark.parametrize(
    ("failures", "prunable", "waited"), [(1, 0, [1.0]), (2, 0, [1.0, 2.0]), (3, 2, [1.0]), (1, 1, [])]
)
def test_attempts_go_on_while_there_is_no_room(failures: int, prunable: int, waited: list[float]) -> None:
    """First everything goes that may, without a pause; then the pauses, told and ever longer, until there is room."""
    waits: list[float] = []
    room = make_room(waits)
    seen: list[StorageFullError | None] = []

    def act() -> None:
        seen.append(room.full)
        if len(seen) <= failures:
            raise StorageFullError("no room")

    room.attempt(act, can_remove(prunable))
    assert waits == waited
    assert [full is not None for full in seen] == [False] * (1 + prunable) + [True] * (failures - prunable)
    assert room.full is None


def test_attempts_end_after_the_last_pause() -> None:
    """The storage's own error comes out when no pause is left."""
    waits: list[float] = []
    room = make_room(waits)

    def act() -> None:
        raise StorageFullError("no room at all")

    with pytest.raises(StorageFullError, match="no room at all"):
        room.attempt(act, can_remove(0))
    assert waits == [1.0, 2.0]


def test_who_does_not_wait_does_not_say_so() -> None:
    """Where no pause may be made, nobody is told that the run stands still."""
    room = FullStorageRetry(lambda _seconds: None, pauses=())

    def act() -> None:
        raise StorageFullError("no room at all")

    with pytest.raises(StorageFullError):
        room.attempt(act, can_remove(1))
    assert room.full is None


def test_attempts_end_when_the_wait_is_broken_off() -> None:
    """A run that is told to end does not wait for room."""
    room = FullStorageRetry(lambda _seconds: True, pauses=(1.0,) * 9)
    attempts: list[int] = []

    def act() -> None:
        attempts.append(1)
        raise StorageFullError("no room")

    with pytest.raises(StorageFullError):
        room.attempt(act, can_remove(0))
    assert len(attempts) == 1


def test_other_failures_are_not_waited_for() -> None:
    """Only a full storage may have room later."""
    room = FullStorageRetry(lambda _seconds: None)

    def act() -> None:
        raise StorageError("gone")

    with pytest.raises(StorageError, match="gone"):
        room.attempt(act, can_remove(1))


def sized_storage(publication: Publication, checkpoints: float) -> MemoryStorage:
    """Room for so many checkpoints."""
    probe = MemoryStorage(publication)
    save_all(probe, "mine", [1])
    size = sum(probe.digest(f"checkpoint-1/{path}").size for path in ("manifest.json", "state.json", "weights/all.bin"))
    return MemoryStorage(publication, capacity=int(size * checkpoints))


@pytest.mark.parametrize("publication", list(Publication))
def test_a_full_disk_gives_room_by_what_the_policy_allows(publication: Publication) -> None:
    """What the new checkpoint would make superfluous goes before it is written, where there is no room otherwise."""
    storage = sized_storage(publication, 2.7)
    store = make_store(storage, limit=2)
    state = RunState(run="mine")
    for step in (1, 2, 3, 4):
        assert save_at(store, state, step) == [
            Saved(step, f"checkpoint-{step}"), CheckpointPublished(step, f"checkpoint-{step}")
        ]  # fmt: skip
    assert names(storage) == checkpoint_names(3, 4)


def test_no_more_goes_than_makes_room() -> None:
    """Where one removal makes room, what else is superfluous stays until the new checkpoint is there."""
    storage = sized_storage(Publication.RENAME, 3.3)
    save_all(storage, "mine", [1, 2, 3])
    store = make_store(storage, limit=1)
    state = store.resume()
    assert state is not None
    seen: list[list[str]] = []

    def note(phase: str, /, **_: object) -> None:
        if phase == "written":
            seen.append(names(storage))

    store.note = note
    save_at(store, state, 4)

    assert checkpoint_names(2, 3) == [name for name in seen[0] if name.startswith("checkpoint-")]
    assert names(storage) == checkpoint_names(4)


@pytest.mark.parametrize("limit", [1, None])
def test_the_newest_checkpoint_never_makes_room(limit: int | None) -> None:
    """With room for one checkpoint only, the one that is there stays, and the run ends with it."""
    storage = sized_storage(Publication.RENAME, 1.5)
    store = make_store(storage, limit=limit)
    state = RunState(run="mine")
    save_at(store, state, 1)
    with (
        pytest.warns(UserWarning, match="checkpoint-2 was not saved"),
        pytest.raises(StorageFullError, match=r"Everything up to checkpoint-1 is saved. Free space"),
    ):
        save_at(store, state, 2)
    assert names(storage) == ["checkpoint-1"]


def test_a_run_stands_still_until_there_is_room() -> None:
    """While the save behind the loop waits for room, the run waits at its next boundary, and says so."""
    storage = MemoryStorage()
    faulty = FaultyStorage(storage, [Fault(1, Effect.FULL, "write", times=3)])
    store = make_store(faulty, in_background=True, pauses=(0.05,) * 9)
    assert save_at(store, RunState(run="mine"), 1) == [Saved(1, "checkpoint-1")]
    wait_for_news(store)
    with pytest.warns(UserWarning, match="waits until checkpoint-1"):
        waits, published = store.collect()
    assert isinstance(waits, SaveWaits)
    assert published == CheckpointPublished(1, "checkpoint-1")


def test_a_removal_that_fails_makes_no_room() -> None:
    """Where what may go cannot be removed either, the run ends with everything as it was."""
    storage = MemoryStorage()
    store = make_store(storage, limit=2)
    state = RunState(run="mine")
    save_at(store, state, 1)
    save_at(store, state, 2)
    store.storage = FaultyStorage(
        storage, [Fault(1, Effect.FULL, "write", times=99), Fault(1, Effect.FAIL, "move", times=99)]
    )
    events = store.save(RunState(run="mine", step=3))
    with pytest.warns(UserWarning, match="checkpoint-3 was not saved"):
        assert isinstance(next(events), SaveFailed)
    with pytest.raises(StorageFullError):
        next(events)
    assert names(storage) == checkpoint_names(1, 2)
