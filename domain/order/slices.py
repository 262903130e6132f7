"""A global batch is a range of positions, and each process takes its slice of it."""

from __future__ import annotations

from attrs import frozen


def global_batches(global_batch: int, length: int, drop_last: bool, start: int = 0) -> int:
    """How many global batches of `global_batch` samples the positions `start` to `length` - 1 make."""
    positions = max(0, length - start)
    return positions // global_batch if drop_last else -(-positions // global_batch)


def global_batch_range(batch_number: int, global_batch: int, length: int, drop_last: bool, start: int = 0) -> range:
    """The positions of the global batch `batch_number`, counted from 0 at the position `start`.

    The last one is shorter where `length` leaves a remainder, unless `drop_last` leaves it out.
    Raises IndexError for a batch that the epoch does not have.
    """
    count = global_batches(global_batch, length, drop_last, start)
    if not 0 <= batch_number < count:
        raise IndexError(f"Global batch {batch_number} is not one of the {count} from position {start} on.")
    first = start + batch_number * global_batch
    return range(first, min(first + global_batch, length))


def rank_slice(positions: range, rank: int, world: int) -> range:
    """The part of a global batch that the process `rank` of `world` processes takes.

    The parts in the order of ranks are the batch; the first ranks take one more where it does not divide evenly.
    Raises IndexError for a rank outside the world.
    """
    if not 0 <= rank < world:
        raise IndexError(f"Rank {rank} is not one of a world of {world} processes.")
    share, remainder = divmod(len(positions), world)
    first = rank * share + min(rank, remainder)
    return positions[first : first + share + (rank < remainder)]


@frozen
class Shard:
    """Which part of every global batch a process takes.

    in_blocks: every rank but the last ones takes a whole block of `global_batch` / `world_size` positions, so that
    batches are those that a single process has; else the parts are as even as can be.
    """

    rank: int = 0
    world_size: int = 1
    in_blocks: bool = False

    def of(self, positions: range, global_batch: int) -> range:
        """The part of a batch of at most `global_batch` positions; it may be empty in the last batch of an epoch."""
        if self.world_size == 1:
            return positions
        if not self.in_blocks:
            return rank_slice(positions, self.rank, self.world_size)
        size = global_batch // self.world_size
        return positions[self.rank * size : (self.rank + 1) * size]


ALL = Shard()
"""A process that is alone takes everything."""
