"""Publishing a checkpoint by rename or in place, and cleaning up."""

from __future__ import annotations

import pytest

from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import Publisher, RenamingPublisher, publisher_for
from hexloop.domain.checkpoints.in_place import InPlacePublisher
from hexloop.domain.checkpoints.manifest import Owner, seal
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication
from tests.unit.checkpoints.small_store import make_store, names, save_all, save_at, tree
from tests.unit.checkpoints.test_manifest import sealed

MINE, LATER, OTHER = Owner("mine", "2"), Owner("mine", "3"), Owner("other", "1")


@pytest.fixture(params=list(Publication), ids=lambda publication: publication.name.lower())
def storage(request: pytest.FixtureRequest) -> MemoryStorage:
    """Return an empty storage of either kind."""
    return MemoryStorage(request.param)


def test_the_storage_decides_how_to_publish() -> None:
    """A storage with atomic renames uses them; any other gets the manifest as the last file."""
    assert isinstance(publisher_for(MemoryStorage(Publication.RENAME), MINE), RenamingPublisher)
    assert isinstance(publisher_for(MemoryStorage(Publication.MANIFEST_LAST), MINE), InPlacePublisher)


def start_save(storage: MemoryStorage, owner: Owner, name: str) -> Publisher:
    """Return a save that has written its first file."""
    publisher = publisher_for(storage, owner)
    folder = publisher.begin(name)
    storage.write(f"{folder}/model.bin", [b"half"])
    return publisher


def test_an_aborted_save_leaves_nothing(storage: MemoryStorage) -> None:
    """Nothing of an aborted save is left, even if it had its manifest."""
    publisher = start_save(storage, MINE, "checkpoint-5")
    publisher.abandon("checkpoint-5")
    assert tree(storage) == {}
    start_save(storage, MINE, "checkpoint-5").publish("checkpoint-5", b"manifest")
    publisher.delete("checkpoint-5")
    assert tree(storage) == {}


def test_cleanup_removes_only_leftovers_of_this_run(storage: MemoryStorage) -> None:
    """Unfinished saves of this session and earlier ones are removed; those of later ones and other runs stay."""
    save_all(storage, "mine", [1])
    start_save(storage, LATER, "checkpoint-4")
    start_save(storage, OTHER, "checkpoint-5")
    for path in ("checkpoint-6/model.bin", "notes.txt", "runs/.unfinished/notes.txt", f"runs/{MINE.mark}"):
        storage.write(path, [b"another's"])
    others = tree(storage)
    start_save(storage, Owner("mine", "1"), "checkpoint-2")
    start_save(storage, MINE, "checkpoint-3")
    assert tree(storage) != others
    publisher_for(storage, MINE).clean_up()
    assert tree(storage) == others


def test_a_finished_checkpoint_loses_only_its_marker() -> None:
    """If a process died between the manifest and the removal of the marker, cleanup leaves the checkpoint complete."""
    storage = MemoryStorage(Publication.MANIFEST_LAST)
    save_all(storage, "mine", [1])
    whole = tree(storage)
    storage.write(f"checkpoint-1/{MINE.mark}", [])
    publisher_for(storage, MINE).clean_up()
    assert tree(storage) == whole


def test_a_finished_checkpoint_of_a_newer_hexloop_is_kept() -> None:
    """A complete manifest counts even if this hexloop cannot parse it."""
    storage = MemoryStorage(Publication.MANIFEST_LAST)
    save_all(storage, "mine", [1])
    storage.damage("checkpoint-1/manifest.json", sealed(schema_version=99))
    storage.write(f"checkpoint-1/{MINE.mark}", [])
    whole = tree(storage)
    publisher_for(storage, MINE).clean_up()
    assert tree(storage).keys() == whole.keys() - {f"checkpoint-1/{MINE.mark}"}


