"""Torch data loaders in hexloop's order of samples, and the batches that a run reads from one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hexloop.adapters.batches.torch.rows import row_count
from hexloop.adapters.batches.torch.sampler import OrderedBatchSampler
from hexloop.adapters.batches.torch.shielding import ShieldedIterator


class KeepingLoader(DataLoader[Any]):
    """A loader that can be told to end the workers that it kept for another epoch."""

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return ShieldedIterator(self)

    def stop_workers(self) -> None:
        """End the workers now; the next epoch starts new ones."""
        kept, self._iterator = self._iterator, None
        if isinstance(kept, _MultiProcessingDataLoaderIter):
            kept._shutdown_workers()


class OrderedLoader(KeepingLoader):
    """A loader whose batch sampler can be sent to any position.

    It has a generator of its own, which workers' base seeds are drawn from, so that reading data leaves torch's alone.
    """

    def __init__(self, dataset: Any, batch_sampler: OrderedBatchSampler, **options: Any) -> None:
        super().__init__(dataset, batch_sampler=batch_sampler, generator=torch.Generator(), **options)

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches of `epoch` from the sample at `position` on.

        Without workers the samples are fetched here and now, with none of a loader's own cost for a batch.
        """
        sampler = self.batch_sampler
        assert isinstance(sampler, OrderedBatchSampler)
        sampler.go_to(epoch, position)
        self.generator.manual_seed(epoch)
        if self.num_workers > 0 or self.pin_memory:
            yield from self
            return
        dataset, collate = self.dataset, self.collate_fn
        fetch = getattr(dataset, "__getitems__", None)
        for indices in sampler:
            yield collate(fetch(indices) if fetch else [dataset[index] for index in indices])


class StreamLoader(KeepingLoader):
    """A loader of an iterable data set, which can pass over its first rows without collating them."""

    def __init__(self, dataset: Any, **options: Any) -> None:
        super().__init__(dataset, generator=torch.Generator(), **options)

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches of `epoch` after its first `position` rows."""
        self.generator.manual_seed(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        if self.num_workers > 0 or self.pin_memory or self.batch_size is None:
            batches = iter(self)
            pass_over(batches, position)
            yield from batches
            return
        rows = iter(self.dataset)
        for _ in zip(range(position), rows, strict=False):
            pass
        batch: list[Any] = []
        for row in rows:
            batch.append(row)
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch)
                batch = []
        if batch and not self.drop_last:
            yield self.collate_fn(batch)


def pass_over(batches: Iterator[Any], position: int) -> None:
    """Read and drop the batches that hold the first `position` rows."""
    passed = 0
    while passed < position:
        batch = next(batches, None)
        if batch is None:
            return
        passed += row_count(batch)


def is_iterable(dataset: Any) -> bool:
    """Whether the data can only be read from the start."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
