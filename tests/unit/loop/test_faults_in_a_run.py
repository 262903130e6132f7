"""Runs that die in a storage operation and are resumed end like uninterrupted ones."""

from __future__ import annotations

from contextlib import suppress

import pytest

from hexloop.adapters.background import ThreadBackground
from hexloop.adapters.storage.faults import Died, Effect, Fault, FaultyStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.testing.recording import record_run
from hexloop.app.testing.resume_exactness import first_difference
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.run import Run
from hexloop.ports.storage import Publication, Storage
from tests.unit.loop.test_resume_product import Kind, joined, make

pytestmark = pytest.mark.filterwarnings("ignore:.*is skipped")

KIND = Kind("stateful", "reduce_lr_on_plateau", 4, scaling=True, stopping=True, callback=True)


def run_on(storage: Storage, in_background: bool) -> Run[object, object]:
    """Run with a save at every second step, keep the newest and the best, and end with the best weights."""
    run = make(KIND, storage)
    assert isinstance(run.checkpoints, CheckpointStore)
    run.checkpoints.background = ThreadBackground() if in_background else None
    run.checkpoints.policy = CheckpointPolicy(1)
    return run


@pytest.mark.one_in(5)
@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("done", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("publication", list(Publication))
def test_a_run_resumes_exactly_after_a_death_in_any_operation(
    publication: Publication, done: float, in_background: bool
) -> None:
    """Weights, optimizer, schedule, history and the sequence of steps are those of an uninterrupted run."""
    whole = record_run(run_on(MemoryStorage(publication), in_background))
    counted = FaultyStorage(MemoryStorage(publication))
    record_run(run_on(counted, in_background))
    resumed = 0
    for at in range(1, len(counted.operations) + 1):
        storage = MemoryStorage(publication)
        struck = FaultyStorage(storage, [Fault(at, Effect.DIE, done=done)])
        with suppress(Died):
            record_run(run_on(struck, in_background))
        storage.crash()
        found = newest(storage)
        resumed += found is not None
        rest = record_run(run_on(storage, in_background), resume=found is not None)
        rest.steps = joined(whole.steps, rest)
        difference = first_difference(whole, rest, [0])
        assert difference is None, (at, struck.operations[at - 1 : at], difference)
    assert resumed > 5
