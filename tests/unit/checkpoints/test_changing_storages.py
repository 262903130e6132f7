"""Storages with places that are never read, and storages that another process changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attrs import evolve

from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import Manifest, Owner
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.checkpoints.survey import (
    FolderStatus,
    leftovers,
    newest_to_keep,
    remove,
    remove_leftover,
    surplus,
    survey,
)
from hexloop.domain.errors import DamagedCheckpointError, IrregularFileError, MissingFileError, StorageError
from hexloop.domain.limits import reading_limits
from hexloop.domain.outbox import is_within
from hexloop.domain.run_folder import OWN, own_name, within_own
from hexloop.ports.storage import Entry, Publication, Stored
from tests.unit.checkpoints.small_store import checkpoint_names, names, save_all


class Changing(MemoryStorage):
    """A storage in which some folders lead elsewhere, and others vanish when they are used.

    elsewhere: names of folders. vanishing: folders that another process removes before the next operation on them.
    returning: how often the manifest of a folder vanishes and is there again. failing: folders with a lasting failure.
    lists_sizes: whether entries have sizes.
    """

    elsewhere: frozenset[str] = frozenset()
    vanishing: frozenset[str] = frozenset()
    vanished: type[StorageError] = StorageError
    failing: frozenset[str] = frozenset()
    returning: int = 0
    lists_sizes: bool = True

    def _meet(self, path: str) -> None:
        name = own_name(path).partition("/")[0]
        name = within_own(name) if is_within(path, OWN) else name
        if name in self.elsewhere:
            raise IrregularFileError(f"{path} leads out of the storage.")
        if name in self.failing:
            raise StorageError(f"{path} fails.")
        if name in self.vanishing:
            super().remove(name)
            raise self.vanished(f"{path} has vanished.")
        if self.returning and path.endswith("manifest.json"):
            self.returning -= 1
            raise MissingFileError(f"{path} does not exist.")

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        self._meet(path)
        return super().read(path, start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        if folder in self.elsewhere:
            self._meet(folder)
        found = super().list(folder)
        if not self.lists_sizes:
            found = tuple(Entry(entry.name, entry.is_folder) for entry in found)
        names = [own_name(name) for name in sorted(self.elsewhere) if is_within(name, OWN) == (folder == OWN)]
        own = [Entry(OWN, True)] if not folder and any(is_within(name, OWN) for name in self.elsewhere) else []
        return (*own, *found, *(Entry(name, True) for name in names)) if folder in ("", OWN) else found

    def move(self, source: str, destination: str) -> None:
        self._meet(source)
        super().move(source, destination)

    def remove(self, path: str) -> None:
        self._meet(path)
        super().remove(path)


@pytest.fixture(params=list(Publication), ids=lambda publication: publication.name.lower())
def storage(request: pytest.FixtureRequest) -> Changing:
    storage = Changing(request.param)
    save_all(storage, "mine", [5, 10, 15])
    return storage


def test_a_folder_that_leads_elsewhere_is_named_and_blocks_nothing(storage: Changing) -> None:
    """It is bad in a survey; a resume skips it with a warning, and the others are pruned."""
    storage.elsewhere = frozenset({"checkpoint-20", Owner("mine", "0").staging_name("checkpoint-25")})
    found = {each.name: each for each in survey(storage)}
    assert found["checkpoint-20"].status is FolderStatus.BAD
    assert "leads out of the storage" in found["checkpoint-20"].reason
    with pytest.warns(UserWarning, match="checkpoint-20 in memory cannot be used: its manifest.json is not read"):
        resumed = newest(storage, quarantine=True)
    assert resumed is not None
    assert resumed.name == "checkpoint-15"
    kept = newest_to_keep(storage, "mine")
    assert list(remove(storage, kept, surplus(storage, kept, CheckpointPolicy(1), None))) == [
        "checkpoint-5",
        "checkpoint-10",
    ]
    assert leftovers(storage, "mine") == []


def test_a_checkpoint_that_vanishes_is_not_removed_again(storage: Changing) -> None:
    """Another process removed it first: no error, and it is not reported."""
    kept = newest_to_keep(storage, "mine")
    MemoryStorage.remove(storage, "checkpoint-5")
    storage.vanishing = frozenset({"checkpoint-10"})
    assert list(remove(storage, kept, checkpoint_names(5, 10))) == []
    assert names(storage) == checkpoint_names(15)


def test_a_checkpoint_that_cannot_be_removed_is_an_error(storage: Changing) -> None:
    """It is still there."""
    kept = newest_to_keep(storage, "mine")
    storage.failing = frozenset({"checkpoint-10"})
    with pytest.raises(StorageError, match="fails"):
        list(remove(storage, kept, checkpoint_names(10)))


def test_leftovers_that_vanish_are_no_error(storage: Changing) -> None:
    """Nor are those that are removed while they are looked at."""
    mark = Owner("mine", "0").mark
    renames = storage.capabilities.publication is Publication.RENAME
    left = [f"{mark}-checkpoint-{step}" if renames else f"checkpoint-{step}" for step in (20, 25)]
    for name in left:
        storage.write(f"{name}/{mark}", [])
    assert leftovers(storage, "mine") == left
    storage.vanishing = frozenset(left[:1])
    remove_leftover(storage, "mine", left[0])
    storage.returning = 1
    assert leftovers(storage, "mine") == left[1:]
    storage.vanishing, storage.vanished = frozenset(left), MissingFileError
    remove_leftover(storage, "mine", left[1])
    assert leftovers(storage, "mine") == []


def test_a_manifest_that_is_written_again_is_read(storage: Changing) -> None:
    """It was not there when it was opened, and is when the folder is listed; but this is tried a few times only."""
    storage.returning = 2
    assert read_manifest(storage, "checkpoint-10").step == 10
    storage.returning = 100
    with pytest.raises(MissingFileError):
        read_manifest(storage, "checkpoint-10")


def test_a_file_of_another_size_is_refused_unread(storage: Changing) -> None:
    """The size in the listing is compared before anything of the file is read."""
    (path, *_) = read_manifest(storage, "checkpoint-10").files
    size = len(b"".join(storage.read(f"checkpoint-10/{path}")))
    storage.damage(f"checkpoint-10/{path}", bytes(size + 1))
    with pytest.raises(DamagedCheckpointError, match=f"{path} has {size + 1} bytes and should have {size}"):
        verify(storage, "checkpoint-10")


@pytest.mark.parametrize(("change", "words"), [(1, "is longer than the"), (-1, "bytes and should have")])
def test_a_file_of_another_size_is_refused_without_listed_sizes(storage: Changing, change: int, words: str) -> None:
    """Reading stops behind the size that the manifest has."""
    storage.lists_sizes = False
    (path, *_) = read_manifest(storage, "checkpoint-10").files
    storage.damage(f"checkpoint-10/{path}", bytes(len(b"".join(storage.read(f"checkpoint-10/{path}"))) + change))
    with pytest.raises(DamagedCheckpointError, match=f"{path} .*{words}"):
        verify(storage, "checkpoint-10")


def test_a_long_reason_is_cut(storage: Changing) -> None:
    """The note in a checkpoint that was set aside is read up to its limit."""
    storage.write("damaged-1-checkpoint-3/damaged.txt", [b"because ", b"x" * 100])
    with reading_limits(note_bytes=11):
        (found,) = [each for each in survey(storage) if each.status is FolderStatus.SET_ASIDE]
    assert found.reason == "because xxx"


@pytest.mark.parametrize(
    ("path", "stored", "words"),
    [("../a", Stored(1, "x:y"), "not a path within"), ("a", Stored(-1, "x:y"), "is not of a size from 0")],
)
def test_a_manifest_of_wrong_files_cannot_be_written(path: str, stored: Stored, words: str) -> None:
    """It could not be read."""
    storage = MemoryStorage()
    save_all(storage, "mine", [5])
    manifest = read_manifest(storage, "checkpoint-5")
    assert isinstance(manifest, Manifest)
    with pytest.raises(ValueError, match=words):
        evolve(manifest, files={path: stored}).to_json()
