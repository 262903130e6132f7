"""The order of samples in an epoch, independent of ranks, workers and restarts, and how it is divided into batches.

Random orders are functions of the seed: any position in constant time and memory; grouped by length. Randomness is
keyed: a random value depends only on its name (a purpose and some integers), not on earlier draws.
"""

from __future__ import annotations

import hashlib
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from attrs import define, field, frozen
from attrs.validators import ge

from hexloop.domain.errors import ConfigurationError
from hexloop.ports.mesh import Place

Part = TypeVar("Part")


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
        """Return the indices at the positions `start` to `stop` - 1.

        Args:
            start: the first position.
            stop: the position after the last one.

        Raises:
            IndexError: outside the epoch.
        """
        return [self[position] for position in range(start, stop)]


@frozen
class Sequential(Order):
    """The order of the data set itself: position equals index.

    Args:
        length: the number of samples, at least 0.

    Raises:
        ValueError: for a negative length.
    """

    length: int = field(validator=ge(0))

    def __len__(self) -> int:
        return self.length

    def _index_at(self, position: int) -> int:
        return position


# Batches, and the part of a rank


def global_batches(global_batch: int, length: int, drop_last: bool, start: int = 0) -> int:
    """Return the number of global batches of `global_batch` samples in the positions `start` to `length` - 1.

    Args:
        global_batch: samples of a batch over all processes.
        length: the number of samples.
        drop_last: leave out an incomplete last batch.
        start: the first position.
    """
    positions = max(0, length - start)
    return positions // global_batch if drop_last else -(-positions // global_batch)


def rank_slice(positions: range, ranks: Place) -> range:
    """Return the part of a global batch for one of the ranks that share it.

    The parts, by rank, make up the batch. If it does not divide evenly, the first ranks take one sample more.

    Args:
        positions: the positions of a global batch.
        ranks: which of the ranks that share the batch, and of how many.

    Raises:
        IndexError: for a rank outside the world.
    """
    if not 0 <= ranks.rank < ranks.size:
        raise IndexError(f"Rank {ranks.rank} is not in a world of {ranks.size} processes.")
    share, remainder = divmod(len(positions), ranks.size)
    first = ranks.rank * share + min(ranks.rank, remainder)
    return positions[first : first + share + (ranks.rank < remainder)]


@frozen
class Shard:
    """Selects the part of every global batch for one process.

    Args:
        ranks: the place of the process among those that read different samples.
        in_blocks: each rank takes a block of an equal part of `global_batch` positions, the last ranks fewer or none,
            so that the batches are those of a single process. Otherwise the parts are as even as possible.
    """

    ranks: Place = field(factory=Place)
    in_blocks: bool = False

    def of(self, positions: range, global_batch: int) -> range:
        """Return the part of a batch of at most `global_batch` positions. In the last batch it may be empty.

        Args:
            positions: positions in the epoch.
            global_batch: samples of a batch over all processes.
        """
        ranks = self.ranks
        if ranks.size == 1:
            return positions
        if not self.in_blocks:
            return rank_slice(positions, ranks)
        size = global_batch // ranks.size
        return positions[ranks.rank * size : (ranks.rank + 1) * size]

    @property
    def is_first(self) -> bool:
        """Whether this is the part of the first rank."""
        return self.ranks.rank == 0

    def own(self, parts: Sequence[Part]) -> Part | None:
        """Return this process's one of the parts for the ranks, in order; None if there are not as many.

        Args:
            parts: one for each rank, in order.
        """
        return parts[self.ranks.rank] if self.ranks.rank < len(parts) else None


ALL = Shard()
"""The shard of a single process: everything."""


# Random orders

MAX_LENGTH = 2**62

# Up to this length the order is a table, in which every order is equally likely. A network is less random on few cells.
MAX_TABLE_LENGTH = 1024


def _checked_length(length: int) -> int:
    if not 0 <= length <= MAX_LENGTH:
        raise ConfigurationError(
            f"A random order of {length} samples is not supported: it can hold 0 to 2**62 samples. "
            "Pass a data set whose length is in that range."
        )
    return length


def random_words(count: int, purpose: str, *numbers: int) -> tuple[int, ...]:
    """Return `count` independent uniform 64-bit words for a name: `purpose` (one word of text) and any integers.

    They are the bytes of SHAKE-256 (NIST FIPS 202) of the name, so different names have unrelated words.

    Args:
        count: how many words.
        purpose: one word of text.
        *numbers: any integers.
    """
    name = " ".join([purpose, *(format(number, "x") for number in numbers)])
    return struct.unpack(f"<{count}Q", hashlib.shake_256(name.encode()).digest(8 * count))


