"""Batches from a loader of another library on several ranks.

With W ranks, rank r takes the batches r, r + W, ... of the loader, as with accelerate's `prepare`, so that W of its
batches are one global batch; or each of its batches is split. If there are fewer batches or rows than ranks at the end,
the ranks without any compute padding: nothing is repeated.
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
from hexloop.adapters.batches.torch.shares import (
    SampleCounts,
    Share,
    Shares,
    SharesOfRanks,
    as_padding,
    shares_of,
)
from hexloop.adapters.batches.torch.structure import Transfer, row_count, slice_rows
from hexloop.domain.order import rank_slice
from hexloop.domain.order.permutation import sample_key
from hexloop.ports.state import Part

FromRankZero = Callable[[list[str]], list[str]]
"""From the texts of any rank to those of rank 0."""


@frozen
class SharingOptions:
    """How ranks share the batches of a loader.

    splits: split each batch, instead of giving whole batches to the ranks in turn. seed: for the random numbers that
    reading uses. from_rank_zero: replaces the states of the loader's generators by those of rank 0.
    distribute: how batches reach ranks that do not read, if only rank 0 reads; None if each rank reads, and `compare`
    checks what each has read first.
    """

    rank: int
    world_size: int
    seed: int
    splits: bool = False
    from_rank_zero: FromRankZero = list
    distribute: Distribute | None = None
    compare: Compare = accept_any


class ExternalShares(ExternalBatches):
    """Any iterable of batches, of which each reading rank reads all batches and keeps its own."""

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
        self._reads = sharing.distribute is None or sharing.rank == 0
        self._has_compared = False

    def batches_per_epoch(self) -> int | None:
        """Return the number of batches that each rank computes in an epoch, with padding; None if unknown."""
        count, size = super().batches_per_epoch(), self.sharing.world_size
        if count is None or self.sharing.splits:
            return count
        return count // size if self.drops_last else -(-count // size)

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield this rank's shares of the batches from `position` on; see `ExternalBatches.epoch`."""
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
        self._current = epoch, True

    def shares_from(self, epoch: int, position: int) -> Shares:
        """Yield this rank's shares of the batches after the first `position` rows."""
        if position == 0:
            with preserved_rng_states():
                self._restore_generators(self.sharing.from_rank_zero(self._generator_states()))
        if self.sharing.distribute is not None:
            return self.sharing.distribute(self._parts(epoch, position))
        return self._own(self._parts(epoch, position))

    def rows(self, batch: Any) -> int:
        """Return the samples of the batches that all ranks compute at the same time as this one."""
        samples = self._counts.of(batch)
        return row_count(batch) * self.sharing.world_size if samples < 0 else samples

    def export(self) -> Iterator[Part]:
        """Export what `ExternalBatches` exports; nothing if another rank reads."""
        return super().export() if self._reads else iter(())

    def _own(self, parts: SharesOfRanks) -> Shares:
        with closing(parts):
            for shares in parts:
                yield shares[self.sharing.rank]

    def _parts(self, epoch: int, position: int) -> SharesOfRanks:
        batches, size = self._compared(self._open(epoch, position)), self.sharing.world_size
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
        """Yield the batches, and compare the first that is ever read with that of the other ranks."""
        for batch in batches:
            if not self._has_compared and self.sharing.distribute is None:
                self.sharing.compare(batch)
            self._has_compared = True
            yield batch

    def _read(self, epoch: int, position: int = 0, new_pass: bool = False) -> Iterator[Any]:
        read = super()._read
        return KeyedReading(lambda: read(epoch, position, new_pass), self.sharing.seed, epoch, position, row_count)


class KeyedReading:
    """Iterates over batches; each is read with random streams that are determined by its epoch and first row.

    So all ranks draw the same random numbers, and the streams of training are left unchanged.
    """

    def __init__(
        self, start: Callable[[], Iterator[Any]], seed: int, epoch: int, rows: int, count: Callable[[Any], int]
    ) -> None:
        self._seed, self._epoch, self._rows, self._count = seed, epoch, rows, count
        with preserved_rng_states():
            self._seed_streams()
            self._batches = start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with preserved_rng_states():
            self._seed_streams()
            batch = next(self._batches)
        self._rows += self._count(batch)
        return batch

    def _seed_streams(self) -> None:
        seed_streams(sample_key(self._seed, self._epoch, self._rows))


