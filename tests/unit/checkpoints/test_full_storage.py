"""Saving to a full storage: removing checkpoints early, and waiting for space."""

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
from tests.unit.checkpoints.test_background_saves import wait_for_news


def make_retry(waits: list[float]) -> FullStorageRetry:
    """Return a retry that records its waits instead of sleeping."""
    return FullStorageRetry(waits.append, pauses=(1.0, 2.0))


def can_remove(things: int) -> Callable[[], bool]:
    """Return a function that removes one item at each call, up to a number."""
    left = iter([True] * things)
    return lambda: next(left, False)


def test_a_write_that_fits_is_done_once() -> None:
    """If there is space, nothing is waited for or removed."""
    done: list[int] = []
    waits: list[float] = []
    retry = make_retry(waits)
    retry.attempt(lambda: done.append(1), can_remove(1))
    assert (done, waits, retry.full) == ([1], [], None)


@pytest.mark.parametrize(
    ("failures", "prunable", "waited"), [(1, 0, [1.0]), (2, 0, [1.0, 2.0]), (3, 2, [1.0]), (1, 1, [])]
)
def test_attempts_continue_while_there_is_no_space(failures: int, prunable: int, waited: list[float]) -> None:
    """Everything removable is removed first, without a pause; then the pauses are reported and grow."""
    waits: list[float] = []
    retry = make_retry(waits)
    seen: list[StorageFullError | None] = []

    def act() -> None:
        seen.append(retry.full)
        if len(seen) <= failures:
            raise StorageFullError("no space")

    retry.attempt(act, can_remove(prunable))
    assert waits == waited
    assert [full is not None for full in seen] == [False] * (1 + prunable) + [True] * (failures - prunable)
    assert retry.full is None


def test_attempts_end_after_the_last_pause() -> None:
    """The storage's own error is raised after the last pause."""
    waits: list[float] = []
    retry = make_retry(waits)

    def act() -> None:
        raise StorageFullError("no space at all")

    with pytest.raises(StorageFullError, match="no space at all"):
        retry.attempt(act, can_remove(0))
    assert waits == [1.0, 2.0]


def test_no_wait_is_reported_without_pauses() -> None:
    """If no pause is allowed, no waiting is reported."""
    retry = FullStorageRetry(lambda _seconds: None, pauses=())

    def act() -> None:
        raise StorageFullError("no space at all")

    with pytest.raises(StorageFullError):
        retry.attempt(act, can_remove(1))
    assert retry.full is None


def test_attempts_end_when_the_wait_is_cancelled() -> None:
    """A run that is asked to stop does not wait for space."""
    retry = FullStorageRetry(lambda _seconds: True, pauses=(1.0,) * 9)
    attempts: list[int] = []

    def act() -> None:
        attempts.append(1)
        raise StorageFullError("no space")

    with pytest.raises(StorageFullError):
        retry.attempt(act, can_remove(0))
    assert len(attempts) == 1


def test_other_errors_are_not_retried() -> None:
    """Only a full storage may have space later."""
    retry = FullStorageRetry(lambda _seconds: None)

    def act() -> None:
        raise StorageError("gone")

    with pytest.raises(StorageError, match="gone"):
        retry.attempt(act, can_remove(1))


def sized_storage(publication: Publication, checkpoints: float) -> MemoryStorage:
    """Return a storage with space for a number of checkpoints."""
    probe = MemoryStorage(publication)
    save_all(probe, "mine", [1])
    size = sum(probe.digest(f"checkpoint-1/{path}").size for path in ("manifest.json", "state.json", "weights/all.bin"))
    return MemoryStorage(publication, capacity=int(size * checkpoints))


@pytest.mark.parametrize("publication", list(Publication))
def test_a_full_disk_is_freed_by_rotation(publication: Publication) -> None:
    """Checkpoints that the new one would make superfluous are removed before it is written, if the disk is full."""
    storage = sized_storage(publication, 2.7)
    store = make_store(storage, limit=2)
    state = RunState(run="mine")
    for step in (1, 2, 3, 4):
        assert save_at(store, state, step) == [
            Saved(step, f"checkpoint-{step}"), CheckpointPublished(step, f"checkpoint-{step}")
        ]  # fmt: skip
    assert names(storage) == checkpoint_names(3, 4)


def test_only_as_much_as_needed_is_removed_early() -> None:
    """If one removal frees enough space, other superfluous checkpoints stay until the new one is published."""
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
def test_the_newest_checkpoint_is_never_removed_for_space(limit: int | None) -> None:
    """With space for one checkpoint only, the existing one stays, and the run ends with it."""
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


def test_a_run_pauses_until_there_is_space() -> None:
    """While a background save waits for space, the run waits at its next boundary, and reports it."""
    storage = MemoryStorage()
    faulty = FaultyStorage(storage, [Fault(1, Effect.FULL, "write", times=3)])
    store = make_store(faulty, in_background=True, pauses=(0.05,) * 9)
    assert save_at(store, RunState(run="mine"), 1) == [Saved(1, "checkpoint-1")]
    wait_for_news(store)
    with pytest.warns(UserWarning, match="waits until checkpoint-1"):
        waits, published = store.collect()
    assert isinstance(waits, SaveWaits)
    assert published == CheckpointPublished(1, "checkpoint-1")


def test_a_failed_removal_frees_no_space() -> None:
    """If superfluous checkpoints cannot be removed either, the run ends with everything unchanged."""
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
