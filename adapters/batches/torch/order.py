"""The order of samples a block at a time: the domain's keyed permutation, bit for bit, in whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from torch.utils.data import Sampler

from hexloop.adapters.batches.torch.random_streams import keyed_indices
from hexloop.domain.order import Order
from hexloop.domain.order.permutation import (
    FIRST_FACTOR,
    FIRST_SHIFT,
    SECOND_FACTOR,
    SECOND_SHIFT,
    KeyedPermutation,
    Network,
)
from hexloop.domain.order.slices import ALL, Shard, global_batches

Words = NDArray[np.uint64]

# Positions worked on at once: few enough for the processor's cache, and enough to hide what a call costs.
CHUNK = 8192


@frozen
class VectorisedPermutation(KeyedPermutation):
    """The domain's permutation, whose blocks come at tens of nanoseconds a sample."""

    def block(self, start: int, stop: int) -> list[int]:
        """The indices at the positions `start` to `stop` - 1. Raises IndexError where one is outside the epoch."""
        found: list[int] = self.indices(start, stop).tolist()
        return found

    def indices(self, start: int, stop: int) -> NDArray[np.int64]:
        """The indices at the positions `start` to `stop` - 1, of shape (stop - start,).

        Memory beyond the result does not grow with the block. Raises IndexError where a position is outside the epoch.
        """
        found = np.empty(max(0, stop - start), dtype=np.int64)
        if found.size and not 0 <= start < stop <= self.length:
            raise IndexError(f"Positions {start} to {stop - 1} are not all inside an epoch of {self.length} samples.")
        if isinstance(self.bijection, Network):
            for offset in range(0, found.size, CHUNK):
                chunk = found[offset : offset + CHUNK]
                chunk[:] = self._walk(self.bijection, start + offset, chunk.size)
        else:
            found[:] = self.bijection[start:stop]
        return found

    def _walk(self, network: Network, start: int, count: int) -> Words:
        cells = _scramble(network, np.arange(count, dtype=np.uint64) + np.uint64(start))
        outside = np.flatnonzero(cells >= self.length)
        while outside.size:
            cells[outside] = _scramble(network, cells[outside])
            outside = outside[cells[outside] >= self.length]
        return cells


def indices(seed: int, epoch: int, length: int, start: int, stop: int) -> NDArray[np.int64]:
    """The indices at the positions `start` to `stop` - 1 of an epoch in random order; see VectorisedPermutation."""
    return VectorisedPermutation(seed, epoch, length).indices(start, stop)


def _scramble(network: Network, cells: Words) -> Words:
    rows, columns = network.rows, network.columns
    row = cells // columns
    column = cells - row * columns
    scratch = np.empty_like(cells)
    for row_key, column_key in zip(network.round_keys[::2], network.round_keys[1::2], strict=True):
        _add(row, _round_values(column, row_key, rows, scratch), rows, scratch)
        _add(column, _round_values(row, column_key, columns, scratch), columns, scratch)
    row *= columns
    row += column
    return row


def _round_values(half: Words, key: int, bound: int, scratch: Words) -> Words:
    word = half + key
    word ^= np.right_shift(word, FIRST_SHIFT, out=scratch)
    word *= FIRST_FACTOR
    word ^= np.right_shift(word, SECOND_SHIFT, out=scratch)
    word *= SECOND_FACTOR
    word >>= 32
    word *= bound
    word >>= 32
    return word


def _add(half: Words, value: Words, bound: int, scratch: Words) -> None:
    """Add modulo `bound`, in place: a sum below the bound wraps to a huge word when the bound is taken off."""
    half += value
    np.subtract(half, bound, out=scratch)
    np.minimum(half, scratch, out=half)


BLOCK = 4096
"""About how many positions' indices are worked out at once: enough to be quick, and not so many that a step waits."""


class OrderedBatchSampler(Sampler[list[Any]]):
    """Batches of indices in the order that `make_order(epoch)` gives, from the position that `go_to` named.

    batch_size: the samples of a batch over all processes, of which this one takes those of its `shard`; where there are
    none, it takes the batch's first sample, which is not to be counted.
    keyed_by: the seed of the samples' random streams; then the batches hold KeyedIndex for a KeyedDataset.
    """

    def __init__(
        self,
        make_order: Callable[[int], Order],
        batch_size: int,
        drop_last: bool = False,
        keyed_by: int | None = None,
        shard: Shard = ALL,
    ) -> None:
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.shard = shard
        self._make_order = make_order
        self._keyed_by = keyed_by
        self.go_to(0, 0)

    def go_to(self, epoch: int, position: int, turns: int = 0) -> None:
        """Begin the next iteration at `position`, in samples, of `epoch`, after so many batches without a sample.

        Loader workers take turns; the empty batches give the turn to whoever had it in another process.
        """
        self._epoch = epoch
        self._position = position
        self._turns = turns
        self._order = self._make_order(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration at the start of `epoch`."""
        self.go_to(epoch, 0)

    def __len__(self) -> int:
        """How many batches a whole epoch has."""
        return global_batches(self.batch_size, len(self._order), self.drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        order, size, start = self._order, self.batch_size, self._position
        for _ in range(self._turns):
            yield []
        left = global_batches(size, len(order), self.drop_last, start)
        stop = min(start + left * size, len(order))
        block = size * max(1, BLOCK // size)
        for first in range(start, stop, block):
            yield from self._batches_of(order.block(first, min(first + block, stop)), first)

    def _batches_of(self, block: list[int], first: int) -> list[list[Any]]:
        """This process's part of each batch of a block that begins at the position `first`."""
        size, batches = self.batch_size, []
        for offset in range(0, len(block), size):
            mine = self.shard.of(range(offset, min(offset + size, len(block))), size) or range(offset, offset + 1)
            indices: list[Any] = block[mine.start : mine.stop]
            if self._keyed_by is not None:
                indices = keyed_indices(indices, self._keyed_by, self._epoch, first + mine.start)
            batches.append(indices)
        return batches


class IndexSampler(Sampler[int]):
    """The indices in the order that `make_order(epoch)` gives, of the epoch that `set_epoch` named last."""

    def __init__(self, make_order: Callable[[int], Order]) -> None:
        self._make_order = make_order
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Give the indices of this epoch from now on."""
        self._order = self._make_order(epoch)

    def __len__(self) -> int:
        """How many indices an epoch has."""
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.block(0, len(self._order)))
