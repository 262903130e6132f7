"""Global batches as ranges of positions, and the slice of each process."""

from __future__ import annotations

from attrs import frozen


def global_batches(global_batch: int, length: int, drop_last: bool, start: int = 0) -> int:
    """Return the number of global batches of `global_batch` samples in the positions `start` to `length` - 1."""
    positions = max(0, length - start)
    return positions // global_batch if drop_last else -(-positions // global_batch)


def global_batch_range(batch_number: int, global_batch: int, length: int, drop_last: bool, start: int = 0) -> range:
    """Return the positions of the global batch `batch_number`, counted from 0 at the position `start`.

    The last one is shorter if `length` leaves a remainder, and does not exist with `drop_last`.
    Raises IndexError for a batch outside the epoch.
    """
    count = global_batches(global_batch, length, drop_last, start)
    if not 0 <= batch_number < count:
        raise IndexError(f"Global batch {batch_number} is not among the {count} from position {start} on.")
    first = start + batch_number * global_batch
    return range(first, min(first + global_batch, length))


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
