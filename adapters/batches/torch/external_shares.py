"""A loader of somebody else's among several processes.

Of its batches the process `rank` of W takes those of the numbers rank, rank + W, and so on, as accelerate's `prepare`
does it; so W of its batches are one of the run. Or each of its batches is split. Where there are fewer batches or rows
than processes at the end, those that have none compute padding: nothing is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from attrs import frozen
from torch.utils.data import DataLoader, Sampler

from hexloop.adapters.batches.torch.batches import Compare, Distribute, Inspect, accept_any
from hexloop.adapters.batches.torch.data_state import Progress, no_progress
from hexloop.adapters.batches.torch.external import ExternalBatches, skip_rows
from hexloop.adapters.batches.torch.loader import ShieldedIterator
from hexloop.adapters.batches.torch.random_streams import (
    KeyedDataset,
    keyed_indices,
    preserved_rng_states,
    seed_streams,
)
from hexloop.adapters.batches.torch.shares import SampleCounts, Share, as_padding, shares_of
from hexloop.adapters.batches.torch.structure import Transfer, row_count, slice_rows
from hexloop.domain.order.permutation import sample_key
from hexloop.domain.order.slices import rank_slice
from hexloop.ports.state import Part

Shares = Generator[Share, None, None]
FromRankZero = Callable[[list[str]], list[str]]
"""From texts of every process to those of the first."""


@frozen
class SharingOptions:
    """How a loader is shared among the processes.

    splits: each batch among all, instead of whole batches in turn. seed: of what its reading draws at random.
    tell: lets the first process say where the loader's generators stand. hand_out: how batches get to those that do not
    read, where rank 0 reads for all; None where each reads for itself, and `compare`, given what it read first, sees to
    it that all have read the same.
    """

    rank: int
    world_size: int
    seed: int
    splits: bool = False
    tell: FromRankZero = list
    hand_out: Distribute | None = None
    compare: Compare = accept_any


class KeyedReading:
    """Iterates over batches, each read with random streams of its own, which its epoch and first row alone determine.

    So every process draws the same, and training's streams are left alone.
    """

    def __init__(
        self, begin: Callable[[], Iterator[Any]], seed: int, epoch: int, rows: int, count: Callable[[Any], int]
    ) -> None:
        self._seed, self._epoch, self._rows, self._count = seed, epoch, rows, count
        with preserved_rng_states():
            self._put()
            self._batches = begin()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with preserved_rng_states():
            self._put()
            batch = next(self._batches)
        self._rows += self._count(batch)
        return batch

    def _put(self) -> None:
        seed_streams(sample_key(self._seed, self._epoch, self._rows))


class ExternalShares(ExternalBatches):
    """Any iterable of batches, all of which every process reads that reads at all; it keeps those that are its own."""

    def __init__(
        self,
        loader: Iterable[Any],
        sharing: SharingOptions,
        transfer: Transfer,
        inspect: Inspect = accept_any,
        progress: Progress = no_progress,
    ) -> None:
        super().__init__(loader, transfer, inspect, progress)
        self.sharing = sharing
        self._counts = SampleCounts(-1)
        sampler = getattr(loader, "batch_sampler", None)
        self.drops_last = bool(getattr(sampler, "drop_last", getattr(loader, "drop_last", False)))
        self._reads = sharing.hand_out is None or sharing.rank == 0
        self._has_compared = False

    def batches_per_epoch(self) -> int | None:
        """How many batches each process computes in an epoch, padding included; None where nobody knows."""
        count, size = super().batches_per_epoch(), self.sharing.world_size
        if count is None or self.sharing.splits:
            return count
        return count // size if self.drops_last else -(-count // size)

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """This process's shares of the batches from `position` on; see `ForeignBatches.epoch`."""
        self._counts = counts = SampleCounts(-1)
        with closing(self.shares_from(epoch, position)) as shares:
            for number, share in enumerate(shares):
                if number == 0:
                    self._inspect(share.batch)
                    if self._reads:
                        self._loader_state()
                batch = self._transfer(share.batch)
                counts.note(batch, share.samples)
                yield batch
        self._now = epoch, True

    def shares_from(self, epoch: int, position: int) -> Shares:
        """This process's shares of the batches after the first `position` rows."""
        if position == 0:
            with preserved_rng_states():
                self._put_back(self.sharing.tell(self._states()))
        if self.sharing.hand_out is not None:
            return self.sharing.hand_out(self._parts(epoch, position))
        return self._own(self._parts(epoch, position))

    def rows(self, batch: Any) -> int:
        """The samples of the batches that all processes compute with this one."""
        samples = self._counts.of(batch)
        return row_count(batch) * self.sharing.world_size if samples < 0 else samples

    def export(self) -> Iterator[Part]:
        """As `ForeignBatches` does; nothing where another process reads."""
        return super().export() if self._reads else iter(())

    def _own(self, parts: Generator[tuple[Share, ...], None, None]) -> Shares:
        with closing(parts):
            for shares in parts:
                yield shares[self.sharing.rank]

    def _parts(self, epoch: int, position: int) -> Generator[tuple[Share, ...], None, None]:
        batches, size = self._compared(self._opened(epoch, position)), self.sharing.world_size
        if self.sharing.splits:
            for batch in batches:
                yield split(batch, size)
            return
        while group := list(islice(batches, size)):
            if len(group) < size and self.drops_last:
                return
            samples = sum(map(row_count, group))
            missing = size - len(group)
            yield shares_of(group + group[:1] * missing, [True] * len(group) + [False] * missing, samples)

    def _compared(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, of which the first that is ever read is compared with that of the other processes."""
        for batch in batches:
            if not self._has_compared and self.sharing.hand_out is None:
                self.sharing.compare(batch)
            self._has_compared = True
            yield batch

    def _read(self, epoch: int, position: int = 0, anew: bool = False) -> Iterator[Any]:
        begin = super()._read
        return KeyedReading(lambda: begin(epoch, position, anew), self.sharing.seed, epoch, position, row_count)


class PresplitBatches(ExternalBatches):
    """A loader that gives this process its own batches already, as many rows and batches as every other process."""

    def __init__(self, loader: Iterable[Any], world_size: int, *args: Any) -> None:
        super().__init__(loader, *args)
        self._world_size = world_size

    def rows(self, batch: Any) -> int:
        """The rows of all processes."""
        return row_count(batch) * self._world_size

    def shares_from(self, epoch: int, position: int) -> Shares:
        """This process's batches."""
        for batch in self._opened(epoch, position):
            yield Share(batch, self.rows(batch))

    def _own_rows(self, position: int) -> int:
        return position // self._world_size


class AssignedIndices(Sampler[list[Any]]):
    """Lists of indices that are put in anew for each pass."""

    def __init__(self) -> None:
        self.lists: Iterator[list[Any]] = iter(())

    def __iter__(self) -> Iterator[list[Any]]:
        return self.lists


class OwnRowsLoader(DataLoader[Any]):
    """A loader of the rows that are this process's alone, otherwise as `loader`.

    Workers outlive a signal to the whole process group, as those of hexloop's own loaders do.
    """

    def __init__(self, loader: DataLoader[Any], turns: AssignedIndices) -> None:
        names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
        options = {name: getattr(loader, name) for name in (*names, "prefetch_factor", "persistent_workers")}
        super().__init__(KeyedDataset(loader.dataset), batch_sampler=turns, generator=torch.Generator(), **options)

    def _get_iterator(self) -> Any:
        return super()._get_iterator() if self.num_workers == 0 else ShieldedIterator(self)


class SampledShares(ExternalShares):
    """A torch loader whose batch sampler says which rows make a batch: each process reads its own rows alone.

    Every sample's random streams are keyed by its position, as in hexloop's own loaders.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sharing: SharingOptions,
        transfer: Transfer,
        inspect: Inspect = accept_any,
        progress: Progress = no_progress,
        batch_sampler: Iterable[list[Any]] | None = None,
    ) -> None:
        super().__init__(loader, sharing, transfer, inspect, progress)
        self._batch_sampler: Any = loader.batch_sampler if batch_sampler is None else batch_sampler
        self._turns = AssignedIndices()
        self._fetching = OwnRowsLoader(loader, self._turns)

    def shares_from(self, epoch: int, position: int) -> Shares:
        """This process's shares of the batches after the first `position` rows, which are not read."""
        if position == 0:
            self._epoch_began_with = self.sharing.tell(self._states())
        with preserved_rng_states():
            self._put_back(self._epoch_began_with)
        self._tell_epoch(epoch)
        self._now = epoch, False
        return self._fetched(epoch, position)

    def _fetched(self, epoch: int, position: int) -> Shares:
        sharing = self.sharing
        batches = KeyedReading(lambda: iter(self._batch_sampler), sharing.seed, epoch, 0, len)
        skip_rows(batches, position, self._progress, len)
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


def split(batch: Any, world_size: int) -> tuple[Share, ...]:
    """A batch that is collated already, its rows dealt out as evenly as can be, in order."""
    rows = row_count(batch)
    slices = [rank_slice(range(rows), rank, world_size) for rank in range(world_size)]
    batches = [slice_rows(batch, mine or range(1), rows) for mine in slices]
    return shares_of(batches, [bool(mine) for mine in slices], rows)
