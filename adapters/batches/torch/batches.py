"""The training data of a run, from one of hexloop's own loaders."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from hexloop.adapters.batches.torch.data_state import decode_state, state_from_parts, state_parts
from hexloop.adapters.batches.torch.loader import OrderedLoader
from hexloop.adapters.batches.torch.random_streams import refuse_invalid_rng_states
from hexloop.adapters.batches.torch.shares import SampleCounts, Shares, SharesOfRanks
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.domain.errors import DataError
from hexloop.ports.state import Part

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
        """Yield the batches from `position` on, on the device.

        Raises DataError if the dataset has a state that cannot be stored in a checkpoint.
        """
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
        """Resume from an export; without parts, epoch and position are enough. Raises ValueError for unknown parts."""
        position = state_from_parts("standing", parts)
        if position is not None:
            document = decode_state(position)
            if document.get("streams") is not None:
                refuse_invalid_rng_states(document["streams"])
            self.loader.resume_from(document)


def length_of(data: Any) -> int | None:
    """Return `len(data)`; None if it has no length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


# Several ranks

Distribute = Callable[[SharesOfRanks], Shares]
"""From the shares of all ranks, as one rank reads them, to those of this rank. Only the reading rank iterates over its
argument."""


def local_share(parts: SharesOfRanks) -> Shares:
    """Yield the shares of a rank that reads only for itself."""
    with closing(parts):
        for (share,) in parts:
            yield share


Compare = Callable[[Any], None]
"""Called with the first row that this rank reads (see `Share`); raises DataError if other ranks read another."""


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
    distribute: how the shares reach ranks that do not read. reads: whether this rank reads.
    compare: checks that all ranks have read the same rows, if each reads data without indices by itself.
    at_least: the least number of samples in the first batch of an epoch; with fewer, `epoch` raises DataError.
    """

    def __init__(
        self,
        loader: OrderedLoader | StreamLoader,
        transfer: Transfer,
        inspect: Inspect = accept_any,
        distribute: Distribute = local_share,
        reads: bool = True,
        compare: Compare = accept_any,
        at_least: int = 1,
    ) -> None:
        super().__init__(loader, transfer, inspect)
        self._distribute, self._reads, self._compare = distribute, reads, compare
        self._at_least = at_least
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
                    if self._reads:
                        self.loader.position_state()
                batch = self._transfer(share.batch)
                counts.note(batch, share.samples)
                yield batch

    def shares_from(self, epoch: int, position: int) -> Shares:
        """Yield this rank's shares of the batches from `position` on, whichever rank reads them."""
        with closing(self._distribute(self.loader.parts_from(epoch, position))) as shares:
            for share in shares:
                if share.first_row is not None and self._distribute is local_share:
                    self._compare(share.first_row)
                yield share

    def rows(self, batch: Any) -> int:
        """Return the samples of the whole batch over all ranks; the last batch of an epoch may have fewer."""
        return self._counts.of(batch)

    def export(self) -> Iterator[Part]:
        """Export what `LoaderBatches` exports; nothing if another rank reads."""
        return super().export() if self._reads else iter(())
