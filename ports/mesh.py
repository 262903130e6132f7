"""How a run is spread over its processes, and how an array is distributed over them: plain values, made once.

A mesh arranges the processes along named dimensions, the last of which varies fastest. Code that deals with data asks
for `Mesh.data`, never for the number of processes, so that a new dimension changes nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from math import prod
from typing import TypeAlias

from attrs import evolve, field, frozen

DATA = ("replicate", "shard", "expert")
"""The dimensions along which processes read different samples.

replicate: each holds all of the model. shard: each a part of every weight. expert: each some of the experts.
"""

MODEL = ("pipeline", "context", "sequence", "tensor")
"""The dimensions along which processes compute parts of the same samples.

pipeline: some of the layers each. context, sequence: some of the positions. tensor: a part of a layer's computation.
"""


Dimensions: TypeAlias = "tuple[tuple[str, int], ...]"
"""The names and sizes of a mesh's dimensions, outermost first."""


@frozen
class Place:
    """The place of a process among those along some dimensions: its number, from 0, and how many there are.

    Args:
        rank: its number, from 0.
        size: how many processes there are.
    """

    rank: int = 0
    size: int = 1


def _known_sizes(_mesh: object, _attribute: object, dimensions: Dimensions) -> None:
    names = [name for name, _ in dimensions]
    for name, size in dimensions:
        if name not in (*DATA, *MODEL):
            raise ValueError(f"{name!r} is not a dimension of a mesh; choose among {', '.join((*DATA, *MODEL))}.")
        if size < 1:
            raise ValueError(f"The dimension {name} of a mesh has the size {size}; it needs at least 1.")
    if len(set(names)) < len(names):
        raise ValueError(f"A mesh has the dimensions {', '.join(names)}; name each once.")


def _in_mesh(mesh: Mesh, _attribute: object, rank: int) -> None:
    if not 0 <= rank < mesh.size:
        raise ValueError(f"rank={rank} is not in a mesh of {mesh.size} processes; ranks are 0 to {mesh.size - 1}.")


@frozen
class Mesh:
    """The processes of a run, as seen by one of them.

    Args:
        dimensions: the names and sizes, outermost first.
        rank: this process's number among all, from 0.

    Raises:
        ValueError: for an unknown or repeated dimension, a size below 1, or a rank outside the mesh.
    """

    dimensions: Dimensions = field(default=(), validator=_known_sizes)
    rank: int = field(default=0, validator=_in_mesh)

    @property
    def size(self) -> int:
        """The number of processes."""
        return prod(size for _, size in self.dimensions)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension that has more than one process."""
        return {name: size for name, size in self.dimensions if size > 1}

    @property
    def coordinates(self) -> dict[str, int]:
        """This process's place along each dimension."""
        found, rest = dict[str, int](), self.rank
        for name, size in reversed(self.dimensions):
            rest, found[name] = divmod(rest, size)
        return found

    @property
    def world(self) -> Place:
        """The place among all processes."""
        return Place(self.rank, self.size)

    @property
    def data(self) -> Place:
        """The place among the processes that read different samples. Those with the same rank read the same ones."""
        return self.along(*DATA)

    @property
    def writes(self) -> bool:
        """Whether this is the process that writes what all of them have, and that speaks for the run."""
        return self.rank == 0

    @property
    def leads(self) -> bool:
        """Whether this is the first of the processes that read the same samples."""
        return self.along(*MODEL).rank == 0

    def along(self, *names: str) -> Place:
        """Return the place among the processes that differ only in these dimensions; a mesh may lack some of them.

        Args:
            *names: the names of dimensions.
        """
        rank, size, coordinates = 0, 1, self.coordinates
        for name, length in self.dimensions:
            if name in names:
                rank, size = rank * length + coordinates[name], size * length
        return Place(rank, size)

    def ranks(self, *names: str) -> tuple[int, ...]:
        """Return the processes that differ from this one only in these dimensions, itself among them, in order.

        Args:
            *names: the names of dimensions.
        """
        coordinates = self.coordinates
        choices = [range(size) if name in names else (coordinates[name],) for name, size in self.dimensions]
        strides = [*accumulate((size for _, size in reversed(self.dimensions[1:])), int.__mul__, initial=1)][::-1]
        return tuple(
            sum(at * stride for at, stride in zip(chosen, strides, strict=False)) for chosen in product(*choices)
        )

    def at(self, rank: int) -> Mesh:
        """Return the mesh as another process sees it.

        Args:
            rank: the rank of a process among all.
        """
        return evolve(self, rank=rank)


def flat_mesh(rank: int, size: int, dimension: str = "replicate") -> Mesh:
    """Return a mesh of one dimension, by default of processes that each hold all of the model.

    Args:
        rank: the rank of a process among all.
        size: how many processes there are.
        dimension: the name of a dimension.
    """
    return Mesh(((dimension, size),), rank)


