"""Storage operations that were acknowledged but are lost in a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from hexloop.domain.checkpoints.manifest import MANIFEST, Owner
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
    """Save four times and lose power; return the disk, the process's view of it, and the reported steps."""
    disk = MemoryStorage(publication)
    seen = FaultyStorage(disk, [fault] if fault else [], disk.losing)
    store, state = make_store(seen, limit), RunState(run="mine")
    reported = [
        event.step
        for step in range(1, SAVES + 1)
        for event in save_at(store, state, step)
        if isinstance(event, CheckpointPublished)
    ]
    disk.crash()
    return disk, seen, reported


def losses(publication: Publication, limit: int, operation: str) -> Iterator[tuple[MemoryStorage, list[int]]]:
    """Return what is left after the loss of each single operation of that name."""
    _, seen, _ = life(None, publication, limit)
    many = [name for name, _ in seen.operations].count(operation)
    assert many >= 2
    for at in range(1, many + 1):
        disk, _, reported = life(Fault(at, Effect.LOSE, operation), publication, limit)
        yield disk, reported


def whole(disk: MemoryStorage) -> list[int]:
    """Return the steps of the complete checkpoints under any name."""
    found = []
    for name in names(disk):
        with suppress(CheckpointError):
            found.append(verify(disk, name).manifest.step)
    return sorted(found)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("publication", list(Publication))
def test_a_durable_disk_loses_nothing(publication: Publication, limit: int) -> None:
    """If acknowledged operations are durable, a power cut after the last save leaves the newest checkpoint complete."""
    disk, _, reported = life(None, publication, limit)
    assert reported[-1] == SAVES
    assert whole(disk)[-1] == SAVES
    assert b"".join(disk.read(f"checkpoint-{SAVES}/weights/all.bin")) == weights_at("mine", SAVES)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_lost_rename_leaves_a_complete_checkpoint(limit: int) -> None:
    """Whichever rename is lost, the last reported checkpoint is complete, published or staged."""
    for disk, reported in losses(Publication.RENAME, limit, "move"):
        assert whole(disk)[-1] == reported[-1]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_run_resumes_from_a_checkpoint_whose_rename_was_lost(limit: int) -> None:
    """Whichever rename is lost, the next process finds the last reported checkpoint, and leaves no files over."""
    for disk, reported in losses(Publication.RENAME, limit, "move"):
        store = make_store(disk, limit)
        state = store.resume()
        assert state is not None
        assert state.step == reported[-1]
        save_at(store, state, SAVES + 1)
        assert names(disk)[-1] == f"checkpoint-{SAVES + 1}"
        assert len(names(disk)) == limit


def test_an_incomplete_staged_checkpoint_is_removed() -> None:
    """A folder that lost its manifest or a file is cleaned up instead of published."""
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


def test_another_runs_staged_checkpoint_is_not_touched() -> None:
    """A run that resumes beside a live one, or from its folder, leaves that run's staged folders alone."""
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


def test_a_read_only_storage_can_be_resumed_from() -> None:
    """Staged folders stay where they are, and the run resumes from published checkpoints."""
    disk = MemoryStorage()
    for step in (1, 2):
        save_at(make_store(disk), RunState(run="mine"), step)
    disk.move("checkpoint-2", Owner("mine", "0").staging_name("checkpoint-2"))
    state = make_store(FaultyStorage(disk, [Fault(1, Effect.FAIL, "move", times=9)])).resume()
    assert state is not None
    assert state.step == 1


def test_with_a_limit_of_two_a_lost_rename_costs_one_checkpoint() -> None:
    """The checkpoint before is still published."""
    for disk, reported in losses(Publication.RENAME, 2, "move"):
        published = [step for step in whole(disk) if MANIFEST in names(disk, f"checkpoint-{step}")]
        assert published[-1] >= reported[-1] - 1


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("publication", list(Publication))
def test_with_a_limit_of_two_a_lost_write_costs_one_checkpoint(publication: Publication, operation: str) -> None:
    """If any single file of a checkpoint is lost, or all of them, the one before it is complete."""
    for disk, reported in losses(publication, 2, operation):
        assert whole(disk)[-1] >= reported[-1] - 1


@pytest.mark.parametrize("publication", list(Publication))
def test_a_lost_removal_leaves_the_newest_complete(publication: Publication) -> None:
    """What reappears is older than the newest checkpoint, which is complete."""
    for disk, reported in losses(publication, 2, "remove"):
        assert whole(disk)[-1] == reported[-1]
