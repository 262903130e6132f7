"""Saving and resuming with a fault in any operation: no published checkpoint is lost, other runs' files stay."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from itertools import chain

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import publisher_for
from hexloop.domain.checkpoints.manifest import Owner, step_of
from hexloop.domain.checkpoints.reading import Checkpoint, verify
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.events import CheckpointPublished
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication, Storage
from tests.unit.checkpoints.small_store import make_store, names, save_all, save_at, tree, weights_at

pytestmark = pytest.mark.filterwarnings("ignore:.*(was not saved|is skipped|could not be removed)")

OTHER = Owner("other", "1")
IN_THE_WAY, UNFINISHED = 3, 90
"""The steps of the other run's checkpoint, and of its unfinished one."""

LIMIT = 2
Cut = Callable[[MemoryStorage, int], None]


def no_cut(storage: MemoryStorage, seed: int) -> None:
    """The machine keeps its power."""


def losing_all(storage: MemoryStorage, seed: int) -> None:
    """A power cut after which nothing is left that was not synced."""
    storage.crash()


def losing_names_only(storage: MemoryStorage, seed: int) -> None:
    """A power cut before which the disk happened to write all bytes."""
    storage.crash(lambda _: 1.0)


def losing_some(storage: MemoryStorage, seed: int) -> None:
    """A power cut before which the disk wrote any part of any file that was not synced."""
    some = random.Random(seed)
    storage.crash(lambda _: some.choice([None, 0.0, 0.5, 1.0]))


CUTS = (no_cut, losing_all, losing_names_only, losing_some)
STRIKES = [
    (Effect.FAIL, 1.0, no_cut),
    (Effect.FULL, 1.0, no_cut),
    *((Effect.DIE, done, cut) for done in (0.0, 0.5, 1.0) for cut in CUTS),
]


@frozen
class Process:
    """One process: resume from the newest checkpoint, or an earlier one, and save at the next steps.

    in_background: whether each save is written by a thread, which the process waits for before its next step.
    """

    saves: int
    faults: tuple[Fault, ...] = ()
    cut: Cut = no_cut
    back: int = 0
    in_background: bool = False


@frozen
class World:
    """A storage that another run uses as well.

    reported: the steps that the present process of the run "mine" knows as saved: the one that it resumed from, and
    those reported to it.
    """

    storage: MemoryStorage
    reported: list[int] = field(factory=list)

    def run(self, process: Process) -> FaultyStorage:
        """Run a process until it ends or dies, and return the storage that it used."""
        seen = FaultyStorage(self.storage, process.faults)
        with suppress(Died, StorageError, CheckpointError):
            self._train(seen, process)
        process.cut(self.storage, len(seen.operations))
        return seen

    def _train(self, storage: Storage, process: Process) -> None:
        store = make_store(storage, LIMIT, in_background=process.in_background)
        state = RunState(run="mine")
        choice = good_checkpoints(self.storage)[process.back :][:1]
        if choice:
            state = store.resume(choice[0].name) or state
        self.reported[:] = [state.step] if choice else []
        for step in range(state.step + 1, state.step + 1 + process.saves):
            if step % 2:
                state.best_step = step
            events = chain(save_at(store, state, step), store.finish())
            self.reported.extend(event.step for event in events if isinstance(event, CheckpointPublished))

    def check(self) -> None:
        """Check that reported checkpoints are complete, and that the other run has lost nothing."""
        if self.reported:
            assert_holds(self.storage, self.reported[-1])
            found = newest(self.storage, "mine")
            assert found is not None
            if len(self.reported) > 1:  # a process that resumed at an older step and saved nothing left no trace
                assert found.manifest.step >= self.reported[-1]
        others = good_checkpoints(self.storage, "other", "")
        assert [checkpoint.manifest.step for checkpoint in others][:1] == [IN_THE_WAY]

    def check_tidy(self) -> None:
        """Check that nothing of "mine" is unfinished, and that the other run's unfinished save is unchanged."""
        mine = Owner("mine", "z")
        assert [path for path in tree(self.storage) if any(map(mine.left_behind, path.split("/")))] == []
        for name in names(self.storage):
            if step_of(name) not in (None, UNFINISHED):
                verify(self.storage, name)
        folder = publisher_for(MemoryStorage(self.storage.capabilities.publication), OTHER).begin(
            f"checkpoint-{UNFINISHED}"
        )
        assert self.storage.digest(f"{folder}/model.bin").size == 4


