"""The order in which samples are read: index blocks computed with numpy, and the samplers that torch loaders take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from torch.utils.data import Sampler

from hexloop.adapters.batches.torch.random_streams import keyed_indices
from hexloop.domain.order import ALL, Order, Shard, global_batches
from hexloop.domain.order.permutation import (
    FIRST_FACTOR,
    FIRST_SHIFT,
    SECOND_FACTOR,
    SECOND_SHIFT,
    FeistelNetwork,
    KeyedPermutation,
)

Words = NDArray[np.uint64]

CHUNK = 8192
"""Positions permuted at once: few enough for the CPU cache, enough to amortize the cost of a numpy call."""

BLOCK = 4096
"""About how many indices the batch sampler computes at once, so that no step waits long for them."""


@frozen
class VectorisedPermutation(KeyedPermutation):
    """The domain's keyed permutation, bit-identical, in blocks that cost tens of nanoseconds per sample."""

    def block(self, start: int, stop: int) -> list[int]:
        """Return the indices at positions `start` to `stop` - 1. Raises IndexError if one is outside the epoch."""
        found: list[int] = self.indices(start, stop).tolist()
        return found

    def indices(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the indices at positions `start` to `stop` - 1, of shape (stop - start,).

        Memory other than the result does not grow with the block. Raises IndexError if a position is outside the epoch.
        """
        found = np.empty(max(0, stop - start), dtype=np.int64)
        if found.size and not 0 <= start < stop <= self.length:
            raise IndexError(f"Positions {start} to {stop - 1} are not all inside an epoch of {self.length} samples.")
        if isinstance(self.bijection, FeistelNetwork):
            for offset in range(0, found.size, CHUNK):
                chunk = found[offset : offset + CHUNK]
                chunk[:] = self._walk(self.bijection, start + offset, chunk.size)
        else:
            found[:] = self.bijection[start:stop]
        return found

    def _walk(self, network: FeistelNetwork, start: int, count: int) -> Words:
        """Apply the network until every cell is inside the epoch (cycle walking)."""
        cells = _scramble(network, np.arange(count, dtype=np.uint64) + np.uint64(start))
        outside = np.flatnonzero(cells >= self.length)
        while outside.size:
            cells[outside] = _scramble(network, cells[outside])
            outside = outside[cells[outside] >= self.length]
        return cells


def _scramble(network: FeistelNetwork, cells: Words) -> Words:
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
    """Add modulo `bound` in place: subtracting the bound from a smaller sum wraps around to a very large word."""
    half += value
    np.subtract(half, bound, out=scratch)
    np.minimum(half, scratch, out=half)


class OrderedBatchSampler(Sampler[list[Any]]):
    """Batches of indices in the order that `make_order(epoch)` returns, from the position set by `seek`.

    batch_size: samples of a batch over all ranks, of which this rank reads its `shard`. If the shard is empty, it reads
    the first sample of the batch, which must not be counted.
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
        self.seek(0, 0)

    def seek(self, epoch: int, position: int, empty_batches: int = 0) -> None:
        """Start the next iteration at `position`, in samples, of `epoch`, after some batches without samples.

        Loader workers read batches in turn; empty batches advance the turn to the worker that reads next.
        """
        self._epoch = epoch
        self._position = position
        self._empty_batches = empty_batches
        self._order = self._make_order(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of `epoch`."""
        self.seek(epoch, 0)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return global_batches(self.batch_size, len(self._order), self.drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        order, size, start = self._order, self.batch_size, self._position
        for _ in range(self._empty_batches):
            yield []
        left = global_batches(size, len(order), self.drop_last, start)
        stop = min(start + left * size, len(order))
        block = size * max(1, BLOCK // size)
        for first in range(start, stop, block):
            yield from self._batches_of(order.block(first, min(first + block, stop)), first)

    def _batches_of(self, block: list[int], first: int) -> list[list[Any]]:
        """Return this rank's part of each batch of a block that starts at position `first`."""
        size, batches = self.batch_size, []
        for offset in range(0, len(block), size):
            mine = self.shard.of(range(offset, min(offset + size, len(block))), size) or range(offset, offset + 1)
            indices: list[Any] = block[mine.start : mine.stop]
            if self._keyed_by is not None:
                indices = keyed_indices(indices, self._keyed_by, self._epoch, first + mine.start)
            batches.append(indices)
        return batches


class IndexSampler(Sampler[int]):
    """The indices of the epoch set by `set_epoch`, in the order `make_order(epoch)`, for samplers that users build."""

    def __init__(self, make_order: Callable[[int], Order]) -> None:
        self._make_order = make_order
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Return the indices of this epoch from now on."""
        self._order = self._make_order(epoch)

    def __len__(self) -> int:
        """Return the number of indices in an epoch."""
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.block(0, len(self._order)))
