"""Whatever goes wrong, and whenever: what was published is found, others' work is untouched, nothing is left over."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import publisher_for
from hexloop.domain.checkpoints.names import Owner, step_of
from hexloop.domain.checkpoints.reading import Checkpoint, verify
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.events import CheckpointPublished
from hexloop.domain.state import RunState
from hexloop.ports.storage import Publication, Storage
from tests.unit.checkpoints.small_store import make_store, names, save_all, save_at, tree, weights_at

pytestmark = pytest.mark.filterwarnings("ignore:.*(was not saved|is skipped|could not be removed)")

OTHER = Owner("other", "1")
IN_THE_WAY, IN_THE_MAKING = 3, 90
"""The steps of the other run's checkpoint, and of its unfinished one."""

LIMIT = 2
STRIKES = [
    (Effect.FAIL, 1.0, False),
    (Effect.FULL, 1.0, False),
    *((Effect.DIE, done, power_cut) for done in (0.0, 0.5, 1.0) for power_cut in (False, True)),
]


@frozen
class Life:
    """What one process does: go on from its newest checkpoint, or some further back, and save at the next steps.

    in_background: whether each save is written by a thread, which the process waits for before its next step.
    """

    saves: int
    faults: tuple[Fault, ...] = ()
    power_cut: bool = False
    back: int = 0
    in_background: bool = False


@frozen
class World:
    """A storage that another run uses as well.

    told: the steps of which the present life of the run "mine" knows that they have a checkpoint: the one that it went
    on from, and those that it was told of.
    """

    storage: MemoryStorage
    told: list[int] = field(factory=list)

    def live(self, life: Life) -> FaultyStorage:
        """Be a process until it ends or dies; gives back the storage as it saw it."""
        seen = FaultyStorage(self.storage, life.faults)
        with suppress(Died, StorageError, CheckpointError):
            self._train(seen, life)
        if life.power_cut:
            self.storage.crash()
        return seen

    def _train(self, storage: Storage, life: Life) -> None:
        store = make_store(storage, LIMIT, in_background=life.in_background)
        state = RunState(run="mine")
        choice = good_ones(self.storage)[life.back :][:1]
        if choice:
            state = store.resume(choice[0].name) or state
        self.told[:] = [state.step] if choice else []
        for step in range(state.step + 1, state.step + 1 + life.saves):
            if step % 2:
                state.best_step = step
            events = chain(save_at(store, state, step), store.finish())
            self.told.extend(event.step for event in events if isinstance(event, CheckpointPublished))

    def check(self) -> None:
        """What was told is there, whole; the other run has lost nothing."""
        if self.told:
            assert_holds(self.storage, self.told[-1])
            found = newest(self.storage, "mine")
            assert found is not None
            if len(self.told) > 1:  # a life that saved nothing, back at an older step, left no word of itself
                assert found.manifest.step >= self.told[-1]
        assert [checkpoint.manifest.step for checkpoint in good_ones(self.storage, "other", "")][:1] == [IN_THE_WAY]

    def check_tidy(self) -> None:
        """Nothing that "mine" began is unfinished, and what the other run began is as it was."""
        mine = Owner("mine", "z")
        assert [path for path in tree(self.storage) if any(map(mine.left_behind, path.split("/")))] == []
        for name in names(self.storage):
            if step_of(name) not in (None, IN_THE_MAKING):
                verify(self.storage, name)
        folder = publisher_for(MemoryStorage(self.storage.capabilities.publication), OTHER).begin(
            f"checkpoint-{IN_THE_MAKING}"
        )
        assert self.storage.digest(f"{folder}/model.bin").size == 4


def make_world(publication: Publication) -> World:
    """A storage on which another run has a checkpoint, and one in the making."""
    storage = MemoryStorage(publication)
    save_all(storage, "other", [IN_THE_WAY])
    folder = publisher_for(storage, OTHER).begin(f"checkpoint-{IN_THE_MAKING}")
    storage.write(f"{folder}/model.bin", [b"half"])
    return World(storage)


