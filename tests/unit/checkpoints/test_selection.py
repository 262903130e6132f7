"""Which checkpoint a run resumes from, and what happens to damaged ones."""

from __future__ import annotations

import warnings

import pytest

from hexloop.adapters.storage.faults import Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.manifest import MIGRATIONS, SCHEMA_VERSION, seal, unseal
from hexloop.domain.checkpoints.selection import last_run, newest, quarantine, runs_in
from hexloop.domain.errors import CheckpointError, NewerSchemaError, UnreadableCheckpointError
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication
from tests.unit.checkpoints.small_store import make_store, names, save_all, save_at, tree


@pytest.fixture(params=list(Publication), ids=lambda publication: publication.name.lower())
def storage(request: pytest.FixtureRequest) -> MemoryStorage:
    """Return a storage of either kind with three checkpoints of one run."""
    storage = MemoryStorage(request.param)
    save_all(storage, "mine", [5, 10, 15])
    return storage


@pytest.mark.parametrize("damaged", ["state.json", "weights/all.bin", "manifest.json"])
def test_a_damaged_checkpoint_is_quarantined(storage: MemoryStorage, damaged: str) -> None:
    """It is renamed with all its files, a file in it gives the reason, and the next start does not warn."""
    storage.damage(f"checkpoint-15/{damaged}", b"rot")
    before = sorted(data for path, data in tree(storage).items() if "checkpoint-15" in path)
    with pytest.warns(UserWarning, match=r"is skipped: checkpoint-15 .*It was set aside as .*damaged-1-"):
        state = make_store(storage).resume()
    assert state is not None
    assert state.step == 10
    kept = {path: data for path, data in tree(storage).items() if "checkpoint-15" in path}
    (reason,) = (data for path, data in kept.items() if path.endswith("damaged.txt"))
    assert b"checkpoint-15 in memory" in reason
    assert sorted(data for data in kept.values() if data != reason) == before
    with warnings.catch_warnings():
        warnings.simplefilter("error" if storage.capabilities.publication is Publication.RENAME else "ignore")
        again = make_store(storage).resume()
    assert again is not None
    assert again.step == 10


def test_a_missing_file_is_damage(storage: MemoryStorage) -> None:
    """A checkpoint that lacks a file is quarantined like one with a modified file."""
    storage.remove("checkpoint-15/weights/all.bin")
    with pytest.warns(UserWarning, match=r"weights/all.bin is missing.*set aside"):
        assert make_store(storage).resume() is not None


def test_a_new_save_replaces_a_quarantined_checkpoint(storage: MemoryStorage) -> None:
    """The run resumes from the checkpoint before it, and saves at that step again."""
    storage.damage("checkpoint-15/state.json", b"rot")
    store = make_store(storage)
    with pytest.warns(UserWarning, match="set aside"):
        state = store.resume()
    assert state is not None
    save_at(store, state, 15)
    found = newest(storage)
    assert found is not None
    assert (found.name, found.manifest.parent) == ("checkpoint-15", "checkpoint-10")


def test_quarantined_checkpoints_get_separate_names(storage: MemoryStorage) -> None:
    """A quarantined checkpoint never overwrites another."""
    for _ in range(2):
        save_all(storage, "mine", [20])
        storage.damage("checkpoint-20/state.json", b"rot")
        quarantine(storage, "checkpoint-20", "It is rotten.")
    if storage.capabilities.publication is Publication.RENAME:
        assert {".hexloop/damaged-1-checkpoint-20", ".hexloop/damaged-2-checkpoint-20"} <= set(names(storage))
    assert sum(data == b"rot" for data in tree(storage).values()) == 2


def test_a_folder_without_a_manifest_is_not_touched(storage: MemoryStorage) -> None:
    """It may belong to another program or be unfinished: it is skipped."""
    storage.write("checkpoint-20/pytorch_model.bin", [b"foreign"])
    with pytest.warns(UserWarning, match=r"is skipped: checkpoint-20 .* has no manifest.json") as caught:
        state = make_store(storage).resume()
    assert state is not None
    assert state.step == 15
    assert not any("set aside" in str(warning.message) for warning in caught)
    assert tree(storage, "checkpoint-20") == {"checkpoint-20/pytorch_model.bin": b"foreign"}


def test_an_unreadable_checkpoint_is_not_touched(storage: MemoryStorage) -> None:
    """A file that the storage fails to read is not damage."""
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "read", within="state.json")])
    with pytest.warns(UserWarning, match="cannot be read"):
        state = make_store(faulty).resume()
    assert state is not None
    assert state.step == 10
    assert "checkpoint-15" in names(storage)


