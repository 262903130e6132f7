"""A torch data loader in hexloop's order of samples, which can begin anywhere."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hexloop.adapters.batches.torch.data_state import DataState, capture, is_stateful
from hexloop.adapters.batches.torch.keyed import KeyedDataset
from hexloop.adapters.batches.torch.sampler import OrderedBatchSampler
from hexloop.adapters.batches.torch.shares import Division, Share, shares_of
from hexloop.adapters.batches.torch.shielding import ShieldedIterator
from hexloop.adapters.batches.torch.standing import Place, Standing
from hexloop.adapters.batches.torch.workers import Delivered, Delivering, StateLoading, load_state
from hexloop.domain.order.slices import Shard


class KeepingLoader(DataLoader[Any]):
    """A loader that can be told to end the workers that it kept for another epoch, and knows where it stands.

    It has a generator of its own, which workers' base seeds are drawn from, so that reading data leaves torch's alone.
    """

    place: Place

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

    def standing(self) -> DataState | None:
        """Where this loader stands, after the last batch that was taken from it; None before the first."""
        standing = self.place.saved or self.place.now
        if standing is None:
            return None
        if standing is self.place.now and self.num_workers == 0:
            standing.states = [self.own_state()]
        return capture(self.users_data, standing.document())

    def go_on_from(self, document: dict[str, Any]) -> None:
        """Begin the next epoch that is asked for where `standing` said."""
        self.place.saved = Standing(**document)

    @property
    def users_data(self) -> Any:
        """The data set that the user gave."""
        return self.dataset.dataset if isinstance(self.dataset, KeyedDataset) else self.dataset

    def own_state(self) -> Any:
        """What the data set in this process says of where it stands."""
        return {"data": self.users_data.state_dict()} if is_stateful(self.users_data) else None


class OrderedLoader(KeepingLoader):
    """A loader whose batch sampler can be sent to any position.

    Where workers read a data set that keeps a state, it is given as a KeyedDataset, and each batch brings that state.
    """

    def __init__(self, dataset: Any, batch_sampler: OrderedBatchSampler, **options: Any) -> None:
        workers = options.get("num_workers", 0)
        self._delivers = workers > 0 and isinstance(dataset, KeyedDataset) and is_stateful(dataset.dataset)
        if self._delivers:
            divide = Division(options["collate_fn"], batch_sampler.batch_size)
            options["collate_fn"] = Delivering(divide, stateful=True)
        self.place = Place(
            batch_sampler.batch_size,
            max(workers, 1),
            keeps_readers=workers == 0 or options.get("persistent_workers", False),
            begins_anywhere=not self._delivers,
        )
        super().__init__(dataset, batch_sampler=batch_sampler, generator=torch.Generator(), **options)

    @property
    def shard(self) -> Shard:
        """Which part of every batch this process takes."""
        sampler = self.batch_sampler
        assert isinstance(sampler, OrderedBatchSampler)
        return sampler.shard

    def __iter__(self) -> Any:
        if self._delivers:
            return (each.divided.batches[0] for each in super().__iter__() if each.samples)
        return self._batches(self.batch_sampler)

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches of `epoch` from the sample at `position` on, or from where the loader was told to go on.

        Without workers the samples are fetched here and now, with none of a loader's own cost for a batch.
        """
        sampler = self.batch_sampler
        assert isinstance(sampler, OrderedBatchSampler)
        beginning = self.place.begin(epoch, position)
        standing = beginning.standing
        turns = (standing.last + 1) % self.place.readers if self._delivers else 0
        sampler.go_to(epoch, standing.samples, turns)
        self.generator.manual_seed(epoch)
        if self._delivers:
            states = standing.plain_states if beginning.loads else [None] * self.place.readers
            self.worker_init_fn = StateLoading(states)
            yield from self._delivered(standing)
            return
        if beginning.loads:
            load_state(self.users_data, standing.states[0], "data")
        size = sampler.batch_size
        for batch in self._batches(sampler):
            standing.samples += size  # the epoch's last batch may be shorter, but nothing begins after it
            yield batch

    def parts_from(self, epoch: int, position: int) -> Generator[tuple[Share, ...], None, None]:
        """This process's share, alone, of each batch of `epoch` from the sample at `position` on."""
        sampler, length = self.batch_sampler, len(self.dataset)  # type: ignore[arg-type]
        assert isinstance(sampler, OrderedBatchSampler)
        size = sampler.batch_size
        with closing(self.batches_from(epoch, position)) as batches:
            for first, batch in zip(range(position, length, size), batches, strict=False):
                samples = min(size, length - first)
                counts = samples == size or bool(self.shard.of(range(samples), size))
                yield shares_of([batch], [counts], samples)

    def _batches(self, sampler: Any) -> Iterator[Any]:
        if self.num_workers > 0 or self.pin_memory:
            yield from super().__iter__()
            return
        dataset, collate = self.dataset, self.collate_fn
        fetch = getattr(dataset, "__getitems__", None)
        for indices in sampler:
            yield collate(fetch(indices) if fetch else [dataset[index] for index in indices])

    def _delivered(self, standing: Standing) -> Iterator[Any]:
        each: Delivered
        ranks = self.shard.world_size
        for each in super().__iter__():
            if each.samples:
                standing.note(each.worker, each.samples * ranks, each.state)
                yield each.divided.batches[0]


def is_iterable(dataset: Any) -> bool:
    """Whether the data can only be read from the start."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
