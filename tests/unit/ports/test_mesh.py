"""Meshes and how arrays are distributed over them."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.ports.mesh import (
    DATA,
    MODEL,
    Box,
    Dimensions,
    Mesh,
    Place,
    Sharded,
    Spread,
    flat_mesh,
    held_by_one,
    held_in_runs,
)

DIMENSIONS = st.lists(st.sampled_from((*DATA, *MODEL)), unique=True, max_size=4).flatmap(
    lambda names: st.tuples(*(st.tuples(st.just(name), st.integers(1, 3)) for name in names))
)


@given(DIMENSIONS)
def test_coordinates_number_the_processes(dimensions: Dimensions) -> None:
    """Every process has coordinates of its own, and the last dimension varies fastest."""
    mesh = Mesh(dimensions)
    found = [tuple(mesh.at(rank).coordinates[name] for name, _ in dimensions) for rank in range(mesh.size)]

    assert found == list(product(*(range(size) for _, size in dimensions)))


@given(DIMENSIONS, st.sets(st.sampled_from((*DATA, *MODEL))))
def test_processes_along_dimensions(dimensions: Dimensions, names: set[str]) -> None:
    """The processes along some dimensions have equal coordinates in the others, and are numbered in their order."""
    mesh = Mesh(dimensions)
    seen = list[int]()
    for rank in range(mesh.size):
        at = mesh.at(rank)
        ranks, place = at.ranks(*names), at.along(*names)
        assert place == Place(ranks.index(rank), len(ranks))
        assert ranks == tuple(sorted(ranks))
        for other in ranks:
            assert mesh.at(other).ranks(*names) == ranks
            assert all(
                mesh.at(other).coordinates[each] == at.coordinates[each] for each, _ in dimensions if each not in names
            )
        seen += ranks if place.rank == 0 else ()

    assert sorted(seen) == list(range(mesh.size))


@given(DIMENSIONS)
def test_processes_that_read_the_same_samples(dimensions: Dimensions) -> None:
    """Of those with one place in the data, exactly one leads; one process of all writes."""
    mesh = Mesh(dimensions)
    every = [mesh.at(rank) for rank in range(mesh.size)]
    leaders = [each.data.rank for each in every if each.leads]

    assert leaders == list(range(mesh.data.size))
    assert [each.rank for each in every if each.writes] == [0]
    assert mesh.world.size == mesh.data.size * mesh.along(*MODEL).size


def test_places_of_a_mesh_of_three_dimensions() -> None:
    """Two replicas of two shards, whose layers two processes each compute together."""
    mesh = Mesh((("replicate", 2), ("shard", 2), ("tensor", 2)), 5)

    assert mesh.coordinates == {"replicate": 1, "shard": 0, "tensor": 1}
    assert (mesh.data, mesh.along("tensor")) == (Place(2, 4), Place(1, 2))
    assert mesh.ranks("shard") == (5, 7)
    assert mesh.ranks("replicate", "shard") == (1, 3, 5, 7)
    assert mesh.ranks() == (5,)
    assert mesh.sizes == {"replicate": 2, "shard": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("dimensions", "rank", "said"),
    [
        ((("replicas", 2),), 0, "'replicas' is not a dimension of a mesh; choose among replicate, shard, "),
        ((("shard", 0),), 0, "The dimension shard of a mesh has the size 0; it needs at least 1."),
        ((("shard", 2), ("shard", 2)), 0, "A mesh has the dimensions shard, shard; name each once."),
        ((("shard", 2),), 2, "rank=2 is not in a mesh of 2 processes; ranks are 0 to 1."),
    ],
)
def test_impossible_meshes(dimensions: Dimensions, rank: int, said: str) -> None:
    """A mesh that cannot be says why."""
    with pytest.raises(ValueError, match="^" + said.replace(".", r"\.")):
        Mesh(dimensions, rank)


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@st.composite
def spreads(draw: st.DrawFn) -> Spread:
    """Arrays of up to three dimensions, each divided along some of the dimensions of a mesh."""
    shape, dimensions, flat = draw(SHAPES), draw(DIMENSIONS), draw(st.booleans())
    names = draw(st.lists(st.sampled_from([name for name, _ in dimensions] or ["shard"]), unique=True))
    along = st.just(0) if flat else st.integers(0, len(shape) - 1)
    return Spread(shape, Mesh(dimensions), tuple(Sharded(name, draw(along)) for name in names), flat)


@given(spreads())
def test_holders_have_every_element_once(spread: Spread) -> None:
    """The boxes of the holders make up the array, and each process holds one of them or nothing."""
    boxes = spread.holders()
    elements = [
        first + at for box in boxes.values() for first, length in box.runs(spread.divided) for at in range(length)
    ]

    assert sorted(elements) == list(range(prod(spread.shape)))
    for rank in range(spread.mesh.size):
        box = spread.box(rank)
        assert box.size == 0 or box in boxes.values()
        assert sum(length for _, length in box.runs(spread.divided)) == box.size


@given(
    SHAPES.flatmap(
        lambda shape: st.tuples(st.just(shape), *(st.tuples(st.integers(0, n), st.integers(0, n)) for n in shape))
    )
)
def test_runs_of_a_box(drawn: tuple[tuple[int, ...], ...]) -> None:
    """They are the box's elements in the flattened array, in order, and as few as possible."""
    shape, *ranges = drawn
    box = Box(tuple(min(each) for each in ranges), tuple(abs(first - last) for first, last in ranges))
    indices = product(*(range(length) for length in shape))
    inside = [
        number
        for number, index in enumerate(indices)
        if all(each.start <= at < each.stop for at, each in zip(index, box.slices, strict=True))
    ]
    runs = list(box.runs(shape))

    assert [first + at for first, length in runs for at in range(length)] == inside
    assert all(first + length < later for (first, length), (later, _) in pairwise(runs))


def test_shards_of_shards() -> None:
    """A further dimension of the mesh divides what the first left, also along the same dimension of the array."""
    mesh = Mesh((("shard", 2), ("tensor", 2)))
    spread = Spread((8, 3), mesh, (Sharded("tensor"), Sharded("shard")))

    assert [spread.box(rank).starts[0] for rank in range(4)] == [0, 4, 2, 6]
    assert {box.lengths for box in spread.holders().values()} == {(2, 3)}


def test_arrays_held_in_runs() -> None:
    """Runs of any lengths, and an array that a single process holds."""
    mesh = flat_mesh(1, 3, "shard")
    spread = held_in_runs((2, 3), mesh, "shard", [1, 5, 0])

    assert (spread.own, list(spread.holders())) == (Box((1,), (5,)), [0, 1])
    assert list(held_by_one((2, 3), mesh, 2).holders().items()) == [(2, Box((0,), (6,)))]
    assert held_by_one((), mesh, 0).box(0).size == 1
