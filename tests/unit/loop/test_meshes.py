"""Runs on meshes of several dimensions: the same samples, weights and logs as in one process, and resumed anywhere."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import product

import pytest
from attrs import frozen

from hexloop.adapters.batches import RankBatches
from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.contents.file_names import RankFiles
from hexloop.adapters.scheduler import ConstantRates
from hexloop.adapters.trainable.least_squares import LeastSquares, Row, least_squares
from hexloop.adapters.trainable.least_squares.sharded import sharded_least_squares
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.events import StepEnded
from hexloop.domain.loop import train
from hexloop.domain.order import KeyedPermutation
from hexloop.domain.ranks import SharedLosses
from hexloop.domain.requests import make_agreement
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Interval, Trigger, Triggers
from hexloop.ports.collectives import Collectives
from hexloop.ports.mesh import DATA, Dimensions, Mesh
from hexloop.testing import MemoryStorage, PlainLosses, SimulatedWorld, simulated_run

SHAPE = (4, 2)
"""Rows and columns of the weight."""

# Numbers of few bits, batches of 8 or 16 rows and a rate of a power of two: every sum is exact in every order, so that
# runs on different meshes are bit-identical.
ROWS: list[Row] = [
    (tuple(float((index * (place + 3) + place) % 3 - 1) for place in range(8)), float(index % 5 - 2))
    for index in range(24)
]
STEPS, SAVED = 6, 3

MESHES: dict[str, Dimensions] = {
    "one process": (),
    "replicate 2": (("replicate", 2),),
    "shard 3": (("shard", 3),),
    "tensor 2": (("tensor", 2),),
    "replicate 2, shard 2": (("replicate", 2), ("shard", 2)),
    "replicate 2, tensor 2": (("replicate", 2), ("tensor", 2)),
    "shard 2, tensor 2": (("shard", 2), ("tensor", 2)),
    "replicate 2, shard 2, tensor 2": (("replicate", 2), ("shard", 2), ("tensor", 2)),
    "pipeline 2, shard 2": (("pipeline", 2), ("shard", 2)),
}


class Recording(RankBatches[Row]):
    """Remembers which rows it yields."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(ROWS, 8, mesh.data, lambda epoch: KeyedPermutation(7, epoch, len(ROWS)))
        self.read: list[list[int]] = []

    def epoch(self, epoch: int, position: int) -> Generator[list[Row], None, None]:
        for batch in super().epoch(epoch, position):
            self.read.append([ROWS.index(row) for row in batch])
            yield batch


@frozen
class Result:
    """What one rank has at the end. read: the rows of each of its batches."""

    mesh: Mesh
    weights: Sequence[float]
    velocity: Sequence[float]
    logs: Sequence[float]
    read: Sequence[list[int]]


def model_of(rank: Collectives, mesh: Mesh) -> LeastSquares:
    """Return the plain model in one process, and the sharded one elsewhere."""
    if mesh.size == 1:
        return least_squares(SHAPE, momentum=0.5)
    return sharded_least_squares(rank, SHAPE, momentum=0.5, mesh=mesh)


