"""Batches from a loader of another library, or from any iterable of batches.

With W ranks, rank r takes the batches r, r + W, ... of the loader, as with accelerate's `prepare`, so that W of its
batches are one global batch; or each of its batches is split. If there are fewer batches or rows than ranks at the end,
the ranks without any compute padding: nothing is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from attrs import frozen
from torch.utils.data import DataLoader, Sampler

from hexloop.adapters.batches.torch import data_state, random_streams
from hexloop.adapters.batches.torch.batches import Inspect, TorchBatches, accept_any
from hexloop.adapters.batches.torch.loader import ShieldedLoader, length_of
from hexloop.adapters.batches.torch.order import KeyedDataset, keyed_indices
from hexloop.adapters.batches.torch.shares import (
    ALONE,
    CollatedShares,
    Share,
    Shares,
    SharesOfRanks,
    SharingOptions,
    as_padding,
    compared,
    split,
)
from hexloop.adapters.batches.torch.stream import restarted, set_epoch
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.domain.json_documents import json_part
from hexloop.domain.order import rank_slice
from hexloop.domain.ranges import Count
from hexloop.domain.schemas import read_part
from hexloop.ports.state import Part


@frozen
class SavedLoaderState:
    """The saved state of a loader: the epoch, whether the loader was at its end, and the loader's `state_dict`."""

    epoch: int
    ended: bool
    state: data_state.DataState


@frozen
class SavedGenerators:
    """The states of the generators of a loader, when the epoch began and at the save, as text.

    epoch, ended: of a loader that has a state: the epoch that it belongs to, and whether that is at its end.
    """

    began: list[str]
    now: list[str]
    epoch: Count | None = None
    ended: bool = False


