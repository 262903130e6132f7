"""Finding and verifying checkpoints."""

from __future__ import annotations

import pytest
from attrs import evolve

from hexloop.adapters.storage.faults import Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints import reading
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import last_run, newest, open_checkpoint
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError, StorageError, UnreadableCheckpointError
from hexloop.ports.storage import Storage, Stored
from tests.unit.checkpoints.small_store import save_all, tree


@pytest.fixture
def storage() -> MemoryStorage:
    """Return a storage with three checkpoints of the run "mine"."""
    storage = MemoryStorage()
    save_all(storage, "mine", [9, 10, 100])
    return storage


def newest_name(storage: Storage, run: str | None = None) -> str | None:
    checkpoint = newest(storage, run)
    return checkpoint.name if checkpoint else None


def test_the_newest_is_the_one_with_the_highest_step(storage: MemoryStorage) -> None:
    """Steps are compared as numbers; other folders and files are ignored."""
    storage.write("runs/events", [b"x"])
    storage.write("checkpoint-1000", [b"a file, not a folder"])
    assert newest_name(storage) == "checkpoint-100"


def test_an_empty_storage_has_no_newest() -> None:
    """A storage without checkpoints has nothing to resume from."""
    assert newest(MemoryStorage()) is None


def test_checkpoints_of_other_runs_do_not_count(storage: MemoryStorage) -> None:
    """Newer checkpoints of other runs are neither returned nor warned of if a run is named."""
    save_all(storage, "another", [200])
    assert newest_name(storage, "mine") == "checkpoint-100"
    assert newest_name(storage, "unknown") is None
    with pytest.raises(
        CheckpointError, match="2 runs: checkpoint-200 of the run another, checkpoint-100 of the run mine"
    ):
        newest(storage)
    assert last_run(storage) == "another"
    assert last_run(MemoryStorage()) is None


def test_a_good_checkpoint_is_verified(storage: MemoryStorage) -> None:
    """Verification returns the manifest with the files in the folder; additional files are ignored."""
    storage.write("checkpoint-10/notes.txt", [b"mine"])
    checkpoint = verify(storage, "checkpoint-10")
    assert (checkpoint.name, checkpoint.manifest.step) == ("checkpoint-10", 10)
    assert sorted(checkpoint.manifest.files) == ["state.json", "weights/all.bin"]
    assert checkpoint.manifest == read_manifest(storage, "checkpoint-10")


def test_every_flipped_bit_is_detected(storage: MemoryStorage) -> None:
    """A changed bit in any file makes the checkpoint bad, and an older one is used."""
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


def test_every_missing_or_truncated_file_is_detected(storage: MemoryStorage) -> None:
    """The checkpoint is bad, and the message names the file."""
    for path, data in tree(storage, "checkpoint-100").items():
        name = path.removeprefix("checkpoint-100/")
        storage.damage(path, data[:-1])
        with pytest.raises(CheckpointError, match=name if name != "manifest.json" else "its manifest is damaged"):
            verify(storage, "checkpoint-100")
        storage.remove(path)
        with pytest.raises(CheckpointError, match=name):
            verify(storage, "checkpoint-100")
        storage.write(path, [data])


def test_swapped_files_are_detected(storage: MemoryStorage) -> None:
    """Files cannot be swapped between two checkpoints or within one."""
    mine, other = tree(storage, "checkpoint-100"), tree(storage, "checkpoint-10")
    for path, data in mine.items():
        storage.damage(path, other[path.replace("-100/", "-10/")])
        with pytest.raises(CheckpointError):
            verify(storage, "checkpoint-100")
        storage.damage(path, data)


def test_all_problems_are_reported_at_once(storage: MemoryStorage) -> None:
    """The message names each bad file with its problem."""
    storage.damage("checkpoint-10/state.json", b"")
    storage.remove("checkpoint-10/weights/all.bin")
    with pytest.raises(CheckpointError, match=r"state.json has 0 bytes.*; weights/all.bin is missing"):
        verify(storage, "checkpoint-10")


