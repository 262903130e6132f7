"""The batches of a rank: what they have in common, however the loader is read, and those of hexloop's own loaders."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

from hexloop.adapters.batches.torch import data_state
from hexloop.adapters.batches.torch.loader import ResumableLoader, length_of
from hexloop.adapters.batches.torch.shares import (
    ALONE,
    SampleCounts,
    Share,
    Shares,
    SharesOfRanks,
    SharingOptions,
    compared,
)
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.domain.errors import DataError
from hexloop.ports.state import Part

Inspect = Callable[[Any], None]
"""Checks the first batch that is read, and raises DataError if a model cannot be trained on it."""


def accept_any(batch: Any) -> None:
    """Accept any batch."""


def too_many_ranks(ranks: int, samples: int) -> str:
    """Return the message of a run with more ranks than samples."""
    return (
        f"The run has {ranks} processes, too many ranks for the data, which have {samples} "
        f"sample{'s' * (samples != 1)}; start at most {samples}, or add samples."
    )


class TorchBatches:
    """Implements the Batches port for a loader: the batches that this rank computes, on its device.

    A subclass reads the loader from any position, and exports what resuming needs beside epoch and position.
    If ranks share what the loader returns, each has its share of every batch. The last batch of an epoch may have fewer
    samples than there are ranks; then the ranks without samples compute a batch that is padding, so that all take the
    same steps.
    usual: the samples of a batch over all ranks that need not be noted for each batch; -1 if every one is.
    at_least: the least number of samples in the first batch of an epoch that is shared; with fewer, `epoch` raises
    DataError.
    """

    rows: Callable[[Any], int]
    """Returns the samples of a batch over all ranks."""

    def __init__(
        self,
        loader: Iterable[Any],
        transfer: Transfer,
        inspect: Inspect = accept_any,
        progress: data_state.Progress = data_state.no_progress,
        sharing: SharingOptions = ALONE,
        usual: int = -1,
        at_least: int = 0,
    ) -> None:
        self.loader: Any = loader
        self.sharing = sharing
        self._transfer, self._inspect, self._progress = transfer, inspect, progress
        self._usual, self._at_least = usual, at_least
        self._by_share = sharing.shares
        if self._by_share:
            self._count_by_share()
        else:  # the loop calls it at every step
            self.rows = row_count if sharing.loaders == 1 else lambda batch: row_count(batch) * sharing.loaders

    def _count_by_share(self) -> None:
        """Read shares, also of a single rank, and count the samples that each says it has."""
        self._by_share = True
        self._counts = SampleCounts(self._usual)
        self.rows = self._shared_rows

    def batches_per_epoch(self) -> int | None:
        """Return the number of batches that each rank computes in an epoch; None if it is not known."""
        return length_of(self.loader)

    def samples_per_epoch(self) -> int | None:
        """Return the length of the loader's dataset; None if it has none."""
        return length_of(getattr(self.loader, "dataset", None))

    @property
    def pads(self) -> bool:
        """Whether the last batch of an epoch is known to have fewer samples than there are ranks."""
        return False

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield this rank's batches from `position` on, on the device. Raises DataError if they cannot be resumed."""
        shares = self._by_share
        read = closing(self.shares_from(epoch, position)) if shares else self._reading(epoch, position)
        move = self._noting() if shares else self._transfer
        with read as batches:
            for first in batches:
                self._check_first(first, position)
                yield move(first)
                del first  # the batch need not live as long as the epoch
                break
            yield from map(move, batches)
        self._finish(epoch)

    def shares_from(self, epoch: int, position: int) -> Shares:
        """Return this rank's shares of the batches from `position` on, where they are, whichever rank reads them."""
        parts = self._parts(epoch, position)
        return self._own(parts) if self.sharing.distribute is None else self.sharing.distribute(parts)

    def export(self) -> Iterator[Part]:
        """Export what resuming needs beside epoch and position; nothing if another rank reads."""
        return self._exported() if self.sharing.reads else iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export. Raises ValueError, changing nothing, if it is invalid."""
        raise NotImplementedError

    # How a subclass reads

    def _reading(self, epoch: int, position: int) -> AbstractContextManager[Iterator[Any]]:
        """Return the batches from `position` on, as the loader returns them."""
        raise NotImplementedError

    def _parts(self, epoch: int, position: int) -> SharesOfRanks:
        """Return the shares of all ranks that this process reads for."""
        raise NotImplementedError

    def _exported(self) -> Iterator[Part]:
        """Return the parts of an export."""
        raise NotImplementedError

    def _refuse_unstorable(self) -> None:
        """Raise DataError if the state of the data cannot be stored; called after the first batch was read."""

    def _finish(self, epoch: int) -> None:
        """Note that the loader is at the end of an epoch."""

    # What is the same for all

    def _check_first(self, first: Any, position: int) -> None:
        """Raise DataError if a run cannot be trained on what is read, or not resumed."""
        if not self._by_share:
            self._inspect(first)
        else:
            if position == 0 and first.samples < self._at_least:
                raise DataError(too_many_ranks(self._at_least, first.samples))
            self._inspect(first.batch)
        if self.sharing.reads:
            self._refuse_unstorable()

    def _own(self, parts: SharesOfRanks) -> Shares:
        """Yield this rank's share of each batch, of which all shares were read, or this one alone."""
        own = self.sharing.own
        with closing(parts):
            for shares in parts:
                yield shares[own % len(shares)]

    def _noting(self) -> Callable[[Share], Any]:
        """Return a function that moves a share to the device, and notes the samples of its batch."""
        transfer, self._counts = self._transfer, SampleCounts(self._usual)
        note = self._counts.note

        def move(share: Share) -> Any:
            batch = transfer(share.batch)
            note(batch, share.samples)
            return batch

        return move

    def _shared_rows(self, batch: Any) -> int:
        samples = self._counts.of(batch)
        return row_count(batch) * self.sharing.ranks.size if samples < 0 else samples