def assert_holds(storage: Storage, step: int) -> None:
    """The checkpoint at `step` is good, and has the weights of that step."""
    assert verify(storage, f"checkpoint-{step}").manifest.run == "mine"
    assert b"".join(storage.read(f"checkpoint-{step}/weights/all.bin")) == weights_at("mine", step)


def good_ones(storage: Storage, run: str = "mine", prefix: str = "checkpoint-") -> list[Checkpoint]:
    """The good checkpoints of a run, the newest first; with another prefix, also those that were set aside."""
    good = []
    for name in names(storage):
        with suppress(CheckpointError):
            checkpoint = verify(storage, name)
            if checkpoint.manifest.run == run and name.startswith(prefix):
                good.append(checkpoint)
    return sorted(good, key=lambda checkpoint: -checkpoint.manifest.step)


FIRST, SECOND, LAST = Life(saves=2), Life(saves=3), Life(saves=2)
"""One life before anything goes wrong, one in which it does, one that goes on. The second meets the other run's
checkpoint, and rotates."""


def operations_of_second_life(publication: Publication) -> int:
    """In how many operations something may go wrong."""
    world = make_world(publication)
    world.live(FIRST)
    return len(world.live(SECOND).operations)


@pytest.mark.parametrize(("effect", "done", "power_cut"), STRIKES)
@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("publication", list(Publication))
def test_a_fault_in_any_operation(
    publication: Publication, in_background: bool, effect: Effect, done: float, power_cut: bool
) -> None:
    """After a death, a failure or a full disk in any operation, the next process goes on from the last published."""
    operations = operations_of_second_life(publication)
    assert operations > 30
    for at in range(1, operations + 1):
        world = make_world(publication)
        world.live(FIRST)
        world.live(Life(SECOND.saves, (Fault(at, effect, done=done),), power_cut, in_background=in_background))
        world.check()
        world.live(LAST)
        world.check()
        world.check_tidy()
        assert len(good_ones(world.storage)) == LIMIT


@pytest.mark.parametrize("done", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("publication", list(Publication))
def test_a_disk_that_loses_what_it_acknowledged(publication: Publication, done: float) -> None:
    """Where any one operation was done in part only, though success was reported, a complete checkpoint remains."""
    for at in range(1, operations_of_second_life(publication) + 1):
        world = make_world(publication)
        world.live(FIRST)
        world.live(Life(SECOND.saves, (Fault(at, Effect.TEAR, done=done),)))
        assert good_ones(world.storage)
        world.live(LAST)
        assert_holds(world.storage, world.told[-1])


@pytest.mark.parametrize("publication", list(Publication))
def test_a_death_while_the_leftovers_of_a_death_are_removed(publication: Publication) -> None:
    """A process that dies cleaning up leaves what the next one cleans up."""
    operations = operations_of_second_life(publication)
    for first in range(1, operations + 1, 3):
        for second in range(1, 12):
            world = make_world(publication)
            world.live(FIRST)
            world.live(Life(3, (Fault(first, Effect.DIE),)))
            world.live(Life(3, (Fault(second, Effect.DIE),)))
            world.check()
            world.live(LAST)
            world.check()
            world.check_tidy()


fault = st.builds(
    Fault,
    at=st.integers(1, 40),
    effect=st.sampled_from([Effect.DIE, Effect.FAIL, Effect.FULL]),
    operation=st.sampled_from(["any", "write", "remove", "move", "list"]),
    done=st.floats(0, 1),
    times=st.integers(1, 4),
)
lives = st.lists(
    st.builds(
        Life,
        saves=st.integers(0, 4),
        faults=st.lists(fault, max_size=2).map(tuple),
        power_cut=st.booleans(),
        back=st.sampled_from([0, 0, 0, 1, 2]),
        in_background=st.booleans(),
    ),
    max_size=6,
)


@given(st.sampled_from(list(Publication)), lives)
def test_any_history(publication: Publication, history: list[Life]) -> None:
    """However often a run dies, fails, loses power or goes back, what it was told last is there, and others' work."""
    world = make_world(publication)
    for life in history:
        world.live(life)
        world.check()
    world.live(LAST)
    world.check()
    world.check_tidy()
