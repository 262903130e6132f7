from __future__ import annotations

import pytest
from attrs import evolve

from hexloop.adapters.storage.faults import Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import last_run, newest, open_checkpoint
from hexloop.domain.errors import CheckpointError, StorageError, UnreadableCheckpointError
from hexloop.ports.storage import Storage, Stored
from tests.unit.checkpoints.small_store import save_all, tree


@pytest.fixture
def storage() -> MemoryStorage:
    """Three checkpoints of the run "mine"."""
    storage = MemoryStorage()
    save_all(storage, "mine", [9, 10, 100])
    return storage


def newest_name(storage: Storage, run: str | None = None) -> str | None:
    checkpoint = newest(storage, run)
    return checkpoint.name if checkpoint else None


def test_the_newest_is_the_one_with_the_highest_step(storage: MemoryStorage) -> None:
    """Steps are compared as numbers; other folders and files are not looked at."""
    storage.write("runs/events", [b"x"])
    storage.write("checkpoint-1000", [b"a file, not a folder"])
    assert newest_name(storage) == "checkpoint-100"


def test_an_empty_storage_has_no_newest() -> None:
    """Where nothing was ever saved there is nothing to resume from."""
    assert newest(MemoryStorage()) is None


def test_another_runs_checkpoints_are_not_this_ones(storage: MemoryStorage) -> None:
    """Asked for one run's newest, those of others do not count, be they newer, and none is warned of."""
    save_all(storage, "another", [200])
    assert newest_name(storage, "mine") == "checkpoint-100"
    assert newest_name(storage, "nobody") is None
    with pytest.raises(
        CheckpointError, match="2 runs: checkpoint-200 of the run another, checkpoint-100 of the run mine"
    ):
        newest(storage)
    assert last_run(storage) == "another"
    assert last_run(MemoryStorage()) is None


def test_a_good_checkpoint_verifies(storage: MemoryStorage) -> None:
    """Verifying gives the manifest, whose files say what is in the folder; others there do not matter."""
    storage.write("checkpoint-10/notes.txt", [b"mine"])
    checkpoint = verify(storage, "checkpoint-10")
    assert (checkpoint.name, checkpoint.manifest.step) == ("checkpoint-10", 10)
    assert sorted(checkpoint.manifest.files) == ["state.json", "weights/all.bin"]
    assert checkpoint.manifest == read_manifest(storage, "checkpoint-10")


def test_every_flipped_bit_is_found(storage: MemoryStorage) -> None:
    """No bit of any file of a checkpoint can change without its being refused, and an older one taken."""
    for path, data in tree(storage, "checkpoint-100").items():
        for position in range(len(data)):
            changed = bytearray(data)
            changed[position] ^= 1 << position % 8
            storage.damage(path, bytes(changed))
            with pytest.raises(CheckpointError):
                verify(storage, "checkpoint-100")
        with pytest.warns(UserWarning, match="checkpoint-100 in memory"):
            assert newest_name(storage) == "checkpoint-10"
        storage.damage(path, data)
    assert newest_name(storage) == "checkpoint-100"


def test_every_missing_or_shortened_file_is_found(storage: MemoryStorage) -> None:
    """A file that is not there, or ends early, makes the checkpoint bad, and the message names it."""
    for path, data in tree(storage, "checkpoint-100").items():
        name = path.removeprefix("checkpoint-100/")
        storage.damage(path, data[:-1])
        with pytest.raises(CheckpointError, match=name if name != "manifest.json" else "its manifest is damaged"):
            verify(storage, "checkpoint-100")
        storage.remove(path)
        with pytest.raises(CheckpointError, match=name):
            verify(storage, "checkpoint-100")
        storage.write(path, [data])


def test_files_that_changed_places_are_found(storage: MemoryStorage) -> None:
    """Two checkpoints' files, or two files of one, cannot stand for each other."""
    mine, other = tree(storage, "checkpoint-100"), tree(storage, "checkpoint-10")
    for path, data in mine.items():
        storage.damage(path, other[path.replace("-100/", "-10/")])
        with pytest.raises(CheckpointError):
            verify(storage, "checkpoint-100")
        storage.damage(path, data)