class ExternalBatches(TorchBatches):
    """The batches of any iterable of batches.

    A loader with `state_dict` and `load_state_dict` resumes from its own state. Any other cannot start in the middle of
    an epoch, so the batches before a position are read and dropped. Before that, torch's generator and those of the
    loader and its samplers are set to their states at the start of the epoch, so that the loader draws the same order
    again; afterwards the random streams of training are restored.
    If ranks share the batches, each reading rank reads all of them and keeps its own.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        transfer: Transfer,
        inspect: Inspect = accept_any,
        progress: data_state.Progress = data_state.no_progress,
        sharing: SharingOptions = ALONE,
    ) -> None:
        super().__init__(loader, transfer, inspect, progress, sharing)
        self._generators = [torch.default_generator, *random_streams.loader_generators(loader)]
        self._epoch_start_states = self._generator_states()
        self._current: tuple[int, bool] | None = None  # the epoch, and whether it is at its end
        self._saved: SavedLoaderState | None = None
        self._new_pass = False  # the loader is at the end of a pass that another process has read
        sampler = getattr(loader, "batch_sampler", None)
        self._drops_last = bool(getattr(sampler, "drop_last", getattr(loader, "drop_last", False)))
        self._has_compared = False

    def batches_per_epoch(self) -> int | None:
        """Return the number of batches that each rank computes in an epoch, with padding; None if it is not known."""
        count, size = super().batches_per_epoch(), self.sharing.ranks.size
        if count is None or self.sharing.splits or not self.sharing.shares:
            return count
        return count // size if self._drops_last else -(-count // size)

    @property
    def pads(self) -> bool:
        """See `TorchBatches.pads`."""
        if self.sharing.splits or self._drops_last or not self.sharing.shares:
            return False
        return (length_of(self.loader) or 0) % self.sharing.ranks.size > 0

    def shares_from(self, epoch: int, position: int) -> Shares:
        """Return this rank's shares of the batches from `position` on: all of them, if it has a loader of its own.

        Ranks that share a loader start an epoch with the generators of rank 0.
        """
        if not self.sharing.shares:
            return (Share(batch, self.rows(batch)) for batch in self._open(epoch, position))
        if position == 0:
            with random_streams.preserved_rng_states():
                self._restore_generators(self.sharing.from_rank_zero(self._generator_states()))
        return super().shares_from(epoch, position)

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export.

        Raises ValueError, changing nothing, if it is invalid, or this loader has a different number of generators.
        """
        found = {part.name: part for part in parts}
        generators = [found.pop("generators")] if "generators" in found else found.values()
        saved = read_part(generators, "generators", SavedGenerators)
        if not len(saved.now) == len(saved.began) == len(self._generators):
            raise ValueError(
                f"The saved data loader had {len(saved.now) - 1} random generators of its own, and this one has "
                f"{len(self._generators) - 1}; resume with the loader that the run was saved with."
            )
        state = data_state.state_from_parts("loader", found.values())
        states = list(map(random_streams.decode_rng_state, saved.now, self._generators))
        list(map(random_streams.decode_rng_state, saved.began, self._generators))
        if state is not None and data_state.is_stateful(self.loader):
            if saved.epoch is None:
                raise ValueError("generators.epoch: it is missing, and there is the state of a loader")
            data_state.decode_state(state)  # refuses an invalid one before anything is loaded
            self._saved = SavedLoaderState(saved.epoch, saved.ended, state)
        self._epoch_start_states = saved.began
        for generator, own in zip(self._generators[1:], states[1:], strict=True):
            generator.set_state(own)

    def _exported(self) -> Iterator[Part]:
        """Export the states of the generators, now and at the start of the epoch, and the loader's state, if any."""
        document: dict[str, Any] = {"began": self._epoch_start_states, "now": self._generator_states()}
        if (saved := self._loader_state()) is not None:
            document |= {"epoch": saved.epoch, "ended": saved.ended}
            yield from data_state.state_parts("loader", saved.state)
        yield json_part("generators", document)

    # Reading

    def _reading(self, epoch: int, position: int) -> AbstractContextManager[Iterator[Any]]:
        return nullcontext(self._open(epoch, position))

    def _refuse_unstorable(self) -> None:
        self._loader_state()

    def _finish(self, epoch: int) -> None:
        self._current = epoch, True

    def _open(self, epoch: int, position: int) -> Iterator[Any]:
        """Return an iterator from where the run resumes."""
        saved, self._saved = self._saved, None
        self._current = epoch, False
        if saved is not None and saved.epoch < epoch:
            self._load_state(saved)
        self._set_epoch(epoch)
        if position == 0:
            self._epoch_start_states = self._generator_states()
            new_pass = self._new_pass or (saved is not None and saved.epoch < epoch)
            self._new_pass = False
            return self._read(epoch, new_pass=new_pass)
        if saved is not None:
            self._load_state(saved)
            self._new_pass = saved.ended
            return iter(()) if saved.ended else self._read(epoch, position)
        with random_streams.preserved_rng_states():
            self._restore_generators(self._epoch_start_states)
            batches = self._read(epoch)
            skip_rows(batches, position // self.sharing.loaders, self._progress)
            return batches

    def _read(self, epoch: int, position: int = 0, new_pass: bool = False) -> Iterator[Any]:
        """Iterate over the loader, which is at `position`; with `new_pass` at the end of the previous pass.

        Ranks that read the same batches read them with the same random streams.
        """

        def start() -> Iterator[Any]:
            return restarted(self.loader) if new_pass else iter(self.loader)

        if not self.sharing.shares:
            return start()
        return random_streams.keyed_reading(start, self.sharing.seed, epoch, position, row_count)

    def _load_state(self, saved: SavedLoaderState) -> None:
        """Load the loader's state; at the end of a pass it then starts the next one as it would have done."""
        self._set_epoch(saved.epoch)
        with random_streams.preserved_rng_states():
            self._restore_generators(self._epoch_start_states)
            self.loader.load_state_dict(data_state.decode_state(saved.state))
            # Some loaders draw random numbers to apply a loaded state, as late as the next call of state_dict().
            self.loader.state_dict()

    def _loader_state(self) -> SavedLoaderState | None:
        """Return the loader's own state; None if it has none or has not been read."""
        if self._saved is not None or self._current is None or not data_state.is_stateful(self.loader):
            return self._saved
        return SavedLoaderState(*self._current, data_state.encode_state(self.loader, self.loader.state_dict()))

    def _set_epoch(self, epoch: int) -> None:
        objects = [*random_streams.loader_and_samplers(self.loader), getattr(self.loader, "dataset", None)]
        for each in {id(each): each for each in objects}.values():
            set_epoch(each, epoch)

    def _generator_states(self) -> list[str]:
        return [random_streams.encode_rng_state(generator.get_state()) for generator in self._generators]

    def _restore_generators(self, states: list[str]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(random_streams.decode_rng_state(state, generator))

    # Shares of ranks

    def _parts(self, epoch: int, position: int) -> SharesOfRanks:
        batches, size = self._compared(self._open(epoch, position)), self.sharing.ranks.size
        if self.sharing.splits:
            for batch in batches:
                yield split(batch, size)
            return
        while group := list(islice(batches, size)):
            if len(group) < size and self._drops_last:
                return
            samples = sum(map(row_count, group))
            missing = size - len(group)
            counted = [True] * len(group) + [False] * missing
            yield CollatedShares(group + group[:1] * missing, counted).by_rank(samples)

    def _compared(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches; in the first pass, the first is compared with that of the other ranks."""
        if self._has_compared or self.sharing.distribute is not None:
            return batches
        self._has_compared = True
        return compared(batches, lambda batch: batch, self.sharing.compare)


def skip_rows(
    batches: Iterator[Any], position: int, progress: data_state.Progress, count: Callable[[Any], int] = row_count
) -> None:
    """Read and drop the batches with the first `position` rows."""
    skipped = 0
    while skipped < position:
        batch = next(batches, None)
        if batch is None:
            return
        skipped += count(batch)
        progress(min(skipped, position), position)


# A loader with a batch sampler, of which each rank reads only its own rows


class SampledBatches(ExternalBatches):
    """A torch loader with a batch sampler: each rank reads only its own rows, with random streams keyed by position."""

    @cached_property
    def _own_loader(self) -> OwnRowsLoader:
        return OwnRowsLoader(self.loader)

    def shares_from(self, epoch: int, position: int) -> Shares:
        """Yield this rank's shares of the batches after the first `position` rows, which are not read."""
        if position == 0:
            self._epoch_start_states = self.sharing.from_rank_zero(self._generator_states())
        with random_streams.preserved_rng_states():
            self._restore_generators(self._epoch_start_states)
        self._set_epoch(epoch)
        self._current = epoch, False
        return self._fetched(epoch, position)

    def _fetched(self, epoch: int, position: int) -> Shares:
        sharing = self.sharing
        sampler = self.loader.batch_sampler if sharing.batch_sampler is None else sharing.batch_sampler
        batches = random_streams.keyed_reading(lambda: iter(sampler), sharing.seed, epoch, 0, len)
        skip_rows(batches, position, self._progress, len)
        noted: deque[tuple[int, bool]] = deque()
        self._own_loader.assigned.lists = self._own_lists(self._compared(batches), epoch, position, noted)
        for batch in self._own_loader:
            samples, counts = noted.popleft()
            yield Share(batch if counts else as_padding(batch), samples)

    def _own_lists(
        self, batches: Iterator[list[Any]], epoch: int, position: int, noted: deque[tuple[int, bool]]
    ) -> Iterator[list[Any]]:
        """Yield this rank's keyed indices of each batch. `noted` gets the batch's samples and whether they count."""
        sharing, size = self.sharing, self.sharing.ranks.size
        while group := list(islice(batches, 1 if sharing.splits else size)):
            if len(group) < size and self._drops_last and not sharing.splits:
                return
            rows = list(chain.from_iterable(group))
            if sharing.splits:
                mine = rank_slice(range(len(rows)), sharing.ranks)
            else:
                own = sharing.own
                mine = range(*(sum(map(len, group[:count])) for count in (own, own + 1)))
            noted.append((len(rows), bool(mine)))
            mine = mine or range(1)
            yield keyed_indices(rows[mine.start : mine.stop], sharing.seed, epoch, position + mine.start)
            position += len(rows)


class AssignedIndices(Sampler[list[Any]]):
    """A batch sampler whose lists of indices are set before each pass."""

    lists: Iterator[list[Any]]

    def __iter__(self) -> Iterator[list[Any]]:
        return self.lists


class OwnRowsLoader(ShieldedLoader):
    """A loader of this rank's rows, otherwise like `loader`."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.assigned = AssignedIndices()
        names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
        options = {name: getattr(loader, name) for name in (*names, "prefetch_factor", "persistent_workers")}
        options["generator"] = torch.Generator()
        super().__init__(KeyedDataset(loader.dataset), batch_sampler=self.assigned, **options)