@pytest.mark.parametrize("missing", [[], ["checkpoint-10/state.json"]])
def test_a_run_does_not_restart_if_no_checkpoint_can_be_read(storage: MemoryStorage, missing: list[str]) -> None:
    """If the storage fails to read every checkpoint, an error is raised, and they stay where they are."""
    for path in missing:
        storage.remove(path)
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "read", times=9, within="state.json")])
    with (
        pytest.warns(UserWarning, match="is skipped"),
        pytest.raises(UnreadableCheckpointError, match=r"checkpoint-15 .* cannot be read .* set another output_dir"),
    ):
        make_store(faulty).resume()
    assert {"checkpoint-5", "checkpoint-15"} <= set(names(storage))


def test_a_damaged_checkpoint_that_cannot_be_moved_is_skipped(storage: MemoryStorage) -> None:
    """A run resumes from its good checkpoints on a read-only storage."""
    storage.damage("checkpoint-15/state.json", b"rot")
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "write", times=9)])
    with pytest.warns(UserWarning, match="could not be set aside"):
        state = make_store(faulty).resume()
    assert state is not None
    assert state.step == 10


def test_a_lookup_changes_nothing(storage: MemoryStorage) -> None:
    """Asking for the newest checkpoint only warns, and leaves everything as it is."""
    storage.damage("checkpoint-15/state.json", b"rot")
    before = tree(storage)
    with pytest.warns(UserWarning, match="is skipped"):
        assert newest(storage) is not None
    assert tree(storage) == before


def test_a_newer_schema_is_not_damage(storage: MemoryStorage) -> None:
    """A checkpoint of a newer hexloop is refused instead of silently resuming from an older one."""
    manifest = storage.read("checkpoint-15/manifest.json")
    newer = unseal(b"".join(manifest)).replace(
        f'"schema_version": {SCHEMA_VERSION}'.encode(), f'"schema_version": {SCHEMA_VERSION + 1}'.encode()
    )
    assert SCHEMA_VERSION + 1 not in MIGRATIONS
    storage.damage("checkpoint-15/manifest.json", seal(newer))
    with pytest.raises(NewerSchemaError, match="schema version"):
        make_store(storage).resume()
    assert "checkpoint-15" in names(storage)


def test_an_abandoned_branch_is_not_resumed(storage: MemoryStorage) -> None:
    """A run that resumed from step 5 and saved at 7 resumes from 7, though it had reached 15 before."""
    store = make_store(storage)
    state = store.resume("checkpoint-5")
    assert state is not None
    save_at(store, state, 7)
    found = newest(storage)
    assert found is not None
    assert found.manifest.step == 7
    storage.damage("checkpoint-7/state.json", b"rot")
    with pytest.warns(UserWarning, match="checkpoint-7"):
        before = newest(storage)
    assert before is not None
    assert before.manifest.step == 5


def test_an_abandoned_branch_is_used_as_a_last_resort(storage: MemoryStorage) -> None:
    """A checkpoint of an abandoned branch is used if no other is good."""
    store = make_store(storage)
    state = store.resume("checkpoint-5")
    assert state is not None
    save_at(store, state, 7)
    for step in (5, 7):
        storage.damage(f"checkpoint-{step}/state.json", b"rot")
    with pytest.warns(UserWarning, match="is skipped"):
        found = newest(storage)
    assert found is not None
    assert found.manifest.step == 15


def test_several_runs_need_a_name(storage: MemoryStorage) -> None:
    """If a storage holds several runs, none is chosen; the message names the last checkpoint of each."""
    save_all(storage, "another", [12])
    with pytest.raises(
        CheckpointError, match=r"2 runs: checkpoint-12 of the run another, checkpoint-15 of the run mine\. Name"
    ):
        make_store(storage).resume()
    assert make_store(storage).resume("checkpoint-12") == RunState(
        run="another", step=12, parent_checkpoint=None, best_checkpoint=None
    )


def test_runs_are_listed_with_their_last_checkpoint(storage: MemoryStorage) -> None:
    """Each run is listed with its checkpoint at the highest step; folders without a readable manifest are left out."""
    save_all(storage, "another", [12])
    storage.write("checkpoint-99/model.bin", [b"foreign"])
    assert runs_in(storage) == {"mine": "checkpoint-15", "another": "checkpoint-12"}
    assert last_run(storage) == "another"