def test_a_renamed_checkpoint_has_no_step(storage: MemoryStorage) -> None:
    """A checkpoint under another step's name is refused; under a name without a step it can be requested."""
    storage.move("checkpoint-10", "checkpoint-500")
    storage.move("checkpoint-9", "kept-for-later")
    with pytest.raises(CheckpointError, match="holds checkpoint-10"):
        verify(storage, "checkpoint-500")
    with pytest.warns(UserWarning, match="is skipped"):
        assert newest_name(storage) == "checkpoint-100"
    assert open_checkpoint(storage, "kept-for-later").manifest.step == 9


def test_a_bad_checkpoint_by_name_lists_the_good_ones(storage: MemoryStorage) -> None:
    """The error for a damaged or missing checkpoint lists those that can be used."""
    storage.damage("checkpoint-100/weights/all.bin", b"")
    for name in ("checkpoint-100", "checkpoint-11"):
        with pytest.raises(CheckpointError, match=rf"{name} in memory .*good checkpoints: checkpoint-10, checkpoint-9"):
            open_checkpoint(storage, name)
    with pytest.raises(CheckpointError, match="There is no good checkpoint"):
        open_checkpoint(MemoryStorage(), "checkpoint-1")


def test_an_unsupported_digest_is_not_damage(storage: MemoryStorage) -> None:
    """A file with a digest that the storage cannot compute is not reported as damaged."""
    manifest = read_manifest(storage, "checkpoint-10")
    files = {path: Stored(stored.size, "crc32:0") for path, stored in manifest.files.items()}
    storage.damage("checkpoint-10/manifest.json", evolve(manifest, files=files).to_json())
    with pytest.raises(
        UnreadableCheckpointError,
        match=r"of the kind crc32, and this storage computes blake2b\. Configure the storage with the digest 'crc32'",
    ):
        verify(storage, "checkpoint-10")


def test_an_unreadable_checkpoint_is_skipped(storage: MemoryStorage) -> None:
    """A checkpoint with a file that cannot be read is skipped."""
    faulty = FaultyStorage(storage, [Fault(1, Effect.FAIL, "read", within="state.json")])
    with pytest.warns(UserWarning, match="cannot be read"):
        assert newest_name(faulty) == "checkpoint-10"


@pytest.mark.parametrize(("operation", "at"), [("list", 1), ("read", 1)])
def test_an_unavailable_storage_is_an_error(storage: MemoryStorage, operation: str, at: int) -> None:
    """If the storage fails before a manifest is read, no older checkpoint is used instead."""
    with pytest.raises(StorageError):
        newest(FaultyStorage(storage, [Fault(at, Effect.FAIL, operation)]))


def test_a_manifest_that_cannot_be_read_nor_listed_is_an_error(storage: MemoryStorage) -> None:
    """Neither that it exists nor that it does not is known."""
    faults = [Fault(1, Effect.FAIL, "read"), Fault(1, Effect.FAIL, "list")]
    with pytest.raises(StorageError):
        read_manifest(FaultyStorage(storage, faults), "checkpoint-10")


def test_an_unreadable_checkpoint_is_not_listed_as_good(storage: MemoryStorage) -> None:
    """The list of good checkpoints leaves out those that the storage fails to read."""
    faulty = FaultyStorage(storage, [Fault(2, Effect.FAIL, "read")])  # the first looks for checkpoint-11
    with pytest.raises(CheckpointError, match="good checkpoints: checkpoint-10, checkpoint-9"):
        open_checkpoint(faulty, "checkpoint-11")


def test_a_folder_of_checkpoints_is_not_a_checkpoint() -> None:
    """The error for the run's folder in place of a checkpoint names the last checkpoint in it."""
    storage = MemoryStorage()
    save_all(storage, "mine", [5, 20])
    above = MemoryStorage()
    for path, data in tree(storage).items():
        above.write(f"out/{path}", [data])
    with pytest.raises(CheckpointError, match=r"out in .* folder of checkpoints.* last one, out/checkpoint-20"):
        open_checkpoint(above, "out")


def test_a_manifest_that_is_too_long_is_damaged(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read beyond the limit."""
    monkeypatch.setattr(reading, "MAX_MANIFEST_BYTES", 16)
    with pytest.raises(DamagedCheckpointError, match=r"its manifest\.json is invalid: it is longer than 16 bytes"):
        read_manifest(storage, "checkpoint-9")
