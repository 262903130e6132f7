"""Deaths during a fallback to an older checkpoint, and at any byte of a save."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import StorageError
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication
from tests.unit.checkpoints.small_contents import SmallContents
from tests.unit.checkpoints.small_store import make_store, names, save_all, save_at, tree, weights_at

pytestmark = pytest.mark.filterwarnings("ignore:.*(is skipped|was not saved)")

ROT = b"rot"


def damaged_world(publication: Publication, damaged: str) -> MemoryStorage:
    """Return a storage with three checkpoints of one run, the newest of which is damaged."""
    storage = MemoryStorage(publication)
    save_all(storage, "mine", [5, 10, 15])
    storage.damage(f"checkpoint-15/{damaged}", ROT)
    return storage


def assert_resumes_from(storage: MemoryStorage, step: int) -> None:
    """Check that a new process resumes at this step with its weights, and that its next saves are good."""
    store = make_store(storage)
    state = store.resume()
    assert state is not None
    assert state.step == step
    assert isinstance(store.contents, SmallContents)
    assert store.contents.weights == weights_at("mine", step)
    save_at(store, state, step + 5)
    assert verify(storage, f"checkpoint-{step + 5}").manifest.parent == f"checkpoint-{step}"


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("effect", [Effect.DIE, Effect.FAIL, Effect.FULL])
@pytest.mark.parametrize("damaged", ["weights/all.bin", "manifest.json"])
@pytest.mark.parametrize("publication", list(Publication))
def test_a_fault_in_any_operation_of_a_fallback(
    publication: Publication, damaged: str, effect: Effect, power_cut: bool
) -> None:
    """Wherever a fallback stops, the next process falls back to the same checkpoint, and the damaged one is kept."""
    for at in count(1):
        storage = damaged_world(publication, damaged)
        seen = FaultyStorage(storage, [Fault(at, effect)])
        with suppress(Died, StorageError):
            make_store(seen).resume()
        if power_cut:
            storage.crash()
        assert ROT in tree(storage).values()
        assert_resumes_from(storage, 10)
        assert ROT in tree(storage).values()
        if len(seen.operations) < at:
            break
    assert at > 15


def sizes_of_writes(publication: Publication) -> list[int]:
    """Return the size of each file that a save writes, in order, with one checkpoint before it."""
    storage = MemoryStorage(publication)
    save_all(storage, "mine", [1])
    written: list[int] = []

    class Counting(FaultyStorage):
        def write(self, path, chunks):  # type: ignore[no-untyped-def]
            stored = super().write(path, chunks)
            written.append(stored.size)
            return stored

    store, state = resumed(Counting(storage))
    save_at(store, state, 2)
    return written


def resumed(storage: FaultyStorage) -> tuple[CheckpointStore, RunState]:
    """Return the run of a process that resumes from its only checkpoint."""
    store = make_store(storage)
    state = store.resume()
    assert state is not None
    return store, state


@pytest.mark.one_in(2)
@pytest.mark.parametrize("publication", list(Publication))
def test_a_death_at_any_byte_of_a_save(publication: Publication) -> None:
    """However long the partial file is, the earlier checkpoint is found, or the new one if it is complete."""
    sizes = sizes_of_writes(publication)
    assert max(sizes) > 300
    for number, size in enumerate(sizes, 1):
        for length in range(size + 1):
            storage = MemoryStorage(publication)
            save_all(storage, "mine", [1])
            done = 1.0 if length == size else (length + 0.5) / size
            store, state = resumed(FaultyStorage(storage, [Fault(number, Effect.DIE, "write", done=done)]))
            with suppress(Died):
                save_at(store, state, 2)
            found = newest(storage)
            assert found is not None
            last_byte = number == len(sizes) and length == size and publication is Publication.MANIFEST_LAST
            assert found.manifest.step == (2 if last_byte else 1)
    again, state = resumed(FaultyStorage(storage))
    save_at(again, state, state.step + 1)
    assert not [name for name in names(storage) if "unfinished" in name]
