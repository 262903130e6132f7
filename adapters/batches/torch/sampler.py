"""The indices of each batch, from any position of any epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Sampler

from hexloop.adapters.batches.torch.keyed import keyed_indices
from hexloop.domain.order import Order
from hexloop.domain.order.slices import ALL, Shard, global_batches

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