def trained(dimensions: Dimensions, storage: MemoryStorage, stop_after: int | None = None) -> list[Result]:
    """Train on a mesh, from the newest checkpoint in `storage` if there is one."""

    def run_rank(rank: Collectives) -> Result:
        mesh = Mesh(dimensions, rank.rank)
        model, batches, logs = model_of(rank, mesh), Recording(mesh), list[float]()
        losses = SharedLosses(PlainLosses(), rank.among(mesh.ranks(*DATA)))
        contents = CheckpointContents(
            {"model": model.model, "optimizer": model.optimizer, "losses": losses},
            ranks=RankFiles(mesh, sharded=frozenset({"model", "optimizer"}) if mesh.size > 1 else frozenset()),
        )
        store = CheckpointStore(storage, contents, collectives=rank)
        run = simulated_run(
            ROWS,
            trainable=model,
            batches=batches,
            max_steps=STEPS,
            accumulation=2,
            max_norm=0.0,
            scheduler=ConstantRates(model.set_learning_rates, (0.25,)),
            losses=losses,
            checkpoints=store,
            state=store.resume() or RunState(run="mine"),
            triggers=Triggers(log=Trigger(Interval.STEPS, 2), save=Trigger(Interval.STEPS, SAVED)),
            report=lambda values: logs.append(values["loss"]) if "loss" in values else None,
        )
        run.agreement = make_agreement(run.requests, rank)
        for event in train(run):
            if isinstance(event, StepEnded) and event.step == stop_after:
                run.requests.request_stop()
        weights, velocity = ([*whole] for whole in whole_values(model))
        return Result(mesh, weights, velocity, logs, batches.read)

    return SimulatedWorld(Mesh(dimensions).size, timeout=60).run(run_rank)


def whole_values(model: LeastSquares) -> Iterator[Sequence[float]]:
    """Yield the parameters and the velocities of all ranks."""
    yield [*model.model.whole_parameters()]
    model.model.parameters[:] = model.optimizer.velocity
    yield [*model.model.whole_parameters()]


def read_together(results: Sequence[Result]) -> list[list[int]]:
    """Return the rows of each batch of all ranks. Ranks with the same place in the data must have read the same."""
    by_place: dict[int, Sequence[list[int]]] = {}
    for each in results:
        assert by_place.setdefault(each.mesh.data.rank, each.read) == each.read
    parts = zip(*(by_place[place] for place in sorted(by_place)), strict=True)
    return [[row for part in batch for row in part] for batch in parts]


ALONE = trained((), MemoryStorage())[0]


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_trains_as_one_process(name: str) -> None:
    """The samples are read in the same order, and weights, moments and logged losses are bit-identical."""
    results = trained(MESHES[name], MemoryStorage())

    assert read_together(results) == ALONE.read
    for each in results:
        assert (each.weights, each.velocity, each.logs) == (ALONE.weights, ALONE.velocity, ALONE.logs)


PAIRS = [pytest.param(*pair, marks=pytest.mark.one_in(8)) for pair in product(MESHES, MESHES)]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_run_resumes_on_any_mesh(before: str, after: str) -> None:
    """A run that is saved on one mesh continues on another as if nothing had happened, in the middle of a log."""
    storage = MemoryStorage()
    first = trained(MESHES[before], storage, stop_after=SAVED)
    storage.crash()
    resumed = trained(MESHES[after], storage)

    read = read_together(first)[: 2 * SAVED - 1] + read_together(resumed)
    assert [rows for rows in read if rows in ALONE.read] == read
    for each in resumed:
        assert (each.weights, each.velocity) == (ALONE.weights, ALONE.velocity)
        assert [*first[0].logs[:1], *each.logs] == ALONE.logs


def test_the_weights_were_trained() -> None:
    """The comparison is not one of zeros, and the numbers have bits to spare, so that no sum was rounded."""
    assert len(ALONE.logs) == STEPS // 2
    assert all(ALONE.weights)
    assert all((value * 2**50).is_integer() for value in (*ALONE.weights, *ALONE.velocity))


def test_ranks_with_the_same_samples_write_no_losses() -> None:
    """The losses of a batch are saved once, by the first of the ranks that compute it."""
    storage = MemoryStorage()
    trained(MESHES["replicate 2, tensor 2"], storage, stop_after=SAVED)
    names = [entry.name for entry in storage.list("checkpoint-3") if entry.name.startswith("run_state")]
    texts = {name: b"".join(storage.read(f"checkpoint-3/{name}")) for name in names}

    assert len(texts) == 4
    assert sorted(name for name, text in texts.items() if b'"losses"' in text) == [
        "run_state-rank-00001.json",
        "run_state.json",
    ]