class LoaderBatches(TorchBatches):
    """The batches of one of hexloop's own loaders, which can start anywhere, and collates the shares of ranks."""

    loader: ResumableLoader

    def __init__(
        self,
        loader: ResumableLoader,
        transfer: Transfer,
        inspect: Inspect = accept_any,
        sharing: SharingOptions = ALONE,
        at_least: int = 1,
    ) -> None:
        counts = loader.counts_documents
        usual, at_least = (-1, 0) if counts else (loader.cursor.batch_size, at_least)
        super().__init__(loader, transfer, inspect, sharing=sharing, usual=usual, at_least=at_least)
        if counts and not self._by_share:
            self._count_by_share()

    @property
    def pads(self) -> bool:
        """See `TorchBatches.pads`. With several workers it is not known: each has an incomplete batch."""
        samples, loader = self.samples_per_epoch(), self.loader
        if (
            samples is None
            or loader.counts_documents
            or loader.leaves_out_rest
            or (loader.reads_all and loader.num_workers > 1)
        ):
            return False
        return 0 < samples % loader.cursor.batch_size < self.sharing.ranks.size

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from an export; without parts, epoch and position are enough. Raises ValueError for invalid parts."""
        position = data_state.state_from_parts("standing", parts)
        if position is not None:
            self.loader.load_position(data_state.decode_state(position))

    def _reading(self, epoch: int, position: int) -> AbstractContextManager[Iterator[Any]]:
        return closing(self.loader.batches_from(epoch, position))

    def _parts(self, epoch: int, position: int) -> SharesOfRanks:
        parts = self.loader.parts_from(epoch, position)
        if not self.loader.reads_all or self.sharing.distribute is not None:
            return parts
        return compared(parts, lambda shares: shares[0].first_row, self.sharing.compare)

    def _exported(self) -> Iterator[Part]:
        """Export the read position, which includes the dataset's own state."""
        position = self._position_state()
        return iter(()) if position is None else data_state.state_parts("standing", position)

    def _refuse_unstorable(self) -> None:
        self._position_state()

    def _position_state(self) -> data_state.DataState | None:
        return self.loader.position_state()
