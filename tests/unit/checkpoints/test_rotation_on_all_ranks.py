"""All ranks of a run agree on the existing checkpoints, even if some are removed by other programs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.background import ThreadBackground
from hexloop.adapters.collectives.simulated import SimulatedWorld
from hexloop.adapters.storage.faults import Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import checkpoint_name, step_of
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import CheckpointPublished
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives
from hexloop.ports.storage import Storage
from tests.examples import examples
from tests.unit.checkpoints.small_store import names
from tests.unit.checkpoints.test_several_ranks import RankContents


@frozen
class Act:
    """A save, whether it is the best so far, and the checkpoint that another program removes after it, if any."""

    is_best: bool
    removed: int | None


acts = st.lists(st.builds(Act, st.booleans(), st.none() | st.integers(0, 5)), min_size=2, max_size=8)


def kept_after(script: Sequence[Act], size: int, limit: int, storage: Storage, in_background: bool) -> list[str]:
    """Return the checkpoints that are left after a run of several ranks has made the saves of a script."""

    def run(ranks: Collectives) -> int:
        contents, policy = RankContents(ranks.rank), CheckpointPolicy(limit)
        background = ThreadBackground() if in_background else None
        store = CheckpointStore(storage, contents, policy, collectives=ranks, pauses=(), background=background)
        state, published = RunState(run="mine"), 0
        for step, act in enumerate(script, 1):
            state.step = step
            if act.is_best:
                state.best_step = step
            events = [*store.save(state), *store.finish()]
            published += sum(isinstance(event, CheckpointPublished) for event in events)
            ranks.barrier("saved")
            there = sorted(names(storage))
            if ranks.rank == 0 and act.removed is not None and act.removed < len(there):
                storage.remove(there[act.removed])
            ranks.barrier("removed")
        return published

    assert SimulatedWorld(size, timeout=10).run(run) == [len(script)] * size
    return sorted(names(storage))


@given(acts, st.integers(1, 3), st.booleans())
@settings(max_examples=examples(40))
def test_several_ranks_keep_what_one_rank_keeps(script: list[Act], limit: int, in_background: bool) -> None:
    """Whichever is the best and whatever is removed by hand, the checkpoints are those of a single process."""
    alone = kept_after(script, 1, limit, MemoryStorage(), in_background)
    assert kept_after(script, 3, limit, MemoryStorage(), in_background) == alone
    assert alone == [] or step_of(alone[0]) is not None


@pytest.mark.parametrize("size", [1, 2])
def test_an_incomplete_rotation_is_completed_later(size: int) -> None:
    """If the second of two removals fails, the rotation of the next save does the rest."""
    published, rotated = 1, 1
    first_fails = 2 * published + rotated
    second_of_two_fails = first_fails + published + 2 * rotated
    faults = [Fault(at, Effect.FAIL, "move") for at in (first_fails, second_of_two_fails)]
    storage = FaultyStorage(MemoryStorage(), faults)
    with pytest.warns(UserWarning, match="Checkpoints beyond save_total_limit could not be removed"):
        kept_after([Act(False, None)] * 4, size, 1, storage, in_background=False)
    assert names(storage) == [checkpoint_name(4)]
