"""Loaders of hexloop: torch DataLoaders that can start at any position of an epoch; which kind a loader is.

They have the attributes that callers read from loaders that accelerate prepared.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hexloop.adapters.batches.torch.collate import Collate, collate_columns, without_unused_columns
from hexloop.adapters.batches.torch.data_state import DataState, ReadCursor, ReadPosition, encode_state, is_stateful
from hexloop.adapters.batches.torch.order import KeyedDataset, OrderedBatchSampler
from hexloop.adapters.batches.torch.random_streams import loader_and_samplers, refuse_invalid_rng_states
from hexloop.adapters.batches.torch.shares import CollatedShares, ShareCollate, SharesOfRanks
from hexloop.adapters.batches.torch.workers import (
    ShieldedIterator,
    WorkerBatch,
    collate_in_worker,
    load_state,
    load_worker_state,
)


class PreparedLoader(DataLoader[Any]):
    """A torch DataLoader with the attributes of a loader that accelerate prepared.

    total_batch_size: samples of a batch of all processes together.
    """

    total_batch_size: int
    turns = 1
    """How many whole batches of the loader's own make up one of all processes; see `StreamLoader`."""

    counts_documents = False
    """Whether the samples of a batch are not its rows, so that each share says how many it has."""

    _taken: int | None = None
    """Batches taken in the current or last pass of `iter(loader)`; None before one, and where a run reads."""

    _exhausted = False

    @property
    def total_dataset_length(self) -> int:
        """The samples of all processes together. Raises TypeError if the dataset has no length."""
        dataset = self.user_dataset
        return int(dataset.total_length if hasattr(dataset, "total_length") else len(dataset))

    @property
    def remainder(self) -> int:
        """The samples of the last batch, 0 if it is a whole one; -1 before the first pass and where it is not known."""
        length = self._length()
        if length is None or self.leaves_out_rest or not self._has_begun:
            return -1
        return length % self.total_batch_size

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the last batch of the pass has been taken. Of data without a length, only once the pass is over."""
        length = self._length()
        if length is None:
            return self._exhausted
        rest = length % self.total_batch_size if self.leaves_out_rest else 0
        return self._has_begun and self._samples_taken >= length - rest

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`. A run does this itself."""
        batches: Any = self.batch_sampler
        followers: list[Any] = [batches, getattr(batches, "sampler", None), self.user_dataset]
        for each in followers:
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)

    @property
    def user_dataset(self) -> Any:
        """The dataset that the user passed."""
        return self.dataset

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a pass, and count them."""
        self._taken, self._exhausted = 0, False
        self.begin()
        try:
            for batch in batches:
                self._taken += 1
                yield batch
            self._exhausted = True
        finally:
            self.end()

    def begin(self) -> None:
        """Let accelerate's `GradientState`, if there is one, have this loader as the one that is read."""
        if not any(self is each for each in _passes()):
            _PASSES.append(weakref.ref(self))
        announce_passes()

    def end(self) -> None:
        """Undo `begin`."""
        _PASSES[:] = [weakref.ref(each) for each in _passes() if each is not self]
        state = _gradient_state()
        if state is not None:
            state.dataloader_references = [each for each in state.dataloader_references if each is not self]

    @property
    def _has_begun(self) -> bool:
        return self._taken is not None

    @property
    def _samples_taken(self) -> int:
        """The samples of the batches taken in this pass, or more after an incomplete batch."""
        return (self._taken or 0) * self.total_batch_size

    @property
    def leaves_out_rest(self) -> bool:
        """Whether samples that do not fill a batch are left out."""
        return bool(getattr(self.batch_sampler, "drop_last", self.drop_last))

    def _length(self) -> int | None:
        with suppress(TypeError):
            return self.total_dataset_length
        return None


