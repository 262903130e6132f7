"""The order in which a loader reads samples, as batches of indices, and samples with random streams of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from torch.utils.data import Dataset, RandomSampler, Sampler, Subset, TensorDataset

from hexloop.adapters.batches.torch.random_streams import preserved_rng_states, seed_streams
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.order import (
    ALL,
    FIRST_FACTOR,
    FIRST_SHIFT,
    SECOND_FACTOR,
    SECOND_SHIFT,
    FeistelNetwork,
    GroupedByLength,
    KeyedPermutation,
    Order,
    Sequential,
    Shard,
    balanced_sizes,
    batch_cost,
    global_batches,
    sample_keys,
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
        """Return the indices at positions `start` to `stop` - 1, as an array. Raises IndexError outside the epoch."""
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


BY_LENGTH = ("group_by_length", "batch_rebalance")
"""The sampling strategies that need the length of each sample."""


@frozen(eq=False)
class SampleOrders:
    """The order of the training samples in each epoch, by sampling strategy.

    sampling: "random", "sequential", "group_by_length" or "batch_rebalance". step: returns the samples of an optimizer
    step of all processes. length_column, main_input: the column with a sample's length, else the one whose length is
    the sample's.
    """

    dataset: Any
    seed: int
    sampling: str
    step: Callable[[], int]
    length_column: str
    main_input: str

    def __call__(self, epoch: int) -> Order:
        """Return the order of an epoch."""
        length = len(self.dataset)
        if self.sampling == "sequential":
            return Sequential(length)
        permutation = VectorisedPermutation(self.seed, epoch, length)
        if self.sampling != "group_by_length":
            return permutation
        return GroupedByLength(permutation, self.step(), self.length_of)

    def length_of(self, index: int) -> int:
        """Return the length of the sample at an index. Raises ConfigurationError if it has none."""
        with preserved_rng_states():  # a resumed run reads these samples once more
            sample = self.dataset[index]
        if self.length_column in sample:
            return int(sample[self.length_column])
        if self.main_input in sample:
            return len(sample[self.main_input])
        raise ConfigurationError(
            f"train_sampling_strategy={self.sampling!r} needs the length of each sample, but a sample has neither "
            f"the column {self.length_column!r} nor {self.main_input!r}; add one, or set length_column_name."
        )


class OrderedBatchSampler(Sampler[list[Any]]):
    """Batches of indices in the order that `make_order(epoch)` returns, from the position set by `seek`.

    batch_size: samples of a batch over all ranks, of which this rank reads its `shard`. If the shard is empty, it reads
    the first sample of the batch, which must not be counted.
    keyed_by: the seed of the samples' random streams; then the batches hold KeyedIndex for a KeyedDataset.
    left_out: by epoch, the position and the number of samples that a run leaves out. The keys of later samples are
    those that they have in data without them.
    """

    has_one_size = True
    """Whether all batches but the last of an epoch have `batch_size` samples over all ranks."""

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
        self.left_out: dict[int, list[tuple[int, int]]] = {}
        self.seek(0, 0)

    def seek(self, epoch: int, position: int, empty_batches: int = 0) -> None:
        """Start the next iteration at `position`, in samples; empty batches before it advance the workers' turn."""
        self._epoch = epoch
        self._position = position
        self._empty_batches = empty_batches
        self._order = self._make_order(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of `epoch`."""
        self.seek(epoch, 0)

    @property
    def is_keyed(self) -> bool:
        """Whether the batches hold KeyedIndex."""
        return self._keyed_by is not None

    def indices_at(self, epoch: int, position: int, count: int) -> list[int]:
        """Return the indices of the samples of all ranks from `position` on, as many as the epoch has."""
        order = self._make_order(epoch)
        return order.block(position, min(position + count, len(order)))

    @property
    def sampler(self) -> IndexSampler:
        """The indices of all ranks in the order of the epoch."""
        sampler = IndexSampler(self._make_order)
        sampler.set_epoch(self._epoch)
        return sampler

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
                start = first + mine.start
                before = sum(samples for position, samples in self.left_out.get(self._epoch, ()) if position < start)
                indices = keyed_indices(indices, self._keyed_by, self._epoch, start - before)
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


class RandomIndexSampler(IndexSampler, RandomSampler):
    """An IndexSampler of random order, which code that asks for torch's RandomSampler recognizes.

    Its attributes are those with which torch samples `dataset` without replacement.
    """

    def __init__(self, dataset: Any, make_order: Callable[[int], Order]) -> None:
        self.data_source, self.replacement, self._num_samples, self.generator = dataset, False, None, None
        super().__init__(make_order)


# Streams keyed by position: random augmentation depends on neither the worker nor the rank that reads a sample


class KeyedIndex(NamedTuple):
    """The index of a sample, and the key of its random streams. (A tuple, because one is made for every sample.)"""

    sample: int
    key: int


class KeyedDataset(Dataset[Any]):
    """`dataset`, with the streams of Python, numpy and torch seeded by a sample's key before the sample is read.

    A batch is collated with the streams as its last sample left them. If reading a sample uses no random numbers, the
    keys have no other effect.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, of: KeyedIndex) -> Any:
        sample, key = of
        seed_streams(key)
        return self.dataset[sample]

    def __getitems__(self, batch: Sequence[KeyedIndex]) -> Sequence[Any]:
        """Return the samples of a batch; in one call if the dataset supports that and runs no user code."""
        if not batch or not only_stored(self.dataset):  # checked for each batch: a transform may be set in between
            return [self[index] for index in batch]
        seed_streams(batch[-1].key)
        samples = [index.sample for index in batch]
        fetch = getattr(self.dataset, "__getitems__", None)
        found: Sequence[Any] = fetch(samples) if fetch else [self.dataset[sample] for sample in samples]
        return found


def only_stored(dataset: Any) -> bool:
    """Return whether reading a sample runs no user code, which might use random numbers.

    A data set that makes samples of another's says so itself, by an attribute of this name.
    """
    if getattr(dataset, "only_stored", None) is True:
        return True
    if type(dataset) is Subset:
        return only_stored(dataset.dataset)
    if (tables := sys.modules.get("datasets")) is not None and type(dataset) is tables.Dataset:
        return bool(dataset.format["type"] != "custom")
    return type(dataset) in (list, tuple, TensorDataset)


def keyed_indices(indices: list[int], seed: int, epoch: int, start: int) -> list[KeyedIndex]:
    """Return the samples at the positions from `start` on, each with the key of its position."""
    return list(map(KeyedIndex, indices, sample_keys(seed, epoch, count(start))))


# Batches of several sizes, so that the micro-batches of an optimizer step have nearly the same cost


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
        world, size = self.shard.ranks.size, self.batch_size
        lengths = {sample: self._length_of(sample) for sample in samples}
        samples = sorted(samples, key=lengths.__getitem__, reverse=True)
        # Of an incomplete micro-batch, ranks may have no sample.
        ranks = [min(world, size, len(samples) - at) for at in range(0, len(samples), size)]
        sizes = balanced_sizes([lengths[sample] for sample in samples], sum(ranks))
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        groups = sorted(
            zip(starts, sizes, strict=True), key=lambda group: -batch_cost(group[1], lengths[samples[group[0]]])
        )
        for number in ranks:
            turn, groups = groups[:number], groups[number:]
            at, length = self.shard.own(turn) or (turn[0][0], 1)
            indices: list[Any] = samples[at : at + length]
            if self._keyed_by is not None:
                indices = keyed_indices(indices, self._keyed_by, self._epoch, first + at)
            yield indices
