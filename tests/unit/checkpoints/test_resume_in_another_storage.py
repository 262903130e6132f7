"""A run that resumes in another storage than the one in which it was saved."""

from __future__ import annotations

import warnings

import pytest

from hexloop.adapters.collectives.simulated import SimulatedWorld
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import CheckpointPublished
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives
from tests.unit.checkpoints.small_contents import SmallContents
from tests.unit.checkpoints.small_store import (
    checkpoint_names,
    make_store,
    names,
    save_all,
    save_at,
    tree,
    weights_at,
)


@pytest.fixture
def source() -> MemoryStorage:
    """Return a storage with a run whose best checkpoint is at step 2 and whose last is at step 4."""
    storage = MemoryStorage()
    store, state = make_store(storage), RunState(run="mine")
    for step in (2, 4):
        state.best_step = 2
        save_at(store, state, step)
    return storage


def resumed(storage: MemoryStorage, source: MemoryStorage) -> tuple[CheckpointStore, RunState]:
    """Resume the run from step 4 of its source, save at step 6 in another storage, and return it."""
    store = make_store(storage, load_best_at_end=True)
    state = store.resume("checkpoint-4", source)
    assert state is not None
    save_at(store, state, 6)
    return store, state


def weights_of(store: CheckpointStore) -> bytes:
    assert isinstance(store.contents, SmallContents)
    return store.contents.weights


def test_saves_go_to_the_runs_own_storage(source: MemoryStorage) -> None:
    """The source stays unchanged, and new checkpoints have it as their ancestor."""
    before, storage = tree(source), MemoryStorage()
    resumed(storage, source)
    assert tree(source) == before
    assert names(storage) == checkpoint_names(6)
    assert read_manifest(storage, "checkpoint-6").ancestors == {read_manifest(source, "checkpoint-4").session: 4}


@pytest.mark.parametrize("size", [1, 2])
def test_the_best_weights_come_from_the_source(source: MemoryStorage, size: int) -> None:
    """A best checkpoint in the source is read from there, whatever has its name in the run's storage."""
    storage = MemoryStorage()
    save_all(storage, "another", [2])

    def end(ranks: Collectives) -> bytes:
        store = make_store(storage, load_best_at_end=True, collectives=ranks)
        state = store.resume("checkpoint-4", source)
        assert state is not None
        store.load_best(state)
        return weights_of(store)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SimulatedWorld(size).run(end) == [weights_at("mine", 2)] * size


def test_a_later_best_in_the_runs_storage_counts(source: MemoryStorage) -> None:
    """A best checkpoint that the run itself saves is read from its own storage."""
    storage = MemoryStorage()
    store, state = resumed(storage, source)
    state.best_step = 8
    save_at(store, state, 8)
    save_at(store, state, 10)
    store.load_best(state)
    assert weights_of(store) == weights_at("mine", 8)


def test_a_damaged_best_in_the_source_is_not_loaded(source: MemoryStorage) -> None:
    """It is verified like any other, and not quarantined, as the folder is another run's."""
    store, state = resumed(MemoryStorage(), source)
    source.damage("checkpoint-2/weights/all.bin", b"rot")
    before = tree(source)
    with pytest.warns(UserWarning, match="its last weights: its best .*: checkpoint-2 in memory is damaged"):
        store.load_best(state)
    assert tree(source) == before
    assert weights_of(store) == weights_at("mine", 6)


@pytest.mark.parametrize("other", ["nothing", "another run's", "a past of its own"])
def test_a_missing_best_checkpoint_is_reported_at_once(source: MemoryStorage, other: str) -> None:
    """It is reported at the resume and at the end, which keeps the last weights instead of loading another run's."""
    storage = MemoryStorage()
    resumed(storage, source)
    if other != "nothing":
        save_all(storage, "another" if other == "another run's" else "mine", [2])
    store = make_store(storage, load_best_at_end=True)
    with pytest.warns(
        UserWarning, match=r"best checkpoint of the run, checkpoint-2, was not found .* Unless it is restored"
    ):
        state = store.resume("checkpoint-6")
    assert state is not None
    with pytest.warns(UserWarning, match=r"ends with its last weights: .* checkpoint-2, was not found in memory"):
        store.load_best(state)
    assert weights_of(store) == weights_at("mine", 6)


def test_a_copied_best_checkpoint_is_used(source: MemoryStorage) -> None:
    """A run ends with its best checkpoint if the user copied it to the new storage, as the warning advises."""
    storage = MemoryStorage()
    resumed(storage, source)
    for path, data in tree(source, "checkpoint-2").items():
        storage.write(path, [data])
    store = make_store(storage, load_best_at_end=True)
    state = store.resume("checkpoint-6")
    assert state is not None
    store.load_best(state)
    assert weights_of(store) == weights_at("mine", 2)


def test_an_existing_checkpoint_is_not_saved_again(source: MemoryStorage) -> None:
    """In a copy of the source the run finds its ancestors, and is at the newest of them."""
    copy = MemoryStorage()
    for path, data in tree(source).items():
        copy.write(path, [data])
    store = make_store(copy)
    state = store.resume("checkpoint-4", source)
    assert state is not None
    assert save_at(store, state, 4) == [CheckpointPublished(4, "checkpoint-4")]
    assert store.latest == "checkpoint-4"
    assert tree(copy) == tree(source)


def test_an_unneeded_best_checkpoint_is_not_reported(source: MemoryStorage) -> None:
    """A run that ends with its last weights does not look for the best."""
    source.remove("checkpoint-2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_store(MemoryStorage()).resume("checkpoint-4", source) is not None


def test_a_best_checkpoint_whose_manifest_is_damaged_later_is_quarantined() -> None:
    """A checkpoint that the run itself saved is its own, even if its manifest can no longer be read."""
    storage = MemoryStorage()
    store, state = make_store(storage, load_best_at_end=True), RunState(run="mine", best_step=1)
    save_at(store, state, 1)
    save_at(store, state, 2)
    storage.damage("checkpoint-1/manifest.json", b"rot")
    with pytest.warns(UserWarning, match="its manifest is damaged.* set aside as .hexloop/damaged-1-checkpoint-1"):
        store.load_best(state)
    assert weights_of(store) == weights_at("mine", 2)


def test_another_runs_checkpoint_in_place_of_the_best_is_not_loaded() -> None:
    """A checkpoint of another run is refused, whatever the run itself saved under that name before."""
    storage = MemoryStorage()
    store, state = make_store(storage, load_best_at_end=True), RunState(run="mine", best_step=1)
    save_at(store, state, 1)
    save_at(store, state, 2)
    save_all(storage, "another", [1])
    with pytest.warns(UserWarning, match="ends with its last weights"):
        store.load_best(state)
    assert weights_of(store) == weights_at("mine", 2)
