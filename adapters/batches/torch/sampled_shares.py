"""A loader of somebody else's among several processes, each of which reads its own rows alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from hexloop.adapters.batches.torch.batches import Inspect, inspect_nothing, pass_over
from hexloop.adapters.batches.torch.foreign_shares import ForeignShares, KeyedReading, Shares, Sharing
from hexloop.adapters.batches.torch.keyed import KeyedDataset, keyed_indices
from hexloop.adapters.batches.torch.shares import Share, as_padding
from hexloop.adapters.batches.torch.shielding import ShieldedIterator
from hexloop.adapters.batches.torch.standing import Progress, no_progress
from hexloop.adapters.batches.torch.streams import kept_streams
from hexloop.adapters.batches.torch.transfer import Transfer
from hexloop.domain.order.slices import rank_slice


class Turns(Sampler[list[Any]]):
    """Lists of indices that are put in anew for each pass."""

    def __init__(self) -> None:
        self.lists: Iterator[list[Any]] = iter(())

    def __iter__(self) -> Iterator[list[Any]]:
        return self.lists


class OwnRowsLoader(DataLoader[Any]):
    """A loader of the rows that are this process's alone, otherwise as `loader`.

    Workers outlive a signal to the whole process group, as those of hexloop's own loaders do.
    """

    def __init__(self, loader: DataLoader[Any], turns: Turns) -> None:
        names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
        options = {name: getattr(loader, name) for name in (*names, "prefetch_factor", "persistent_workers")}
        super().__init__(KeyedDataset(loader.dataset), batch_sampler=turns, generator=torch.Generator(), **options)

    def _get_iterator(self) -> Any:
        return super()._get_iterator() if self.num_workers == 0 else ShieldedIterator(self)


class SampledShares(ForeignShares):
    """A torch loader whose batch sampler says which rows make a batch: each process reads its own rows alone.

    Every sample's random streams are keyed by its position, as in hexloop's own loaders.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sharing: Sharing,
        transfer: Transfer,
        inspect: Inspect = inspect_nothing,
        progress: Progress = no_progress,
        batch_sampler: Iterable[list[Any]] | None = None,
    ) -> None:
        super().__init__(loader, sharing, transfer, inspect, progress)
        self._batch_sampler: Any = loader.batch_sampler if batch_sampler is None else batch_sampler
        self._turns = Turns()
        self._fetching = OwnRowsLoader(loader, self._turns)

    def shares_from(self, epoch: int, position: int) -> Shares:
        """This process's shares of the batches after the first `position` rows, which are not read."""
        if position == 0:
            self._epoch_began_with = self.sharing.tell(self._states())
        with kept_streams():
            self._put_back(self._epoch_began_with)
        self._tell_epoch(epoch)
        self._now = epoch, False
        return self._fetched(epoch, position)

    def _fetched(self, epoch: int, position: int) -> Shares:
        sharing = self.sharing
        batches = KeyedReading(lambda: iter(self._batch_sampler), sharing.seed, epoch, 0, len)
        pass_over(batches, position, self._progress, len)
        noted: deque[tuple[int, bool]] = deque()
        self._turns.lists = self._own_lists(self._compared(batches), epoch, position, noted)
        for batch in self._fetching:
            samples, counts = noted.popleft()
            yield Share(batch if counts else as_padding(batch), samples)

    def _own_lists(
        self, batches: Iterator[list[Any]], epoch: int, position: int, noted: deque[tuple[int, bool]]
    ) -> Iterator[list[Any]]:
        """The indices of this process, each with the key of its position; of what is noted there is one for each."""
        sharing, size = self.sharing, self.sharing.world_size
        while group := list(islice(batches, 1 if sharing.splits else size)):
            if len(group) < size and self.drops_last and not sharing.splits:
                return
            samples = sum(map(len, group))
            if sharing.splits:
                mine = rank_slice(range(samples), sharing.rank, size)
            else:
                ends = [sum(map(len, group[:number])) for number in range(size + 1)]
                mine = range(ends[sharing.rank], ends[sharing.rank + 1])
            noted.append((samples, bool(mine)))
            together = [index for indices in group for index in indices]
            first = mine.start if mine else 0
            taken = together[first : mine.stop if mine else 1]
            yield keyed_indices(taken, sharing.seed, epoch, position + first)
            position += samples
