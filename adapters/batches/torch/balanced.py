"""Batches whose sizes differ, so that the micro-batches of an optimizer step have nearly the same cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hexloop.adapters.batches.torch.order import OrderedBatchSampler, keyed_indices
from hexloop.domain.order import Order, balanced_sizes, batch_cost, global_batches

BY_LENGTH = ("group_by_length", "batch_rebalance")
"""The sampling strategies that need the length of each sample."""


def rebalances(sampler: object) -> bool:
    """Return whether a sampler is transformers' BatchRebalanceSampler, whose batches are those of one process."""
    return any(each.__name__ == "BatchRebalanceSampler" for each in type(sampler).__mro__)


class BalancedBatchSampler(OrderedBatchSampler):
    """The samples of each optimizer step, sorted by length and divided into micro-batches of nearly equal cost.

    A step has the samples that an `OrderedBatchSampler` of the same order gives it, in as many micro-batches. The most
    expensive ones come first, and those of the same turn go to different ranks, so that no rank waits long for another.
    Positions count as if all batches had `batch_size` samples, which holds wherever a step ends.

    accumulation: the micro-batches of an optimizer step. length_of: the length of the sample at an index, called once
    for each sample of a step.
    """

    has_one_size = False

    def __init__(
        self,
        make_order: Callable[[int], Order],
        batch_size: int,
        accumulation: Callable[[], int],
        length_of: Callable[[int], int],
        **options: Any,
    ) -> None:
        self._accumulation, self._length_of = accumulation, length_of
        super().__init__(make_order, batch_size, **options)

    def __iter__(self) -> Iterator[list[Any]]:
        order, start = self._order, self._position
        for _ in range(self._empty_batches):
            yield []
        batches = global_batches(self.batch_size, len(order), self.drop_last, start)
        stop, step = min(start + batches * self.batch_size, len(order)), self.batch_size * self._accumulation()
        for first in range(start, stop, step):
            yield from self._batches_of_step(order.block(first, min(first + step, stop)), first)

    def _batches_of_step(self, samples: list[int], first: int) -> Iterator[list[Any]]:
        """Yield this rank's batches of a step, whose samples are those from position `first` on."""
        world, size = self.shard.world_size, self.batch_size
        lengths = {sample: self._length_of(sample) for sample in samples}
        samples = sorted(samples, key=lengths.__getitem__, reverse=True)
        # Of an incomplete micro-batch, ranks may have no sample.
        ranks = [min(world, size, len(samples) - at) for at in range(0, len(samples), size)]
        sizes = balanced_sizes([lengths[sample] for sample in samples], sum(ranks))
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        groups = sorted(
            zip(starts, sizes, strict=True), key=lambda group: -batch_cost(group[1], lengths[samples[group[0]]])
        )
        for count in ranks:
            turn, groups = groups[:count], groups[count:]
            at, length = turn[self.shard.rank] if self.shard.rank < count else (turn[0][0], 1)
            indices: list[Any] = samples[at : at + length]
            if self._keyed_by is not None:
                indices = keyed_indices(indices, self._keyed_by, self._epoch, first + at)
            yield indices
