"""The order of samples in an epoch, independent of ranks, workers and restarts, and how global batches divide it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import ge


class Order(ABC):
    """A bijection of range(len(order)) that maps a position in an epoch to the index of a sample."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples in an epoch."""

    @abstractmethod
    def _index_at(self, position: int) -> int:
        """Return the index at a position within the epoch."""

    def __getitem__(self, position: int) -> int:
        """Return the index of the sample at `position`, from 0. Raises IndexError outside the epoch."""
        if not 0 <= position < len(self):
            raise IndexError(f"Position {position} is outside an epoch of {len(self)} samples.")
        return self._index_at(position)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the indices of an epoch, in order."""
        return map(self._index_at, range(len(self)))

    def block(self, start: int, stop: int) -> list[int]:
        """Return the indices at the positions `start` to `stop` - 1. Raises IndexError outside the epoch."""
        return [self[position] for position in range(start, stop)]


@frozen
class Sequential(Order):
    """The order of the data set itself: position equals index. Raises ValueError for a negative length."""

    length: int = field(validator=ge(0))

    def __len__(self) -> int:
        return self.length

    def _index_at(self, position: int) -> int:
        return position


def global_batches(global_batch: int, length: int, drop_last: bool, start: int = 0) -> int:
    """Return the number of global batches of `global_batch` samples in the positions `start` to `length` - 1."""
    positions = max(0, length - start)
    return positions // global_batch if drop_last else -(-positions // global_batch)


def rank_slice(positions: range, rank: int, world: int) -> range:
    """Return the part of a global batch for the process `rank` of `world` processes.

    The parts, by rank, make up the batch. If it does not divide evenly, the first ranks take one sample more.
    Raises IndexError for a rank outside the world.
    """
    if not 0 <= rank < world:
        raise IndexError(f"Rank {rank} is not in a world of {world} processes.")
    share, remainder = divmod(len(positions), world)
    first = rank * share + min(rank, remainder)
    return positions[first : first + share + (rank < remainder)]


@frozen
class Shard:
    """Selects the part of every global batch for one process.

    in_blocks: each rank takes a block of `global_batch` / `world_size` positions, the last ranks fewer or none, so that
    the batches are those of a single process. Otherwise the parts are as even as possible.
    """

    rank: int = 0
    world_size: int = 1
    in_blocks: bool = False

    def of(self, positions: range, global_batch: int) -> range:
        """Return the part of a batch of at most `global_batch` positions. In the last batch it may be empty."""
        if self.world_size == 1:
            return positions
        if not self.in_blocks:
            return rank_slice(positions, self.rank, self.world_size)
        size = global_batch // self.world_size
        return positions[self.rank * size : (self.rank + 1) * size]


ALL = Shard()
"""The shard of a single process: everything."""
