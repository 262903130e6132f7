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
    """Three checkpoints of one run, on a storage of either kind."""
    storage = MemoryStorage(request.param)
    save_all(storage, "mine", [5, 10, 15])
    return storage


@pytest.mark.parametrize("damaged", ["state.json", "weights/all.bin", "manifest.json"])
def test_a_damaged_checkpoint_is_set_aside(storage: MemoryStorage, damaged: str) -> None:
    """It is none any more, nothing of it is gone, a file says what is wrong, and the next start warns of nothing."""
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
    """A checkpoint that lacks a file is set aside like one whose file is another."""
    storage.remove("checkpoint-15/weights/all.bin")
    with pytest.warns(UserWarning, match=r"weights/all.bin is missing.*set aside"):
        assert make_store(storage).resume() is not None


def test_what_is_set_aside_makes_place_for_a_new_save(storage: MemoryStorage) -> None:
    """The run goes on from the one before, and saves at that step anew."""
    storage.damage("checkpoint-15/state.json", b"rot")
    store = make_store(storage)
    with pytest.warns(UserWarning, match="set aside"):
        state = store.resume()
    assert state is not None
    save_at(store, state, 15)
    found = newest(storage)
    assert found is not None
    assert (found.name, found.manifest.parent) == ("checkpoint-15", "checkpoint-10")


def test_several_damaged_ones_get_names_of_their_own(storage: MemoryStorage) -> None:
    """Setting aside never overwrites what was set aside before."""
    for _ in range(2):
        save_all(storage, "mine", [20])
        storage.damage("checkpoint-20/state.json", b"rot")
        quarantine(storage, "checkpoint-20", "It is rotten.")
    if storage.capabilities.publication is Publication.RENAME:
        assert {"damaged-1-checkpoint-20", "damaged-2-checkpoint-20"} <= set(names(storage))
    assert sum(data == b"rot" for data in tree(storage).values()) == 2


def test_what_is_none_of_ours_stays_where_it_is(storage: MemoryStorage) -> None:
    """A folder without a manifest may be another program's, or in the making: it is passed over and not touched."""
    storage.write("checkpoint-20/pytorch_model.bin", [b"foreign"])
    with pytest.warns(UserWarning, match=r"is skipped: checkpoint-20 .* has no manifest.json") as caught:
        state = make_store(storage).resume()
    assert state is not None
    assert state.step == 15
    assert not any("set aside" in str(warning.message) for warning in caught)
    assert tree(storage, "checkpoint-20") == {"checkpoint-20/pytorch_model.bin": b"foreign"}


def test_what_cannot_be_read_now_stays_where_it_is(storage: MemoryStorage) -> None:
    """A file that the storage does not give is no damage."""
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "digest")])
    with pytest.warns(UserWarning, match="cannot be read"):
        state = make_store(faulty).resume()
    assert state is not None
    assert state.step == 10
    assert "checkpoint-15" in names(storage)


@pytest.mark.parametrize("missing", [[], ["checkpoint-10/state.json"]])
def test_where_none_can_be_read_now_a_run_does_not_begin_anew(storage: MemoryStorage, missing: list[str]) -> None:
    """A storage that gives no checkpoint now has not lost them: that is an error, and they stay where they are."""
    for path in missing:
        storage.remove(path)
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "digest", times=9)])
    with (
        pytest.warns(UserWarning, match="is skipped"),
        pytest.raises(UnreadableCheckpointError, match=r"checkpoint-15 .* cannot be read .* set another output_dir"),
    ):
        make_store(faulty).resume()
    assert {"checkpoint-5", "checkpoint-15"} <= set(names(storage))


def test_a_damaged_one_that_cannot_be_moved_is_passed_over(storage: MemoryStorage) -> None:
    """A storage that lets nobody write does not keep a run from its good checkpoints."""
    storage.damage("checkpoint-15/state.json", b"rot")
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "write", times=9)])
    with pytest.warns(UserWarning, match="could not be set aside"):
        state = make_store(faulty).resume()
    assert state is not None
    assert state.step == 10


def test_looking_changes_nothing(storage: MemoryStorage) -> None:
    """Who only asks for the newest gets the warning, and leaves everything as it is."""
    storage.damage("checkpoint-15/state.json", b"rot")
    before = tree(storage)
    with pytest.warns(UserWarning, match="is skipped"):
        assert newest(storage) is not None
    assert tree(storage) == before


def test_a_newer_schema_is_no_damage(storage: MemoryStorage) -> None:
    """A checkpoint of a newer hexloop is refused, rather than an older one taken behind the user's back."""
    manifest = storage.read("checkpoint-15/manifest.json")
    newer = unseal(b"".join(manifest)).replace(
        f'"schema_version": {SCHEMA_VERSION}'.encode(), f'"schema_version": {SCHEMA_VERSION + 1}'.encode()
    )
    assert SCHEMA_VERSION + 1 not in MIGRATIONS
    storage.damage("checkpoint-15/manifest.json", seal(newer))
    with pytest.raises(NewerSchemaError, match="schema version"):
        make_store(storage).resume()
    assert "checkpoint-15" in names(storage)


def test_a_past_that_was_given_up_is_not_taken_up_again(storage: MemoryStorage) -> None:
    """A run that went on from step 5, and saved at 7, goes on from there, though its former self had come to 15."""
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


def test_where_the_way_that_led_there_is_gone_any_good_one_serves(storage: MemoryStorage) -> None:
    """Rather than none, a checkpoint of a past that was given up is taken."""
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


def test_several_runs_are_told_apart_by_name(storage: MemoryStorage) -> None:
    """Where a storage holds several runs, none is guessed; the message names the last checkpoint of each."""
    save_all(storage, "another", [12])
    with pytest.raises(
        CheckpointError, match=r"2 runs: checkpoint-12 of the run another, checkpoint-15 of the run mine\. Name"
    ):
        make_store(storage).resume()
    assert make_store(storage).resume("checkpoint-12") == RunState(
        run="another", step=12, parent_checkpoint=None, best_checkpoint=None
    )


def test_the_runs_of_a_storage_are_named_with_their_last(storage: MemoryStorage) -> None:
    """Each run with its checkpoint at the highest step; what has no readable manifest is of none."""
    save_all(storage, "another", [12])
    storage.write("checkpoint-99/model.bin", [b"foreign"])
    assert runs_in(storage) == {"mine": "checkpoint-15", "another": "checkpoint-12"}
    assert last_run(storage) == "another"
