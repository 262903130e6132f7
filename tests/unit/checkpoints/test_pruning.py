"""Pruning and surveys of a folder of checkpoints."""

from __future__ import annotations

import pytest

from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import SCHEMA_VERSION, Owner, seal, unseal
from hexloop.domain.checkpoints.reading import checkpoint_steps, verify
from hexloop.domain.checkpoints.survey import (
    FolderStatus,
    leftovers,
    newest_by_run,
    newest_to_keep,
    remove,
    remove_leftover,
    remove_replaced,
    replaced,
    surplus,
    survey,
)
from hexloop.domain.errors import CheckpointError, DamagedCheckpointError
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication
from tests.unit.checkpoints.small_store import checkpoint_names, make_store, names, save_all, save_at, tree

ASIDE_REASON = b"checkpoint-20 is rotten.\n"


@pytest.fixture(params=list(Publication), ids=lambda publication: publication.name.lower())
def storage(request: pytest.FixtureRequest) -> MemoryStorage:
    """Return a storage of either kind with three checkpoints of one run and one of another."""
    storage = MemoryStorage(request.param)
    save_all(storage, "other", [7])
    save_all(storage, "mine", [5, 10, 15])
    return storage


def test_only_the_runs_own_surplus_is_removed(storage: MemoryStorage) -> None:
    """Checkpoints of the lineage that the policy does not keep are removed, and nothing else, even if it is named."""
    newest = newest_to_keep(storage, "mine")
    assert newest.name == "checkpoint-15"
    assert surplus(storage, newest, CheckpointPolicy(1), best="checkpoint-5") == ["checkpoint-10"]
    wished = ["checkpoint-10", "checkpoint-7", "checkpoint-15"]
    assert list(remove(storage, newest, wished)) == ["checkpoint-10"]
    assert names(storage) == checkpoint_names(5, 7, 15)


def test_a_damaged_newest_keeps_everything(storage: MemoryStorage) -> None:
    """Nothing is removed if the newest checkpoint is not good."""
    storage.damage("checkpoint-15/state.json", b"rot")
    with pytest.raises(DamagedCheckpointError, match="Nothing is removed, because the newest"):
        newest_to_keep(storage, "mine")


def test_an_unreadable_later_checkpoint_keeps_everything(storage: MemoryStorage) -> None:
    """A later checkpoint with an unreadable manifest may be this run's newest; one at an earlier step is not."""
    storage.damage("checkpoint-7/manifest.json", b"rot")
    assert newest_to_keep(storage, "mine").name == "checkpoint-15"
    storage.damage("checkpoint-15/manifest.json", b"rot")
    with pytest.raises(CheckpointError, match="checkpoint-15 may be the newest"):
        newest_to_keep(storage, "mine")


def test_a_folder_of_another_program_is_ignored(storage: MemoryStorage) -> None:
    """A folder with the name of a checkpoint but no manifest is not taken for the newest."""
    storage.write("checkpoint-99/pytorch_model.bin", [b"foreign"])
    assert newest_to_keep(storage, "mine").name == "checkpoint-15"


def test_an_unknown_run_is_reported(storage: MemoryStorage) -> None:
    """The message names the run."""
    with pytest.raises(CheckpointError, match="The run unknown"):
        newest_to_keep(storage, "unknown")


def leave_unfinished(storage: MemoryStorage, run: str) -> str:
    """Leave what a save of `run` leaves when it dies, and return the folder."""
    owner = Owner(run, "0")
    if storage.capabilities.publication is Publication.RENAME:
        storage.write(f"{owner.staging_name('checkpoint-20')}/model.bin", [b"half"])
        return owner.staging_name("checkpoint-20")
    storage.write(f"checkpoint-20/{owner.mark}", [])
    storage.write("checkpoint-20/model.bin", [b"half"])
    return "checkpoint-20"


def test_leftovers_belong_to_their_run(storage: MemoryStorage) -> None:
    """A folder that the run did not finish is found and removed completely; another run's is not."""
    folder = leave_unfinished(storage, "mine")
    assert leftovers(storage, "other") == []
    assert leftovers(storage, "mine") == [folder]
    remove_leftover(storage, "mine", folder)
    assert names(storage) == checkpoint_names(5, 7, 10, 15)


def staged_complete() -> tuple[MemoryStorage, str]:
    """Stage a complete checkpoint, as after a lost rename, and return its folder as well."""
    storage = MemoryStorage()
    save_all(storage, "mine", [5, 10])
    folder = Owner("mine", "0").staging_name("checkpoint-10")
    storage.move("checkpoint-10", folder)
    return storage, folder


def test_a_complete_staged_checkpoint_is_not_a_leftover() -> None:
    """It stays for the next resume to publish; without one of its files, it is removed."""
    storage, folder = staged_complete()
    assert leftovers(storage, "mine") == []
    storage.remove(f"{folder}/state.json")
    assert leftovers(storage, "mine") == [folder]


def test_a_checkpoint_staged_by_a_newer_hexloop_is_not_a_leftover() -> None:
    """This hexloop cannot determine whether it is complete."""
    storage, folder = staged_complete()
    body = unseal(b"".join(storage.read(f"{folder}/manifest.json")))
    newer = body.replace(f'"schema_version": {SCHEMA_VERSION}'.encode(), b'"schema_version": 999')
    storage.damage(f"{folder}/manifest.json", seal(newer))
    assert leftovers(storage, "mine") == []
    assert folder in {found.name for found in survey(storage)}