def random_order(length: int, purpose: str, *numbers: int) -> tuple[int, ...]:
    """Return range(length) in a random order for a name (see `random_words`). All length! orders are equally likely.

    Each index is sorted by a random word. Two words are equal with a probability below length**2 / 2**65.

    Args:
        length: the number of samples.
        purpose: one word of text.
        *numbers: any integers.
    """
    return tuple(sorted(range(length), key=random_words(length, purpose, *numbers).__getitem__))


def sample_key(seed: int, epoch: int, position: int) -> int:
    """Return the 64-bit key of the random streams of the sample at `position` of `epoch`, equal in every process.

    It is the first of the `random_words` of "sample", `seed`, `epoch` and `position`.

    Args:
        seed: the seed of the run.
        epoch: the number of the epoch, from 0.
        position: the position of the sample in the epoch.
    """
    return next(sample_keys(seed, epoch, (position,)))


def sample_keys(seed: int, epoch: int, positions: Iterable[int]) -> Iterator[int]:
    """Yield the `sample_key` of each position, in half the time: the common start of the names is hashed once.

    Args:
        seed: the seed of the run.
        epoch: the number of the epoch, from 0.
        positions: positions in the epoch.
    """
    begun = hashlib.shake_256(f"sample {seed:x} {epoch:x} ".encode())
    for position in positions:
        named = begun.copy()
        named.update(b"%x" % position)
        yield int.from_bytes(named.digest(8), "little")


@frozen
class KeyedPermutation(Order):
    """A random order of `length` samples that only depends on `seed`, `epoch` and `length`.

    `seed` and `epoch` are integers of any size and sign. Up to 1024 samples, `bijection` is a table. Above, it is a
    network on a grid of at least `length` cells, which is applied until the index is below `length` (cycle walking:
    Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002); this is again a bijection.

    Args:
        seed: the seed of the run.
        epoch: the number of the epoch, from 0.
        length: the number of samples.

    Raises:
        ConfigurationError: for a length below 0 or above 2**62.
    """

    seed: int
    epoch: int
    # Checked by a converter, because validators run after the bijection is made.
    length: int = field(converter=_checked_length)
    bijection: tuple[int, ...] | FeistelNetwork = field(init=False, repr=False, eq=False)

    @bijection.default
    def _make_bijection(self) -> tuple[int, ...] | FeistelNetwork:
        make = random_order if self.length <= MAX_TABLE_LENGTH else make_network
        return make(self.length, "order", self.seed, self.epoch, self.length)

    def __len__(self) -> int:
        return self.length

    def _index_at(self, position: int) -> int:
        index = self.bijection[position]
        while index >= self.length:
            index = self.bijection[index]
        return index


# With r rounds and sides of m cells, the differences of pairs of cells in one column deviate from uniform by about
# m**(2 - r/2) (measured for 4 to 8 rounds): 3e-5 for 10 rounds and sides of 32, which needs over 1e10 samples to
# detect. NIST SP 800-38G requires ten rounds for FF1, too.
ROUNDS = 10

WORD = (1 << 64) - 1

# The finaliser of splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014),
# with the constants of Stafford's variant 13. Its last step, a shift by 31, is omitted: only the high half is used.
FIRST_SHIFT, FIRST_FACTOR = 30, 0xBF58476D1CE4E5B9
SECOND_SHIFT, SECOND_FACTOR = 27, 0x94D049BB133111EB


@frozen
class FeistelNetwork:
    """A keyed bijection of the cells 0 to rows * columns - 1 of a grid, counted along the rows.

    A Feistel network that adds modulo the sides instead of using xor, so that the sides can have any length: the
    generalised construction of Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002). The arithmetic
    is that of unsigned 64-bit words with overflow, for grids of up to 2**62 cells.

    Args:
        rows: the rows of the grid.
        columns: the columns of the grid.
        round_keys: an even number of 64-bit words.
    """

    rows: int
    columns: int
    round_keys: tuple[int, ...]

    def __getitem__(self, cell: int) -> int:
        """Return the image of `cell`, which must be on the grid."""
        row, column = divmod(cell, self.columns)
        for row_key, column_key in zip(self.round_keys[::2], self.round_keys[1::2], strict=True):
            row = (row + round_value(column, row_key, self.rows)) % self.rows
            column = (column + round_value(row, column_key, self.columns)) % self.columns
        return row * self.columns + column