# How an array is distributed


@frozen
class Box:
    """A rectangular part of an array: its first index and its length along each of the array's dimensions.

    Args:
        starts: the first index along each dimension of the array.
        lengths: the length along each dimension.
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.lengths)

    @property
    def slices(self) -> tuple[slice[int, int, None], ...]:
        """What selects the part from the array."""
        return tuple(slice(start, start + length) for start, length in zip(self.starts, self.lengths, strict=True))

    def runs(self, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the first element and the length of each contiguous run of the box in the flattened array, in order.

        Args:
            shape: of the whole array.
        """
        if self.size == 0:
            return
        inner = len(shape)  # the dimensions from here on are whole, so that the run covers them
        while inner > 0 and self.lengths[inner - 1] == shape[inner - 1]:
            inner -= 1
        outer, length = max(inner - 1, 0), prod(self.lengths[max(inner - 1, 0) :])
        strides = [prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
        first = sum(start * stride for start, stride in zip(self.starts, strides, strict=True))
        for index in product(*map(range, self.lengths[:outer])):
            yield first + sum(at * stride for at, stride in zip(index, strides, strict=False)), length


@frozen
class Sharded:
    """An array is divided among the processes along a dimension of the mesh.

    Args:
        dimension: of the mesh.
        along: the array's dimension that is divided.
        bounds: the first index of each process's part, and the end of the last one; None for equal parts, of which the
            last ones may be smaller or empty.
    """

    dimension: str
    along: int = 0
    bounds: tuple[int, ...] | None = None

    def part(self, start: int, length: int, place: Place) -> tuple[int, int]:
        """Return the part of a process of `length` indices from `start` on, as its first index and its length.

        Args:
            start: the first index.
            length: how many indices.
            place: the process among those that share them.
        """
        if self.bounds is not None:
            first, end = self.bounds[place.rank], self.bounds[place.rank + 1]
        else:
            chunk = -(-length // place.size)
            first, end = (min(number * chunk, length) for number in (place.rank, place.rank + 1))
        return start + first, end - first


@frozen
class Spread:
    """How an array is distributed: each process holds a box of it.

    Args:
        shape: of the whole array.
        mesh: the processes.
        shards: how it is divided, along one dimension of the mesh after the other; a further one divides what the ones
            before it left. Along the mesh's other dimensions it is replicated.
        flat: the array is divided as one row of all its elements, so that its boxes are runs of elements.
    """

    shape: tuple[int, ...]
    mesh: Mesh
    shards: tuple[Sharded, ...] = ()
    flat: bool = False

    @property
    def divided(self) -> tuple[int, ...]:
        """The shape of what is divided: the array's, or one row of its elements."""
        return (prod(self.shape),) if self.flat else self.shape

    @property
    def own(self) -> Box:
        """What this process holds."""
        return self.box(self.mesh.rank)

    def box(self, rank: int) -> Box:
        """Return what a process holds, as a box of `divided`.

        Args:
            rank: the rank of a process among all.
        """
        mesh, starts, lengths = self.mesh.at(rank), [0] * len(self.divided), list(self.divided)
        for each in self.shards:
            at = each.along
            starts[at], lengths[at] = each.part(starts[at], lengths[at], mesh.along(each.dimension))
        return Box(tuple(starts), tuple(lengths))

    def holders(self) -> dict[int, Box]:
        """Return the boxes that are not empty by process, each once: of processes with the same one, the first."""
        first_ones = self.mesh.at(0).ranks(*(each.dimension for each in self.shards))
        boxes = ((rank, self.box(rank)) for rank in first_ones)
        return {rank: box for rank, box in boxes if box.size}


def held_in_runs(shape: tuple[int, ...], mesh: Mesh, dimension: str, lengths: Sequence[int]) -> Spread:
    """Return the spread of an array whose elements the processes along a dimension hold in runs of these lengths.

    Args:
        shape: the lengths of the array's dimensions.
        mesh: the processes along their dimensions.
        dimension: the name of a dimension.
        lengths: how many elements each process holds, in order.
    """
    bounds = tuple(accumulate(lengths, initial=0))
    return Spread(shape, mesh, (Sharded(dimension, 0, bounds),), flat=True)


def held_by_one(shape: tuple[int, ...], mesh: Mesh, rank: int) -> Spread:
    """Return the spread of an array that one process holds whole and the others do not have.

    Args:
        shape: the lengths of the array's dimensions.
        mesh: the processes along their dimensions.
        rank: the rank of a process among all.
    """
    lengths = [prod(shape) if each == rank else 0 for each in range(mesh.size)]
    return held_in_runs(shape, flat_mesh(mesh.rank, mesh.size), "replicate", lengths)
