"""Construction of hexloop's data loaders, and the training data of a run that they hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from attrs import frozen
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from hexloop.adapters.batches.torch.balanced import BY_LENGTH, BalancedBatchSampler, rebalances
from hexloop.adapters.batches.torch.collate import Collate, collate_columns
from hexloop.adapters.batches.torch.data_state import (
    Progress,
    ReadPosition,
    decode_state,
    no_progress,
    state_from_parts,
    state_parts,
)
from hexloop.adapters.batches.torch.loader import OrderedLoader, is_iterable
from hexloop.adapters.batches.torch.order import (
    IndexSampler,
    KeyedDataset,
    OrderedBatchSampler,
    RandomIndexSampler,
    VectorisedPermutation,
    preserved_rng_states,
    refuse_invalid_rng_states,
)
from hexloop.adapters.batches.torch.prepared import SampledLoader
from hexloop.adapters.batches.torch.shares import (
    SampleCounts,
    Share,
    Shares,
    SharesOfRanks,
    SharingOptions,
    compared,
)
from hexloop.adapters.batches.torch.stream import KeyedRows, StreamLoader
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.domain.errors import ConfigurationError, DataError
from hexloop.domain.order import GroupedByLength, Order, Sequential, Shard
from hexloop.ports.state import Part


@frozen
class LoaderFactory:
    """Makes the loaders of one process.

    collate: puts samples together to a batch. columns: those that the model takes; None if it takes any.
    torch_options: keywords of torch's DataLoader, apart from data, order and `collate_fn`.
    seed, data_seed: of random draws in evaluation data, and of the order of training data.
    rank, world_size: this process. dispatches: rank 0 reads for all. keyed: random draws of a sample depend on its
    index, not on who reads it. drop_last: leave out an incomplete last batch.
    sampling: "random", "sequential", "group_by_length" or "batch_rebalance". training_batch: samples of a micro-batch
    of all processes in training. accumulation: micro-batches of an optimizer step.
    length_column, main_input: the column with a sample's length, else the one whose length is the sample's.
    progress: called while samples are skipped.
    """

    collate: Collate
    columns: frozenset[str] | None
    torch_options: Mapping[str, Any]
    seed: int
    data_seed: int
    rank: int
    world_size: int
    dispatches: bool
    keyed: bool
    drop_last: bool
    sampling: str
    training_batch: Callable[[], int]
    accumulation: Callable[[], int]
    length_column: str
    main_input: str
    progress: Progress = no_progress

    def training(self, dataset: Any, global_batch_size: int) -> OrderedLoader | StreamLoader:
        """Return a loader of the training data. global_batch_size: samples of a batch of all processes together."""
        keyed_by, given = self._keyed_by, dataset  # which has the column of lengths
        dataset, collate = self.fitted(dataset)
        if is_iterable(dataset):
            if self.sampling in BY_LENGTH:
                raise ConfigurationError(
                    f"train_sampling_strategy={self.sampling!r} cannot sort an iterable dataset; choose 'random', "
                    "or group the samples in the dataset itself."
                )
            return self._stream(dataset, collate, global_batch_size, keyed_by)
        return self._ordered(dataset, collate, self._training_batches(given, global_batch_size, keyed_by))

    def evaluation(self, dataset: Any, global_batch_size: int) -> OrderedLoader | StreamLoader:
        """Return a loader of each sample once, in the dataset's own order. Its workers end with each pass."""
        dataset, collate = self.fitted(dataset)
        if is_iterable(dataset):
            keyed_by = self.seed if self.world_size > 1 else None  # all ranks must read the same
            return self._stream(dataset, collate, global_batch_size // self.world_size, keyed_by, evaluates=True)
        shard = Shard(self.rank, self.world_size, in_blocks=True)
        batches = OrderedBatchSampler(
            lambda _: Sequential(len(dataset)), global_batch_size, drop_last=self.drop_last, shard=shard
        )
        return self._ordered(dataset, collate, batches, evaluates=True)

    def sampled(self, dataset: Any, batch_size: int, sampler: Any, global_batch_size: int) -> DataLoader[Any]:
        """Return a loader in the order of the user's sampler; batch_size: of one process.

        Raises ConfigurationError for transformers' BatchRebalanceSampler, which samples for one of several processes.
        """
        dataset, collate = self.fitted(dataset)
        if isinstance(sampler, OrderedBatchSampler):  # that of `training_sampler`
            return self._ordered(dataset, collate, sampler)
        options: dict[str, Any] = {"batch_size": batch_size, "sampler": sampler, "drop_last": self.drop_last}
        if rebalances(sampler):
            if self.world_size > 1:
                raise ConfigurationError(
                    "The sampler is a BatchRebalanceSampler, which returns the batches of one process, but hexloop "
                    "divides the batches among the processes itself; set train_sampling_strategy='batch_rebalance'."
                )
            options = {"batch_sampler": sampler}
        return SampledLoader(dataset, global_batch_size, collate_fn=collate, **options, **self.torch_options)

    def training_sampler(self, dataset: Any) -> Sampler[Any] | None:
        """Return a sampler of the indices of the training data; None if they have none.

        With "batch_rebalance" it is one of batches, as in transformers.
        """
        if dataset is None or is_iterable(dataset):
            return None
        if self.sampling == "batch_rebalance":
            return self._training_batches(dataset, self.training_batch(), self._keyed_by)
        if self.sampling == "sequential":
            return SequentialSampler(dataset)
        kind = IndexSampler if self.sampling == "group_by_length" else partial(RandomIndexSampler, dataset)
        return kind(lambda epoch: self.order(dataset, epoch))

    def evaluation_sampler(self, dataset: Any) -> Sampler[int] | None:
        """Return a sampler of the indices in order; None if the data have none."""
        return None if is_iterable(dataset) else SequentialSampler(dataset)

    def order(self, dataset: Any, epoch: int) -> Order:
        """Return the order of the training samples in an epoch."""
        length = len(dataset)
        if self.sampling == "sequential":
            return Sequential(length)
        permutation = VectorisedPermutation(self.data_seed, epoch, length)
        if self.sampling != "group_by_length":
            return permutation
        step = self.training_batch() * self.accumulation()
        return GroupedByLength(permutation, step, partial(self._sample_length, dataset))

    @property
    def _keyed_by(self) -> int | None:
        several_readers = self.torch_options["num_workers"] > 0 or self.world_size > 1
        return self.data_seed if self.keyed or several_readers else None

    def _training_batches(self, dataset: Any, global_batch_size: int, keyed_by: int | None) -> OrderedBatchSampler:
        order, shard = partial(self.order, dataset), Shard(self.rank, self.world_size)
        options: dict[str, Any] = {"drop_last": self.drop_last, "keyed_by": keyed_by, "shard": shard}
        if self.sampling != "batch_rebalance":
            return OrderedBatchSampler(order, global_batch_size, **options)
        length_of = partial(self._sample_length, dataset)
        return BalancedBatchSampler(order, global_batch_size, self.accumulation, length_of, **options)

    def _stream(
        self, dataset: Any, collate: Collate, batch_size: int, keyed_by: int | None, evaluates: bool = False
    ) -> StreamLoader:
        ranks = range(self.world_size) if self.dispatches and self.rank == 0 else (self.rank,)
        return StreamLoader(
            dataset,
            batch_size=batch_size,
            key_seed=keyed_by,
            progress=self.progress,
            shards=[Shard(rank, self.world_size) for rank in ranks],
            in_turns=evaluates,
            drop_last=self.drop_last,
            collate_fn=collate,
            **self._options(evaluates),
        )

    def _ordered(
        self, dataset: Any, collate: Collate, batches: OrderedBatchSampler, evaluates: bool = False
    ) -> OrderedLoader:
        data = KeyedDataset(dataset) if batches.is_keyed else dataset
        return OrderedLoader(data, batches, collate_fn=collate, **self._options(evaluates))

    def _options(self, evaluates: bool) -> dict[str, Any]:
        """Return torch's options. Each evaluation has a loader of its own, so its workers do not persist."""
        persistent = self.torch_options["persistent_workers"] and not evaluates
        return {**self.torch_options, "persistent_workers": persistent}

    def fitted(self, dataset: Any) -> tuple[Any, Collate]:
        """Return the dataset and the collate function without the columns that the model does not take."""
        if self.columns is None:
            return dataset, self.collate
        if has_own_columns(dataset):
            return without_unused_columns(dataset, self.columns), self.collate
        return dataset, partial(collate_columns, self.collate, self.columns)

    def _sample_length(self, dataset: Any, index: int) -> int:
        with preserved_rng_states():  # a resumed run reads these samples once more
            sample = dataset[index]
        if self.length_column in sample:
            return int(sample[self.length_column])
        if self.main_input in sample:
            return len(sample[self.main_input])
        raise ConfigurationError(
            f"train_sampling_strategy={self.sampling!r} needs the length of each sample, but a sample has neither "
            f"the column {self.length_column!r} nor {self.main_input!r}; add one, or set length_column_name."
        )


def has_own_columns(dataset: Any) -> bool:
    """Return whether the columns of a dataset of `datasets` are those of its samples: it has no transform.

    A transform (`with_transform`) reads the stored columns and returns others.
    """
    transformed = getattr(dataset, "format", None)
    is_transformed = isinstance(transformed, Mapping) and transformed.get("type") == "custom"
    return hasattr(dataset, "remove_columns") and bool(getattr(dataset, "column_names", None)) and not is_transformed


def without_unused_columns(dataset: Any, columns: frozenset[str]) -> Any:
    """Return a `datasets.Dataset` with only the columns that the model takes. Raises ConfigurationError without one."""
    unused = [name for name in dataset.column_names if name not in columns]
    if len(unused) == len(dataset.column_names):
        raise ConfigurationError(
            f"The model takes none of the dataset's columns: the dataset has {', '.join(unused)}, and the model "
            f"takes {', '.join(sorted(columns))}; rename the columns, or set remove_unused_columns=False and "
            "select the columns in the data_collator."
        )
    if unused:
        logging.getLogger("hexloop").info(
            "The columns %s of the dataset are left out, because the model's forward does not take them; "
            "set remove_unused_columns=False to keep them.",
            ", ".join(unused),
        )
    return dataset.remove_columns(unused)


# Batches

Inspect = Callable[[Any], None]
"""Checks the first batch that is read, and raises DataError if a model cannot be trained on it."""


def accept_any(batch: Any) -> None:
    """Accept any batch."""


class LoaderBatches:
    """Implements the Batches port for one of hexloop's own loaders, which can start anywhere."""

    def __init__(self, loader: OrderedLoader | StreamLoader, transfer: Transfer, inspect: Inspect = accept_any) -> None:
        self.loader = loader
        self._transfer = transfer
        self._inspect = inspect

    def batches_per_epoch(self) -> int | None:
        """Return the loader's length; None if it has none."""
        return length_of(self.loader)

    def samples_per_epoch(self) -> int | None:
        """Return the dataset's length; None if it has none."""
        return length_of(self.loader.dataset)

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches from `position` on, on the device. Raises DataError if their state cannot be stored."""
        with closing(self.loader.batches_from(epoch, position)) as batches:
            for batch in batches:
                self._inspect(batch)
                self.loader.position_state()
                yield self._transfer(batch)
                break
            yield from map(self._transfer, batches)

    def rows(self, batch: Any) -> int:
        """Return the length of the batch's first tensor."""
        return row_count(batch)

    def export(self) -> Iterator[Part]:
        """Export the read position, which includes the dataset's own state."""
        position = self.loader.position_state()
        return iter(()) if position is None else state_parts("standing", position)

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export; without parts, epoch and position are enough. Raises ValueError for invalid parts."""
        position = state_from_parts("standing", parts)
        if position is not None:
            saved = ReadPosition.saved(decode_state(position), "standing")
            if saved.streams is not None:
                refuse_invalid_rng_states(saved.streams)
            self.loader.cursor.saved = saved


# Several ranks


def too_many_ranks(world_size: int, samples: int) -> str:
    """Return the message of a run with more ranks than samples."""
    return (
        f"The run has {world_size} processes, too many ranks for the data, which have {samples} "
        f"sample{'s' * (samples != 1)}; start at most {samples}, or add samples."
    )


class ShardedBatches(LoaderBatches):
    """This rank's share of every batch.

    The last batch of an epoch may have fewer samples than there are ranks; then the ranks without samples compute a
    batch that is padding, so that all take the same steps.
    at_least: the least number of samples in the first batch of an epoch; with fewer, `epoch` raises DataError.
    """

    def __init__(
        self,
        loader: OrderedLoader | StreamLoader,
        sharing: SharingOptions,
        transfer: Transfer,
        inspect: Inspect = accept_any,
        at_least: int = 1,
    ) -> None:
        super().__init__(loader, transfer, inspect)
        self._sharing, self._at_least = sharing, at_least
        self._counts = SampleCounts(loader.cursor.batch_size)

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the shares of the batches from `position` on; see `LoaderBatches.epoch`."""
        self._counts = counts = SampleCounts(self.loader.cursor.batch_size)
        with closing(self.shares_from(epoch, position)) as shares:
            for number, share in enumerate(shares):
                if number == 0:
                    if position == 0 and share.samples < self._at_least:
                        raise DataError(too_many_ranks(self._at_least, share.samples))
                    self._inspect(share.batch)
                    if self._sharing.reads:
                        self.loader.position_state()
                batch = self._transfer(share.batch)
                counts.note(batch, share.samples)
                yield batch

    def shares_from(self, epoch: int, position: int) -> Shares:
        """Return this rank's shares of the batches from `position` on, whichever rank reads them."""
        parts = self.loader.parts_from(epoch, position)
        return self._own(parts) if self._sharing.distribute is None else self._sharing.distribute(parts)

    def _own(self, parts: SharesOfRanks) -> Shares:
        with closing(parts):
            shares: Iterator[Share] = (share for (share,) in parts)
            if isinstance(self.loader, StreamLoader):
                shares = compared(shares, lambda share: share.first_row, self._sharing.compare)
            yield from shares

    def rows(self, batch: Any) -> int:
        """Return the samples of the whole batch over all ranks; the last batch of an epoch may have fewer."""
        return self._counts.of(batch)

    def export(self) -> Iterator[Part]:
        """Export what `LoaderBatches` exports; nothing if another rank reads."""
        return super().export() if self._sharing.reads else iter(())


# Sizes


def length_of(data: Any) -> int | None:
    """Return `len(data)`; None if it has no length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def example_count(loader: Any) -> int | None:
    """Return the number of samples of a loader's dataset; None if it is not known."""
    dataset = getattr(loader, "dataset", None)
    return length_of(dataset.dataset if isinstance(dataset, KeyedDataset | KeyedRows) else dataset)


def expected_rows(loader: Any) -> int | None:
    """Return the largest number of samples that a loader's batches may hold; None if it is not known."""
    count, batches = example_count(loader), length_of(loader)
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if count is None or batches is None or size is None:
        return count
    return int(min(count, batches * size * (loader.turns if isinstance(loader, StreamLoader) else 1)))
