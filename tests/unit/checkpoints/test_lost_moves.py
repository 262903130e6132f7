"""A disk that acknowledges what only its cache holds, and loses it in a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from hexloop.domain.checkpoints.names import MANIFEST, Owner
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import CheckpointError
from hexloop.domain.events import CheckpointPublished
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication
from hexloop.testing import Effect, Fault, FaultyStorage, MemoryStorage
from tests.unit.checkpoints.small_store import make_store, names, save_at, tree, weights_at

pytestmark = pytest.mark.filterwarnings("ignore:.*(was not saved|is skipped|could not be removed)")

SAVES = 4


def life(fault: Fault | None, publication: Publication, limit: int) -> tuple[MemoryStorage, FaultyStorage, list[int]]:
    """Save four times, and lose power; gives the disk, as it was seen by the process, and what that was told."""
    disk = MemoryStorage(publication)
    seen = FaultyStorage(disk, [fault] if fault else [], disk.losing)
    store, state = make_store(seen, limit), RunState(run="mine")
    told = [
        event.step
        for step in range(1, SAVES + 1)
        for event in save_at(store, state, step)
        if isinstance(event, CheckpointPublished)
    ]
    disk.crash()
    return disk, seen, told


def losses(publication: Publication, limit: int, operation: str) -> Iterator[tuple[MemoryStorage, list[int]]]:
    """What is left where one operation of that name was lost, for each of them."""
    _, seen, _ = life(None, publication, limit)
    many = [name for name, _ in seen.operations].count(operation)
    assert many >= 2
    for at in range(1, many + 1):
        disk, _, told = life(Fault(at, Effect.LOSE, operation), publication, limit)
        yield disk, told


def whole(disk: MemoryStorage) -> list[int]:
    """The steps of the complete checkpoints, under whatever name."""
    found = []
    for name in names(disk):
        with suppress(CheckpointError):
            found.append(verify(disk, name).manifest.step)
    return sorted(found)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("publication", list(Publication))
def test_a_disk_that_keeps_its_promises_loses_nothing(publication: Publication, limit: int) -> None:
    """Where what was acknowledged is durable, a power cut after the last save leaves the newest checkpoint whole."""
    disk, _, told = life(None, publication, limit)
    assert told[-1] == SAVES
    assert whole(disk)[-1] == SAVES
    assert b"".join(disk.read(f"checkpoint-{SAVES}/weights/all.bin")) == weights_at("mine", SAVES)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_lost_rename_leaves_the_checkpoint_whole_under_another_name(limit: int) -> None:
    """Whichever rename is lost, the last that was told is whole: published, or still staged."""
    for disk, told in losses(Publication.RENAME, limit, "move"):
        assert whole(disk)[-1] == told[-1]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_run_goes_on_from_a_checkpoint_whose_rename_was_lost(limit: int) -> None:
    """Whichever rename is lost, the next process finds the last that was told, and nothing is left over in the end."""
    for disk, told in losses(Publication.RENAME, limit, "move"):
        store = make_store(disk, limit)
        state = store.resume()
        assert state is not None
        assert state.step == told[-1]
        save_at(store, state, SAVES + 1)
        assert names(disk)[-1] == f"checkpoint-{SAVES + 1}"
        assert len(names(disk)) == limit


def test_a_staged_checkpoint_that_is_not_whole_stays_hidden() -> None:
    """A folder that lost its manifest or a file with the rename is cleaned up, and not published."""
    for missing in ("manifest.json", "weights/all.bin"):
        disk = MemoryStorage()
        save_at(make_store(disk), RunState(run="mine"), 1)
        save_at(make_store(disk), RunState(run="mine"), 2)
        staged = Owner("mine", "0").staging_name("checkpoint-2")
        disk.move("checkpoint-2", staged)
        disk.remove(f"{staged}/{missing}")
        store = make_store(disk)
        state = store.resume()
        assert state is not None
        assert state.step == 1
        save_at(store, state, 3)
        assert names(disk) == ["checkpoint-1", "checkpoint-3"]


def test_what_another_run_is_about_to_publish_is_left_to_it() -> None:
    """A run that is resumed beside a living one, or from its folder, takes nothing out of its hands."""
    disk = MemoryStorage()
    save_at(make_store(disk), RunState(run="living"), 1)
    for step in (2, 3):
        save_at(make_store(disk), RunState(run="living"), step)
    save_at(make_store(disk), RunState(run="mine"), 5)
    disk.move("checkpoint-3", Owner("living", "9").staging_name("checkpoint-3"))
    before = tree(disk)
    for store, source in ((make_store(disk), None), (make_store(MemoryStorage()), disk)):
        for name in ("checkpoint-5", "checkpoint-1") if source else ("checkpoint-5",):
            assert store.resume(name, source) is not None
    with pytest.raises(CheckpointError, match="2 runs"):
        make_store(disk).resume()
    assert tree(disk) == before
    assert make_store(disk).resume("checkpoint-2") is not None
    assert names(disk, "checkpoint-3")


def test_a_storage_that_lets_nobody_write_can_be_resumed_from() -> None:
    """What is staged stays where it is, and the run goes on from what is published."""
    disk = MemoryStorage()
    for step in (1, 2):
        save_at(make_store(disk), RunState(run="mine"), step)
    disk.move("checkpoint-2", Owner("mine", "0").staging_name("checkpoint-2"))
    state = make_store(FaultyStorage(disk, [Fault(1, Effect.FAIL, "move", times=9)])).resume()
    assert state is not None
    assert state.step == 1


def test_with_two_kept_a_lost_rename_costs_one_checkpoint_at_most() -> None:
    """Under the name that readers look for, there is still the one before."""
    for disk, told in losses(Publication.RENAME, 2, "move"):
        published = [step for step in whole(disk) if MANIFEST in names(disk, f"checkpoint-{step}")]
        assert published[-1] >= told[-1] - 1


@pytest.mark.parametrize("publication", list(Publication))
def test_with_two_kept_a_lost_write_costs_one_checkpoint_at_most(publication: Publication) -> None:
    """Where any one file of a checkpoint is lost, the one before it is whole."""
    for disk, told in losses(publication, 2, "write"):
        assert whole(disk)[-1] >= told[-1] - 1


@pytest.mark.parametrize("publication", list(Publication))
def test_a_lost_removal_takes_nothing_from_the_newest(publication: Publication) -> None:
    """What comes back is older than the newest, which is whole."""
    for disk, told in losses(publication, 2, "remove"):
        assert whole(disk)[-1] == told[-1]