def test_a_torn_manifest_with_a_marker_is_unfinished() -> None:
    """A partly written manifest is not a checkpoint, and the marked folder is removed."""
    storage = MemoryStorage(Publication.MANIFEST_LAST)
    save_all(storage, "mine", [1])
    data = tree(storage)["checkpoint-1/manifest.json"]
    storage.damage("checkpoint-1/manifest.json", data[:-5])
    storage.write(f"checkpoint-1/{MINE.mark}", [])
    publisher_for(storage, MINE).clean_up()
    assert tree(storage) == {}


def test_a_removal_can_be_repeated() -> None:
    """A checkpoint that still has this session's marker can be removed."""
    storage = MemoryStorage(Publication.MANIFEST_LAST)
    save_all(storage, "mine", [1])
    storage.write(f"checkpoint-1/{MINE.mark}", [])
    publisher_for(storage, MINE).delete("checkpoint-1")
    assert tree(storage) == {}


def test_another_runs_unfinished_save_keeps_its_marker() -> None:
    """A folder in the way keeps its writer's marker, so that the writer can clean it up under its new name."""
    storage = MemoryStorage(Publication.MANIFEST_LAST)
    start_save(storage, OTHER, "checkpoint-5")
    start_save(storage, MINE, "checkpoint-5")
    assert names(storage, ".hexloop/replaced-1-checkpoint-5") == [OTHER.mark, "model.bin"]
    publisher_for(storage, MINE).clean_up()
    assert names(storage) == [".hexloop/replaced-1-checkpoint-5"]
    publisher_for(storage, OTHER).clean_up()
    assert names(storage) == []


def test_a_published_checkpoint_is_durable(storage: MemoryStorage) -> None:
    """A power cut right after a save does not damage the checkpoint."""
    save_all(storage, "mine", [1, 2])
    storage.crash()
    assert verify(storage, "checkpoint-2").manifest.step == 2


def test_a_checkpoint_is_removed_manifest_first_in_place() -> None:
    """A deletion that stops after its first removal leaves nothing that looks like a checkpoint."""
    storage = MemoryStorage(Publication.MANIFEST_LAST)
    publisher = publisher_for(storage, Owner("mine", "1"))
    folder = publisher.begin("checkpoint-1")
    storage.write(f"{folder}/a.bin", [b"sorts before the manifest"])
    publisher.publish("checkpoint-1", seal(b'{\n  "a": 1\n}\n'))
    seen = FaultyStorage(storage, [Fault(2, Effect.DIE, "remove", done=0)])
    with pytest.raises(Died):
        publisher_for(seen, Owner("mine", "1")).delete("checkpoint-1")
    assert "manifest.json" not in [entry.name for entry in storage.list("checkpoint-1")]


def test_a_published_checkpoint_survives_later_errors(storage: MemoryStorage) -> None:
    """An interrupt right after publication does not undo it."""

    def note(phase: str, /, **_: object) -> None:
        if phase == "published":
            raise KeyboardInterrupt

    store = make_store(storage, note=note)
    with pytest.raises(KeyboardInterrupt):
        save_at(store, RunState(run="mine"), 5)

    assert verify(storage, "checkpoint-5").manifest.step == 5


def test_a_death_during_quarantine_leaves_only_what_cleanup_removes() -> None:
    """At whichever operation the process dies, only complete checkpoints remain after cleanup."""
    operation = 0
    deaths = 0
    while True:
        operation += 1
        storage = MemoryStorage(Publication.MANIFEST_LAST)
        save_all(storage, "mine", [1])
        whole = tree(storage)["checkpoint-1/weights/all.bin"]
        dying = FaultyStorage(storage, [Fault(operation, Effect.DIE)])
        try:
            publisher_for(dying, LATER).begin("checkpoint-1")
        except Died:
            deaths += 1
        publisher_for(storage, LATER).clean_up()
        left = tree(storage)
        assert whole in [data for path, data in left.items() if path.endswith("weights/all.bin")]
        for folder in names(storage):
            assert f"{folder}/manifest.json" in left
            assert not any(LATER.left_behind(entry.name) for entry in storage.list(folder))
        if not dying.dead:
            break
    assert deaths > 8