def split(batch: Any, world_size: int) -> tuple[Share, ...]:
    """Split a collated batch: its rows in order, distributed as evenly as possible."""
    rows = row_count(batch)
    slices = [rank_slice(range(rows), rank, world_size) for rank in range(world_size)]
    batches = [slice_rows(batch, mine or range(1), rows) for mine in slices]
    return shares_of(batches, [bool(mine) for mine in slices], rows)


class PresplitBatches(ExternalBatches):
    """A loader that already returns this rank's batches, with as many rows and batches as on every other rank."""

    def __init__(self, loader: Iterable[Any], world_size: int, *args: Any) -> None:
        super().__init__(loader, *args)
        self._world_size = world_size

    def rows(self, batch: Any) -> int:
        """Return the rows of all ranks."""
        return row_count(batch) * self._world_size

    def shares_from(self, epoch: int, position: int) -> Shares:
        """Yield this rank's batches."""
        for batch in self._open(epoch, position):
            yield Share(batch, self.rows(batch))

    def _own_rows(self, position: int) -> int:
        return position // self._world_size


# A loader with a batch sampler, of which each rank reads only its own rows


class SampledShares(ExternalShares):
    """A torch loader whose batch sampler chooses the rows of each batch: each rank reads only its own rows.

    The random streams of every sample are keyed by its position, as in hexloop's own loaders.
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
        self._assigned = AssignedIndices()
        self._own_loader = OwnRowsLoader(loader, self._assigned)

    def shares_from(self, epoch: int, position: int) -> Shares:
        """Yield this rank's shares of the batches after the first `position` rows, which are not read."""
        if position == 0:
            self._epoch_start_states = self.sharing.from_rank_zero(self._generator_states())
        with preserved_rng_states():
            self._restore_generators(self._epoch_start_states)
        self._set_epoch(epoch)
        self._current = epoch, False
        return self._fetched(epoch, position)

    def _fetched(self, epoch: int, position: int) -> Shares:
        sharing = self.sharing
        batches = KeyedReading(lambda: iter(self._batch_sampler), sharing.seed, epoch, 0, len)
        skip_rows(batches, position, self._progress, len)
        noted: deque[tuple[int, bool]] = deque()
        self._assigned.lists = self._own_lists(self._compared(batches), epoch, position, noted)
        for batch in self._own_loader:
            samples, counts = noted.popleft()
            yield Share(batch if counts else as_padding(batch), samples)

    def _own_lists(
        self, batches: Iterator[list[Any]], epoch: int, position: int, noted: deque[tuple[int, bool]]
    ) -> Iterator[list[Any]]:
        """Yield this rank's indices of each global batch, with the keys of their positions.

        Appends to `noted`, for each list, the samples of the global batch and whether the list counts.
        """
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


class AssignedIndices(Sampler[list[Any]]):
    """A batch sampler whose lists of indices are set before each pass."""

    def __init__(self) -> None:
        self.lists: Iterator[list[Any]] = iter(())

    def __iter__(self) -> Iterator[list[Any]]:
        return self.lists


class OwnRowsLoader(DataLoader[Any]):
    """A loader of this rank's rows, otherwise like `loader`.

    Its workers ignore signals to the whole process group, like those of hexloop's own loaders.
    """

    def __init__(self, loader: DataLoader[Any], indices: AssignedIndices) -> None:
        names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
        options = {name: getattr(loader, name) for name in (*names, "prefetch_factor", "persistent_workers")}
        super().__init__(KeyedDataset(loader.dataset), batch_sampler=indices, generator=torch.Generator(), **options)

    def _get_iterator(self) -> Any:
        return super()._get_iterator() if self.num_workers == 0 else ShieldedIterator(self)