def test_a_survey_classifies_each_folder(storage: MemoryStorage) -> None:
    """Folders are good, damaged, quarantined, unfinished, or another program's."""
    storage.damage("checkpoint-10/state.json", b"rot")
    storage.write("checkpoint-30/pytorch_model.bin", [b"foreign"])
    storage.write("damaged-1-checkpoint-20/damaged.txt", [ASIDE_REASON])
    storage.write("replaced-1-checkpoint-21/model.bin", [b"older"])
    folder = leave_unfinished(storage, "mine")
    before = tree(storage)
    found = {each.name: each for each in survey(storage)}
    assert {name: each.status for name, each in found.items()} == {
        "checkpoint-5": FolderStatus.GOOD,
        "checkpoint-7": FolderStatus.GOOD,
        "checkpoint-10": FolderStatus.BAD,
        "checkpoint-15": FolderStatus.GOOD,
        "checkpoint-30": FolderStatus.NO_CHECKPOINT,
        "damaged-1-checkpoint-20": FolderStatus.SET_ASIDE,
        "replaced-1-checkpoint-21": FolderStatus.SET_ASIDE,
        folder: FolderStatus.UNFINISHED,
    }
    assert found["damaged-1-checkpoint-20"].reason == ASIDE_REASON.decode().strip()
    assert found["replaced-1-checkpoint-21"].reason == "another checkpoint has its name now."
    assert tree(storage) == before


def test_a_survey_shows_what_was_quarantined_in_place() -> None:
    """Where folders cannot be renamed, a folder with a renamed manifest is shown with the reason."""
    storage = MemoryStorage(Publication.MANIFEST_LAST)
    save_all(storage, "mine", [5])
    storage.move("checkpoint-5/manifest.json", "checkpoint-5/damaged-1-manifest.json")
    storage.write("checkpoint-5/damaged.txt", [b"It is rotten."])
    (found,) = survey(storage)
    assert (found.status, found.reason) == (FolderStatus.SET_ASIDE, "It is rotten.")
    with pytest.raises(CheckpointError):
        verify(storage, "checkpoint-5")


@pytest.mark.parametrize("quick", [True, False])
def test_a_survey_shows_what_a_resume_would_publish(quick: bool) -> None:
    """A complete staged checkpoint is distinguished from an incomplete one."""
    storage, folder = staged_complete()
    found = {each.name: each for each in survey(storage, quick)}
    assert found[folder].status is FolderStatus.UNFINISHED
    assert found[folder].reason.startswith("it is complete but not published")
    storage.damage(f"{folder}/manifest.json", b"rot")
    assert {each.name: each.reason for each in survey(storage, quick)}[folder].startswith("a save or a removal")


def test_the_newest_of_each_run_is_shown(storage: MemoryStorage) -> None:
    """Each run would resume from its newest good checkpoint; a quick survey does not verify it."""
    storage.damage("checkpoint-15/state.json", b"rot")
    storage.write("checkpoint-40/model.bin", [b"foreign"])
    assert {run: each.name for run, each in newest_by_run(list(survey(storage))).items()} == {
        "mine": "checkpoint-10",
        "other": "checkpoint-7",
    }
    quick = list(survey(storage, quick=True))
    assert newest_by_run(quick)["mine"].name == "checkpoint-15"
    assert {each.status for each in quick} == {FolderStatus.NOT_VERIFIED, FolderStatus.NO_CHECKPOINT}
    assert all(each.size for each in quick if each.manifest is not None)


def test_a_survey_shows_a_lost_manifest(storage: MemoryStorage) -> None:
    """A checkpoint without its manifest is distinguished from another program's folder by the state in it."""
    storage.write("checkpoint-40/run_state.json", [b"{}"])
    (found,) = [each for each in survey(storage) if each.name == "checkpoint-40"]
    assert (found.status, found.size) == (FolderStatus.BAD, None)


def test_replaced_checkpoints_are_removed_by_request(storage: MemoryStorage) -> None:
    """Of all runs or of one, but neither protected nor damaged ones; saving removes none, with any limit."""
    save_all(storage, "third", [5, 7, 10], limit=1)
    assert sorted(replaced(storage)) == [f".hexloop/replaced-1-checkpoint-{step}" for step in (10, 5, 7)]
    assert checkpoint_steps(storage) == [15, 10]
    storage.write(".hexloop/damaged-1-checkpoint-7/model.bin", [b"x"])
    assert replaced(storage, "oth") == [".hexloop/replaced-1-checkpoint-7"]
    assert replaced(storage, "third") == []
    storage.write(".hexloop/replaced-1-checkpoint-7/protected", [])
    assert replaced(storage, "oth") == []
    for name in replaced(storage):
        remove_replaced(storage, name)
    assert replaced(storage) == []
    assert names(storage, ".hexloop") == ["damaged-1-checkpoint-7", "replaced-1-checkpoint-7"]
    remove_replaced(storage, ".hexloop/replaced-9-checkpoint-9")


def test_a_save_says_that_it_replaces_a_checkpoint(storage: MemoryStorage) -> None:
    """Of another run; not for a folder that is no checkpoint, nor for a further save of its own."""
    notes = list[tuple[str, object]]()
    store = make_store(storage, note=lambda phase, /, **facts: notes.append((phase, facts["checkpoint"])))
    storage.write("checkpoint-8/model.bin", [b"foreign"])
    state = RunState(run="third")
    for step in (5, 8, 9, 10):
        save_at(store, state, step)
    assert [name for phase, name in notes if phase == "replaces"] == ["checkpoint-5", "checkpoint-10"]
