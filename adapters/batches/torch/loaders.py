"""Construction of hexloop's data loaders from plain options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen
from torch.utils.data import DataLoader

from hexloop.adapters.batches.torch.batches import length_of
from hexloop.adapters.batches.torch.collate import ColumnFilter
from hexloop.adapters.batches.torch.data_state import Progress, no_progress
from hexloop.adapters.batches.torch.loader import OrderedLoader, is_iterable
from hexloop.adapters.batches.torch.order import IndexSampler, OrderedBatchSampler, VectorisedPermutation
from hexloop.adapters.batches.torch.random_streams import KeyedDataset, preserved_rng_states
from hexloop.adapters.batches.torch.stream import KeyedRows, StreamLoader
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.order import Order, Sequential, Shard
from hexloop.domain.order.permutation import GroupedByLength

Collate = Callable[[list[Any]], Any]


@frozen
class LoaderFactory:
    """Makes the loaders of one process.

    collate: puts samples together to a batch. columns: those that the model takes; None if it takes any.
    torch_options: keywords of torch's DataLoader, apart from data, order and `collate_fn`.
    seed, data_seed: of random draws in evaluation data, and of the order of training data.
    rank, world_size: this process. dispatches: rank 0 reads for all. keyed: random draws of a sample depend on its
    index, not on who reads it. drop_last: leave out an incomplete last batch.
    sampling: "random", "sequential" or "group_by_length". samples_per_step: samples of an optimizer step.
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
    samples_per_step: Callable[[], int]
    length_column: str
    main_input: str
    progress: Progress = no_progress

    def training(self, dataset: Any, global_batch_size: int) -> OrderedLoader | StreamLoader:
        """Return a loader of the training data. global_batch_size: samples of a batch of all processes together."""
        keyed_by = self.data_seed if self.keyed or self._several_readers else None
        dataset, collate = self._fitted(dataset)
        if is_iterable(dataset):
            if self.sampling == "group_by_length":
                raise ConfigurationError(
                    "train_sampling_strategy='group_by_length' cannot sort an iterable dataset; choose 'random', "
                    "or group the samples in the dataset itself."
                )
            return self._stream(dataset, collate, global_batch_size, keyed_by)
        return self._ordered(dataset, collate, lambda epoch: self.order(dataset, epoch), global_batch_size, keyed_by)

    def evaluation(self, dataset: Any, global_batch_size: int) -> OrderedLoader | StreamLoader:
        """Return a loader of each sample once, in the dataset's own order. Its workers end with each pass."""
        dataset, collate = self._fitted(dataset)
        if is_iterable(dataset):
            keyed_by = self.seed if self.world_size > 1 else None  # all ranks must read the same
            return self._stream(dataset, collate, global_batch_size // self.world_size, keyed_by, evaluates=True)

        def order(_epoch: int) -> Order:
            return Sequential(len(dataset))

        return self._ordered(dataset, collate, order, global_batch_size, evaluates=True)

    def sampled(self, dataset: Any, batch_size: int, sampler: Any) -> DataLoader[Any]:
        """Return torch's own loader in the order of the user's sampler."""
        dataset, collate = self._fitted(dataset)
        return DataLoader(
            dataset, batch_size, sampler=sampler, drop_last=self.drop_last, collate_fn=collate, **self.torch_options
        )

    def training_sampler(self, dataset: Any) -> IndexSampler | None:
        """Return a sampler of the indices of the training data; None if they have none."""
        if dataset is None or is_iterable(dataset):
            return None
        return IndexSampler(lambda epoch: self.order(dataset, epoch))

    def evaluation_sampler(self, dataset: Any) -> IndexSampler | None:
        """Return a sampler of the indices in order; None if the data have none."""
        return None if is_iterable(dataset) else IndexSampler(lambda _epoch: Sequential(len(dataset)))

    def order(self, dataset: Any, epoch: int) -> Order:
        """Return the order of the training samples in an epoch."""
        length = len(dataset)
        if self.sampling == "sequential":
            return Sequential(length)
        permutation = VectorisedPermutation(self.data_seed, epoch, length)
        if self.sampling == "group_by_length":
            step = self.samples_per_step()
            return GroupedByLength(permutation, step, lambda index: self._sample_length(dataset, index))
        return permutation

    @property
    def _several_readers(self) -> bool:
        return self.torch_options["num_workers"] > 0 or self.world_size > 1

    def _stream(
        self, dataset: Any, collate: Collate, batch_size: int, keyed_by: int | None, evaluates: bool = False
    ) -> StreamLoader:
        return StreamLoader(
            dataset,
            batch_size=batch_size,
            key_seed=keyed_by,
            progress=self.progress,
            shards=self._shards(),
            in_turns=evaluates,
            drop_last=self.drop_last,
            collate_fn=collate,
            **self._options(evaluates),
        )

    def _ordered(
        self,
        dataset: Any,
        collate: Collate,
        order: Callable[[int], Order],
        global_batch_size: int,
        keyed_by: int | None = None,
        evaluates: bool = False,
    ) -> OrderedLoader:
        sampler = OrderedBatchSampler(
            order,
            global_batch_size,
            drop_last=self.drop_last,
            keyed_by=keyed_by,
            shard=Shard(self.rank, self.world_size, in_blocks=evaluates),
        )
        data = dataset if keyed_by is None else KeyedDataset(dataset)
        return OrderedLoader(data, sampler, collate_fn=collate, **self._options(evaluates))

    def _options(self, evaluates: bool) -> dict[str, Any]:
        """Return torch's options. Each evaluation has a loader of its own, so its workers do not persist."""
        persistent = self.torch_options["persistent_workers"] and not evaluates
        return {**self.torch_options, "persistent_workers": persistent}

    def _shards(self) -> Sequence[Shard]:
        """Return the ranks for which this process makes batches of iterable data."""
        shards = [Shard(rank, self.world_size) for rank in range(self.world_size)]
        return shards if self.dispatches and self.rank == 0 else [shards[self.rank]]

    def _fitted(self, dataset: Any) -> tuple[Any, Collate]:
        """Return the dataset and the collate function without the columns that the model does not take."""
        if self.columns is None:
            return dataset, self.collate
        if hasattr(dataset, "remove_columns") and getattr(dataset, "column_names", None):
            return _without_unused_columns(dataset, self.columns), self.collate
        return dataset, ColumnFilter(self.collate, self.columns)

    def _sample_length(self, dataset: Any, index: int) -> int:
        with preserved_rng_states():  # a resumed run reads these samples once more
            sample = dataset[index]
        if self.length_column in sample:
            return int(sample[self.length_column])
        if self.main_input in sample:
            return len(sample[self.main_input])
        raise ConfigurationError(
            "train_sampling_strategy='group_by_length' needs the length of each sample, but a sample has neither "
            f"the column {self.length_column!r} nor {self.main_input!r}; add one, or set length_column_name."
        )


def _without_unused_columns(dataset: Any, columns: frozenset[str]) -> Any:
    """Return a `datasets.Dataset` without the columns that the model does not take.

    Raises ConfigurationError, which lists both sides, if no column would be left.
    """
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
