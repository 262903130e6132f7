"""Message and file counts per process, with 2 and with 1000 processes.

docs/decisions/0010 extrapolates these counts to 10,000 processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator

import pytest

from hexloop.adapters.collectives.simulated import SimulatedWorld
from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.contents.file_names import RankFiles
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.testing.simulated_run import simulated_run
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import StepEnded
from hexloop.domain.json_documents import json_part
from hexloop.domain.loop import train
from hexloop.domain.ranks import assign_to_ranks
from hexloop.domain.requests import Requests, SharedAgreement
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Collectives
from hexloop.ports.mesh import flat_mesh
from hexloop.ports.state import Exportable, Part

ROWS = [((float(number), 1.0), 2.0 * number) for number in range(8)]
EACH = ("losses", "random", "data")
"""The objects that every process writes itself."""


class OneNumber:
    """Stores a number as a JSON document."""

    def export(self) -> Iterator[Part]:
        """Export the number."""
        yield json_part("number", 1)

    def load(self, parts: object) -> None:
        """No-op."""


@pytest.mark.parametrize("size", [2, 10, 100, 1000])
def test_a_step_is_one_message_per_process(size: int) -> None:
    """In the real loop each boundary starts one reduction of nine numbers, and does not wait for it."""
    world = SimulatedWorld(size)

    def steps(rank: Collectives) -> Generator[None, None, tuple[int, int]]:
        requests, counts = Requests(), []
        run = simulated_run(ROWS, batch_size=1, requests=requests, agreement=SharedAgreement(requests, rank))
        for event in train(run):
            if isinstance(event, StepEnded):
                counts.append(world.operations[rank.rank])
                if event.step == 6:
                    return counts[1] - counts[0], counts[5] - counts[0]
                yield
        raise AssertionError("the run has an end")

    counted = world.run_stepwise(steps)
    assert {each[1] for each in counted} == {5}, counted[0]
    assert {each[0] for each in counted} == {1}


def saved(size: int) -> tuple[set[int], set[str]]:
    """Return the number of messages per process of a save, and the files of the checkpoint."""
    world, storage = SimulatedWorld(size), MemoryStorage()

    def save(rank: Collectives) -> int:
        kept: dict[str, Exportable] = {name: OneNumber() for name in (*EACH, "scheduler", "scaler")}
        contents = CheckpointContents(kept, ranks=RankFiles(flat_mesh(rank.rank, rank.world_size)))
        list(CheckpointStore(storage, contents, collectives=rank).save(RunState(run="mine", step=7)))
        return world.operations[rank.rank]

    return set(world.run(save)), set(verify(storage, "checkpoint-7").manifest.files)


@pytest.mark.parametrize("size", [2, 10, 100, pytest.param(1000, marks=pytest.mark.matrix)])
def test_a_save_is_five_messages_per_process_and_one_file(size: int) -> None:
    """The messages agree on session, existing checkpoints, staging folder, written files and publication."""
    messages, files = saved(size)
    assert messages == {5}
    assert files == {"run_state.json", *(f"run_state-rank-{rank:05}.json" for rank in range(1, size))}


def layers(hidden: int, number: int, words: int) -> list[int]:
    """Return the parameters of each tensor of a language model, in order."""
    layer = [hidden**2] * 4 + [4 * hidden**2] * 2 + [hidden] * 2
    return [words * hidden, *layer * number, hidden, words * hidden]


def test_a_trillion_parameters_are_assigned_to_ten_thousand_processes() -> None:
    """Check the figures of docs/decisions/0010: which ranks write, how many files, and how large."""
    parameters = layers(hidden=25_600, number=126, words=128_000)
    assert sum(parameters) == pytest.approx(1e12, rel=0.01)
    files, largest = [], []
    for sizes in ([4 * each for each in parameters], [4 * each for each in parameters for _ in range(2)]):
        written: Counter[int] = Counter()
        for owner, size in zip(assign_to_ranks(sizes, 10_000), sizes, strict=True):
            written[owner] += size
        files.append(len(written))
        largest.append(max(written.values()) / 1e9)
    assert files == [884, 1642]
    assert largest == pytest.approx([13.1, 13.1], abs=0.1)