def test_all_that_is_wrong_is_said_at_once(storage: MemoryStorage) -> None:
    """The message names each bad file with what is wrong with it."""
    storage.damage("checkpoint-10/state.json", b"")
    storage.remove("checkpoint-10/weights/all.bin")
    with pytest.raises(CheckpointError, match=r"state.json has 0 bytes.*; weights/all.bin is missing"):
        verify(storage, "checkpoint-10")


def test_a_renamed_checkpoint_is_no_checkpoint_of_that_step(storage: MemoryStorage) -> None:
    """A checkpoint under another step's name is refused; under a name without a step it can be asked for."""
    storage.move("checkpoint-10", "checkpoint-500")
    storage.move("checkpoint-9", "kept-for-later")
    with pytest.raises(CheckpointError, match="holds checkpoint-10"):
        verify(storage, "checkpoint-500")
    with pytest.warns(UserWarning, match="is skipped"):
        assert newest_name(storage) == "checkpoint-100"
    assert open_checkpoint(storage, "kept-for-later").manifest.step == 9


def test_a_bad_checkpoint_by_name_names_the_good_ones(storage: MemoryStorage) -> None:
    """Who asks for one that is damaged, or is not there, is told which ones could be taken."""
    storage.damage("checkpoint-100/weights/all.bin", b"")
    for name in ("checkpoint-100", "checkpoint-11"):
        with pytest.raises(CheckpointError, match=rf"{name} in memory .*good checkpoints: checkpoint-10, checkpoint-9"):
            open_checkpoint(storage, name)
    with pytest.raises(CheckpointError, match="There is no good checkpoint"):
        open_checkpoint(MemoryStorage(), "checkpoint-1")


def test_digests_of_another_kind_are_told_apart_from_damage(storage: MemoryStorage) -> None:
    """A file whose digest is of a kind that the storage does not compute is not said to be damaged."""
    manifest = read_manifest(storage, "checkpoint-10")
    files = {path: Stored(stored.size, "md5:0") for path, stored in manifest.files.items()}
    storage.damage("checkpoint-10/manifest.json", evolve(manifest, files=files).to_json())
    with pytest.raises(
        UnreadableCheckpointError,
        match=r"of the kind md5, and this storage computes blake2b\. Configure the storage with the digest 'md5'",
    ):
        verify(storage, "checkpoint-10")


def test_what_cannot_be_read_is_passed_over(storage: MemoryStorage) -> None:
    """A checkpoint one of whose files cannot be read is passed over."""
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "digest")])
    with pytest.warns(UserWarning, match="cannot be read"):
        assert newest_name(faulty) == "checkpoint-10"


@pytest.mark.parametrize(("operation", "at"), [("list", 1), ("list", 2), ("read", 1)])
def test_a_storage_that_does_not_answer_is_an_error(storage: MemoryStorage, operation: str, at: int) -> None:
    """Where the storage fails before a manifest is read, no older checkpoint is taken instead."""
    with pytest.raises(StorageError):
        newest(FaultyStorage(storage, [Fault(at, Effect.FAIL, operation)]))


def test_one_that_cannot_be_read_is_not_among_the_good_ones(storage: MemoryStorage) -> None:
    """The list of good checkpoints leaves out those that the storage does not give."""
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "read")])
    with pytest.raises(CheckpointError, match="good checkpoints: checkpoint-10, checkpoint-9"):
        open_checkpoint(faulty, "checkpoint-11")


def test_a_folder_of_checkpoints_is_no_checkpoint() -> None:
    """Whoever names the run's folder for one of its checkpoints is told so, with the last of them."""
    storage = MemoryStorage()
    save_all(storage, "mine", [5, 20])
    above = MemoryStorage()
    for path, data in tree(storage).items():
        above.write(f"out/{path}", [data])
    with pytest.raises(CheckpointError, match=r"out in .* folder of checkpoints.* last one, out/checkpoint-20"):
        open_checkpoint(above, "out")