def make_network(cells: int, purpose: str, *numbers: int) -> FeistelNetwork:
    """Return a network on a nearly square grid of at least `cells` cells (1 to 2**62), by less than a row more.

    Its keys are the `random_words` of `purpose` and `numbers`.

    Args:
        cells: the least number of cells, 1 to 2**62.
        purpose: one word of text.
        *numbers: any integers.
    """
    rows = math.isqrt(cells - 1) + 1
    return FeistelNetwork(rows, -(-cells // rows), random_words(ROUNDS, purpose, *numbers))


def round_value(half: int, key: int, bound: int) -> int:
    """Return a keyed hash of `half` that is below `bound` (at most 2**32).

    Takes the high half of (32-bit hash times bound) instead of a remainder, which is slower: Lemire, "Fast random
    integer generation in an interval" (ACM TOMACS 2019).

    Args:
        half: one coordinate of a cell.
        key: the key of the round.
        bound: the values are below this, at most 2**32.
    """
    word = (half + key) & WORD
    word = ((word ^ word >> FIRST_SHIFT) * FIRST_FACTOR) & WORD
    word = ((word ^ word >> SECOND_SHIFT) * SECOND_FACTOR) & WORD
    return (word >> 32) * bound >> 32


WINDOW_BATCHES = 50


@define(eq=False)
class GroupedByLength(Order):
    """`order`, sorted by length within windows of 50 global batches, whose batches are then shuffled.

    As in transformers, a small data set gets smaller windows, about four per epoch, because otherwise the same samples
    would share a batch in every epoch. The epoch starts with the longest batch of the first window, so that a lack of
    memory shows at once. (transformers starts with the longest sample of all, for which every length must be read.) An
    incomplete last batch stays last and holds the shortest samples of its window.

    Args:
        order: the order that is sorted.
        global_batch: samples per optimizer step over all processes; the order depends on it.
        length_of: returns the length of the sample at an index; called once for each sample of the window that holds a
            position. One window is cached, so iterating over the positions in order sorts each window once.

    Raises:
        ValueError: if below 1.
    """

    order: KeyedPermutation
    global_batch: int = field(validator=ge(1))
    length_of: Callable[[int], int]
    _kept: tuple[int, Sequence[int]] = field(init=False, repr=False, default=(-1, ()))

    def __len__(self) -> int:
        return len(self.order)

    def _index_at(self, position: int) -> int:
        window, offset = divmod(position, self._window_size())
        kept, indices = self._kept
        if kept != window:
            indices = self._sorted_window(window)
            self._kept = (window, indices)
        return indices[offset]

    def _window_size(self) -> int:
        quarter = len(self) // (4 * self.global_batch)
        return self.global_batch * max(1, min(WINDOW_BATCHES, quarter))

    def _sorted_window(self, window: int) -> list[int]:
        start = window * self._window_size()
        samples = self.order.block(start, min(start + self._window_size(), len(self)))
        samples.sort(key=self.length_of, reverse=True)
        whole, rest = divmod(len(samples), self.global_batch)
        ranking = list(random_order(whole, "batches", self.order.seed, self.order.epoch, len(self), window))
        if window == 0:
            ranking.sort(key=bool)  # moves only 0, the longest batch, to the front
        starts = [number * self.global_batch for number in ranking]
        mixed = [index for first in starts for index in samples[first : first + self.global_batch]]
        return mixed + samples[len(samples) - rest :]


# Micro-batches of nearly equal cost

QUADRATIC_SHARE = 1000
"""The length at which the part of the cost that grows with the square of the length equals the linear part."""


def batch_cost(samples: int, longest: int) -> int:
    """Return the relative cost of a batch of samples that are padded to the longest one.

    It is linear in the padded tokens, and quadratic in the length for attention, as in transformers'
    BatchRebalanceSampler, multiplied by 1000 so that it is a whole number.

    Args:
        samples: the number of samples.
        longest: the longest length among them.
    """
    return samples * longest * (QUADRATIC_SHARE + longest)


def balanced_sizes(lengths: Sequence[int], batches: int) -> list[int]:
    """Return how many samples each batch gets, in order, so that the most expensive batch is as cheap as possible.

    Args:
        lengths: of all samples, in descending order; a batch holds neighbors.
        batches: the number of batches.

    Raises:
        ValueError: if there are fewer samples than batches.
    """
    if not 1 <= batches <= len(lengths):
        raise ValueError(f"{len(lengths)} samples cannot be divided into {batches} batches of at least one sample.")
    unit = [batch_cost(1, length) for length in lengths]
    least, most = unit[0], unit[0] * len(lengths)
    while least < most:  # finds the smallest bound at which batches, filled one after another, hold all samples
        middle = (least + most) // 2
        if _filled(unit, batches, middle) is None:
            least = middle + 1
        else:
            most = middle
    sizes = _filled(unit, batches, most)
    assert sizes is not None
    return sizes


def _filled(unit: Sequence[int], batches: int, bound: int) -> list[int] | None:
    """Return the sizes of batches that cost at most `bound`, the first ones filled up; None if samples are left."""
    sizes, first = list[int](), 0
    for later in reversed(range(batches)):
        left = len(unit) - first - later  # each later batch needs a sample
        sizes.append(size := min(left, bound // unit[first]) if unit[first] else left)
        first += size
    return sizes if first == len(unit) else None