class SampledLoader(PreparedLoader):
    """A loader in the order of the user's sampler. total_batch_size: see `PreparedLoader`."""

    def __init__(self, dataset: Any, total_batch_size: int, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.total_batch_size = total_batch_size

    def __iter__(self) -> Any:
        return self.counted(super().__iter__())


class ShieldedLoader(DataLoader[Any]):
    """A loader whose workers ignore the signals that stop a run."""

    def _get_iterator(self) -> Any:
        return super()._get_iterator() if self.num_workers == 0 else ShieldedIterator(self)


class ResumableLoader(PreparedLoader):
    """A loader that knows its read position, and can end the workers that it keeps between epochs.

    It has its own generator for the base seeds of workers, so that reading data does not advance torch's generator.
    samples: how many are read for a batch. seekable: see `ReadCursor`.
    """

    reads_all = False
    """Whether each rank reads all data, instead of only its own share."""

    def __init__(self, dataset: Any, samples: int, seekable: bool, **options: Any) -> None:
        workers = options.get("num_workers", 0)
        keeps_readers = workers == 0 or options.get("persistent_workers", False)
        self.cursor = ReadCursor(samples, max(workers, 1), keeps_readers, seekable)
        super().__init__(dataset, generator=torch.Generator(), **options)

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return ShieldedIterator(self)

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches of `epoch` from the sample at `position`, or from the saved position of the cursor."""
        raise NotImplementedError

    def parts_from(self, epoch: int, position: int) -> SharesOfRanks:
        """Yield the shares of the ranks that this process reads for, from the sample at `position`."""
        raise NotImplementedError

    def _read(self) -> Iterator[Any]:
        """Yield the batches of torch's iterator, and end its workers with it, unless they are kept between epochs.

        After an error they would otherwise live for as long as its traceback.
        """
        batches = super().__iter__()
        try:
            yield from batches
        finally:
            if batches is not self._iterator and isinstance(batches, _MultiProcessingDataLoaderIter):
                batches._shutdown_workers()

    def renew(self) -> None:
        """Let the seeds of workers start again, as those of a new loader."""
        self.generator.manual_seed(torch.Generator().initial_seed())

    def stop_workers(self) -> None:
        """End the workers now; the next epoch starts new ones."""
        kept, self._iterator = self._iterator, None
        if isinstance(kept, _MultiProcessingDataLoaderIter):
            kept._shutdown_workers()

    def load_position(self, document: Any) -> None:
        """Resume from a stored read position. Raises ValueError for one that no reading leads to."""
        if isinstance(document, dict) and "window" in document:
            return  # of packed rows: the position in samples counts
        saved = ReadPosition.saved(document, "standing")
        if saved.streams is not None:
            refuse_invalid_rng_states(saved.streams)
        self.cursor.saved = saved

    def position_state(self) -> DataState | None:
        """Return the read position after the last batch that was taken from this loader; None before the first."""
        position = self.cursor.saved or self.cursor.current
        if position is None:
            return None
        if position is self.cursor.current and self.num_workers == 0:
            position.states = [self.local_state()]
        return encode_state(self.user_dataset, position.document())

    @property
    def user_dataset(self) -> Any:
        """The dataset that the user passed."""
        return self.dataset.dataset if isinstance(self.dataset, KeyedDataset) else self.dataset

    @property
    def _has_begun(self) -> bool:
        return self._taken is not None or self.cursor.current is not None

    @property
    def _samples_taken(self) -> int:
        current = self.cursor.current
        return super()._samples_taken if self._taken is not None or current is None else current.samples

    def local_state(self) -> Any:
        """Return the state of the dataset in this process; None if it has none."""
        return {"data": self.user_dataset.state_dict()} if is_stateful(self.user_dataset) else None


class OrderedLoader(ResumableLoader):
    """A loader whose batch sampler can seek. If workers read a KeyedDataset with a state, it comes with each batch."""

    def __init__(self, dataset: Any, batch_sampler: OrderedBatchSampler, **options: Any) -> None:
        has_workers = options.get("num_workers", 0) > 0
        self.order = batch_sampler
        self._with_state = has_workers and isinstance(dataset, KeyedDataset) and is_stateful(dataset.dataset)
        if self._with_state:
            collate = ShareCollate(options["collate_fn"], batch_sampler.batch_size)
            options["collate_fn"] = partial(collate_in_worker, collate, True)
        size, seekable = batch_sampler.batch_size, not self._with_state
        super().__init__(dataset, size, seekable, batch_sampler=batch_sampler, **options)
        self.total_batch_size = size

    def __iter__(self) -> Any:
        if self._with_state:
            return self.counted(each.shares.batches[0] for each in self._read() if each.samples)
        return self.counted(self._batches())

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches of `epoch` from the sample at `position`, or from the saved position of the cursor.

        Without workers the samples are fetched directly, without the cost per batch of torch's iterator.
        """
        self._taken = None
        current, _ = self.cursor.start(epoch, position)
        empty_batches = (current.last + 1) % self.cursor.readers if self._with_state else 0
        self.order.seek(epoch, current.samples, empty_batches)
        self.generator.manual_seed(epoch)
        size = self.order.batch_size
        self.begin()
        if self._with_state:
            self.worker_init_fn = partial(load_worker_state, current.plain_states)
            each: WorkerBatch
            for each in self._read():
                if each.samples:
                    samples = each.samples * self.order.shard.ranks.size if self.order.has_one_size else size
                    current.note(each.worker, samples, each.state)
                    yield each.shares.batches[0]
            return
        load_state(self.user_dataset, current.states[0], "data")
        for batch in self._batches():
            current.samples += size  # too many after a shorter last batch, after which nothing is read
            yield batch

    def parts_from(self, epoch: int, position: int) -> SharesOfRanks:
        """Yield this rank's share, alone, of each batch of `epoch` from the sample at `position`."""
        length, size = len(self.dataset), self.order.batch_size  # type: ignore[arg-type]
        with closing(self.batches_from(epoch, position)) as batches:
            for first, batch in zip(range(position, length, size), batches, strict=False):
                samples = min(size, length - first)
                counts = samples == size or bool(self.order.shard.of(range(samples), size))
                yield CollatedShares([batch], [counts]).by_rank(samples)

    def _batches(self) -> Iterator[Any]:
        if self.num_workers > 0 or self.pin_memory:
            yield from self._read()
            return
        dataset, collate = self.dataset, self.collate_fn
        fetch = getattr(dataset, "__getitems__", None)
        for indices in self.order:
            yield collate(fetch(indices) if fetch else [dataset[index] for index in indices])


# Passes in progress

_PASSES: list[weakref.ref[PreparedLoader]] = []
"""The loaders that are being read; the last one is read at the moment."""


def _passes() -> list[PreparedLoader]:
    return [loader for loader in (reference() for reference in _PASSES) if loader is not None]


def announce_passes() -> None:
    """Let accelerate's `GradientState`, if there is one, have the loaders that are being read."""
    state = _gradient_state()
    if state is not None:
        known = state.dataloader_references
        state.dataloader_references = [*known, *(each for each in _passes() if not any(each is one for one in known))]


def _gradient_state() -> Any:
    """Return accelerate's `GradientState`; None if it is not imported, or has no state yet."""
    kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    return kind() if kind is not None and kind._shared_state else None


def ordered_loader(
    dataset: Any, collate: Collate, make_batches: Callable[[], OrderedBatchSampler], **options: Any
) -> OrderedLoader:
    """Return a loader of a dataset with indices; if the batches are keyed, with random streams for each sample."""
    batches = make_batches()
    data = KeyedDataset(dataset) if batches.is_keyed else dataset
    return OrderedLoader(data, batches, collate_fn=collate, **options)


# What kind of loader or dataset it is


def is_iterable(dataset: Any) -> bool:
    """Return whether the dataset can only be read from the start."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def reads_by_index(loader: Any) -> bool:
    """Return whether the loader reads as torch's own DataLoader, with a batch sampler that chooses rows by index."""
    own = type(loader) in (DataLoader, SampledLoader)
    return own and loader.batch_sampler is not None and not is_iterable(loader.dataset)


def is_sharded_already(loader: Any) -> bool:
    """Return whether each rank's loader returns that rank's batches: with a DistributedSampler, or from accelerate."""
    prepared = any(kind.__module__.startswith("accelerate.") for kind in type(loader).__mro__)
    return prepared or distributed_sampler(loader) is not None


def distributed_sampler(loader: Any) -> DistributedSampler[Any] | None:
    """Return the sampler by which the loader reads only a part of the data; None if there is none."""
    for sampler in loader_and_samplers(loader):
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            return sampler
    return None


def unsharded_batches(loader: Any) -> BatchSampler | None:
    """Return batches of all rows, each once, for a loader with a DistributedSampler, which repeats some rows.

    None if the loader does not build its batches with torch's standard BatchSampler.
    """
    sampler = distributed_sampler(loader)
    if sampler is None or type(loader.batch_sampler) is not BatchSampler or not reads_by_index(loader):
        return None
    whole: DistributedSampler[Any] = DistributedSampler(sampler.dataset, 1, 0, sampler.shuffle, sampler.seed)
    whole.set_epoch(sampler.epoch)
    return BatchSampler(whole, loader.batch_sampler.batch_size, drop_last=False)


def fitted(dataset: Any, collate: Collate, columns: frozenset[str] | None) -> tuple[Any, Collate]:
    """Return the dataset and the collate function without the columns that the model does not take.

    columns: those that it takes; None if it takes any.
    """
    if columns is None:
        return dataset, collate
    if has_own_columns(dataset):
        return without_unused_columns(dataset, columns), collate
    return dataset, partial(collate_columns, collate, columns)


def has_own_columns(dataset: Any) -> bool:
    """Return whether the columns of a dataset of `datasets` are those of its samples: it has no transform.

    A transform (`with_transform`) reads the stored columns and returns others.
    """
    transformed = getattr(dataset, "format", None)
    is_transformed = isinstance(transformed, Mapping) and transformed.get("type") == "custom"
    return hasattr(dataset, "remove_columns") and bool(getattr(dataset, "column_names", None)) and not is_transformed


# Sizes


def length_of(data: Any) -> int | None:
    """Return `len(data)`; None if it has no length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def example_count(loader: Any) -> int | None:
    """Return the number of samples of a loader's dataset; None if it is not known."""
    return length_of(loader.user_dataset if isinstance(loader, PreparedLoader) else getattr(loader, "dataset", None))


def expected_rows(loader: Any) -> int | None:
    """Return the largest number of samples that a loader's batches may hold; None if it is not known."""
    if getattr(loader, "counts_documents", False):
        return None  # a row has several
    count, batches = example_count(loader), length_of(loader)
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if count is None or batches is None or size is None:
        return count
    return int(min(count, batches * size * (loader.turns if isinstance(loader, PreparedLoader) else 1)))