def make_world(publication: Publication) -> World:
    """Return a storage on which another run has a checkpoint and an unfinished one."""
    storage = MemoryStorage(publication)
    save_all(storage, "other", [IN_THE_WAY])
    folder = publisher_for(storage, OTHER).begin(f"checkpoint-{UNFINISHED}")
    storage.write(f"{folder}/model.bin", [b"half"])
    storage.sync([f"{folder}/model.bin"])
    return World(storage)


def assert_holds(storage: Storage, step: int) -> None:
    """Check that the checkpoint at `step` is good and has the weights of that step."""
    assert verify(storage, f"checkpoint-{step}").manifest.run == "mine"
    assert b"".join(storage.read(f"checkpoint-{step}/weights/all.bin")) == weights_at("mine", step)


def good_checkpoints(storage: Storage, run: str = "mine", prefix: str = "checkpoint-") -> list[Checkpoint]:
    """Return the good checkpoints of a run, newest first; with another prefix, the quarantined ones as well."""
    good = []
    for name in names(storage):
        with suppress(CheckpointError):
            checkpoint = verify(storage, name)
            if checkpoint.manifest.run == run and name.startswith(prefix):
                good.append(checkpoint)
    return sorted(good, key=lambda checkpoint: -checkpoint.manifest.step)


FIRST, SECOND, LAST = Process(saves=2), Process(saves=3), Process(saves=2)
"""A process before the fault, the process in which it occurs, and one that resumes. The second finds the other run's
checkpoint, and rotates."""


def operations_of_second_life(publication: Publication) -> int:
    """Return the number of operations in which a fault can occur."""
    world = make_world(publication)
    world.run(FIRST)
    return len(world.run(SECOND).operations)


@pytest.mark.one_in(19)
@pytest.mark.parametrize(("effect", "done", "cut"), STRIKES)
@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("publication", list(Publication))
def test_a_fault_in_any_operation(
    publication: Publication, in_background: bool, effect: Effect, done: float, cut: Cut
) -> None:
    """After a death, a failure or a full disk in any operation, the next process resumes from the last checkpoint."""
    operations = operations_of_second_life(publication)
    assert operations > 30
    for at in range(1, operations + 1):
        world = make_world(publication)
        world.run(FIRST)
        world.run(Process(SECOND.saves, (Fault(at, effect, done=done),), cut, in_background=in_background))
        world.check()
        world.run(LAST)
        world.check()
        world.check_tidy()
        assert len(good_checkpoints(world.storage)) == LIMIT


@pytest.mark.one_in(3)
@pytest.mark.parametrize("done", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("publication", list(Publication))
def test_a_disk_that_loses_what_it_acknowledged(publication: Publication, done: float) -> None:
    """If any single operation is only partly done although it reported success, a complete checkpoint remains."""
    for at in range(1, operations_of_second_life(publication) + 1):
        world = make_world(publication)
        world.run(FIRST)
        world.run(Process(SECOND.saves, (Fault(at, Effect.TEAR, done=done),)))
        assert good_checkpoints(world.storage)
        world.run(LAST)
        assert_holds(world.storage, world.reported[-1])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("publication", list(Publication))
def test_a_death_during_cleanup(publication: Publication) -> None:
    """Files that a process leaves when it dies during cleanup are removed by the next one."""
    operations = operations_of_second_life(publication)
    for first in range(1, operations + 1, 3):
        for second in range(1, 12):
            world = make_world(publication)
            world.run(FIRST)
            world.run(Process(3, (Fault(first, Effect.DIE),)))
            world.run(Process(3, (Fault(second, Effect.DIE),)))
            world.check()
            world.run(LAST)
            world.check()
            world.check_tidy()


fault = st.builds(
    Fault,
    at=st.integers(1, 40),
    effect=st.sampled_from([Effect.DIE, Effect.FAIL, Effect.FULL]),
    operation=st.sampled_from(["any", "write", "sync", "remove", "move", "list"]),
    done=st.floats(0, 1),
    times=st.integers(1, 4),
)
lives = st.lists(
    st.builds(
        Process,
        saves=st.integers(0, 4),
        faults=st.lists(fault, max_size=2).map(tuple),
        cut=st.sampled_from(CUTS),
        back=st.sampled_from([0, 0, 0, 1, 2]),
        in_background=st.booleans(),
    ),
    max_size=6,
)


@given(st.sampled_from(list(Publication)), lives)
def test_any_history(publication: Publication, history: list[Process]) -> None:
    """Through deaths, failures, power cuts and rollbacks, the last reported checkpoint and other runs' files stay."""
    world = make_world(publication)
    for process in history:
        world.run(process)
        world.check()
    world.run(LAST)
    world.check()
    world.check_tidy()
