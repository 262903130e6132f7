"""A run's training data from a torch loader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from hexloop.adapters.batches.torch.data_state import decode_state, state_from_parts, state_parts
from hexloop.adapters.batches.torch.loader import OrderedLoader
from hexloop.adapters.batches.torch.shares import SampleCounts, Share
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.domain.errors import DataError
from hexloop.ports.state import Part

Inspect = Callable[[Any], None]
"""Looks at the first batch that is read, and raises DataError where it cannot be trained on."""


def accept_any(batch: Any) -> None:
    """Any batch will do."""


class LoaderBatches:
    """Answers the Batches port for one of hexloop's own loaders, which can begin anywhere."""

    def __init__(self, loader: OrderedLoader | StreamLoader, transfer: Transfer, inspect: Inspect = accept_any) -> None:
        self.loader = loader
        self._transfer = transfer
        self._inspect = inspect

    def batches_per_epoch(self) -> int | None:
        """The loader's length, where it has one."""
        return length_of(self.loader)

    def samples_per_epoch(self) -> int | None:
        """The data set's length, where it has one."""
        return length_of(self.loader.dataset)

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches from `position` on, on the device.

        Raises DataError where the data keep a state that no checkpoint can hold.
        """
        with closing(self.loader.batches_from(epoch, position)) as batches:
            for batch in batches:
                self._inspect(batch)
                self.loader.standing()
                yield self._transfer(batch)
                break
            yield from map(self._transfer, batches)

    def rows(self, batch: Any) -> int:
        """The length of the batch's first tensor."""
        return row_count(batch)

    def export(self) -> Iterator[Part]:
        """How many samples were read for the batches so far, by whom, and the data set's own state."""
        standing = self.loader.standing()
        return iter(()) if standing is None else state_parts("standing", standing)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from an export; without parts a position says it all. Raises ValueError for somebody else's parts."""
        standing = state_from_parts("standing", parts)
        if standing is not None:
            self.loader.go_on_from(decode_state(standing))


def length_of(data: Any) -> int | None:
    """`len(data)`, or None where it has no length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


Shares = Generator[Share, None, None]
Parts = Generator[tuple[Share, ...], None, None]
"""The shares of every process that this one reads for, batch by batch."""

Distribute = Callable[[Parts], Shares]
"""From what one process reads for all to each one's own; only that process's parts are read."""


def local_share(parts: Parts) -> Shares:
    """Of a process that reads for itself alone."""
    with closing(parts):
        for (share,) in parts:
            yield share


Compare = Callable[[Any], None]
"""Given a witness of what this process reads; see `Share`."""


def too_many_ranks(world: int, samples: int) -> str:
    """What is wrong with a run of more processes than samples."""
    return (
        f"The run has {world} processes, too many ranks for the data, of which there "
        f"{'is 1 sample' if samples == 1 else f'are {samples} samples'}; start at most {samples}, or give more."
    )


class ShardedBatches(LoaderBatches):
    """The share that this process has of every batch.

    The epoch's last batch may have fewer samples than there are processes; then those that have none compute one that
    is padding, so that all take the same steps.
    hand_out: how the shares get to the processes that do not read. `reads`: whether this one does.
    compare: sees to it that all have read the same, where they read by themselves what has no numbers.
    at_least: the samples of an epoch's first batch; with fewer, the epoch ends in a DataError.
    """

    def __init__(
        self,
        loader: OrderedLoader | StreamLoader,
        transfer: Transfer,
        inspect: Inspect = accept_any,
        hand_out: Distribute = local_share,
        reads: bool = True,
        compare: Compare = accept_any,
        at_least: int = 1,
    ) -> None:
        super().__init__(loader, transfer, inspect)
        self._hand_out, self._reads, self._compare = hand_out, reads, compare
        self._at_least = at_least
        self._counts = SampleCounts(loader.place.batch_size)

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The shares of the batches from `position` on; see `LoaderBatches.epoch`."""
        self._counts = counts = SampleCounts(self.loader.place.batch_size)
        with closing(self.shares_from(epoch, position)) as shares:
            for number, share in enumerate(shares):
                if number == 0:
                    if position == 0 and share.samples < self._at_least:
                        raise DataError(too_many_ranks(self._at_least, share.samples))
                    self._inspect(share.batch)
                    if self._reads:
                        self.loader.standing()
                batch = self._transfer(share.batch)
                counts.note(batch, share.samples)
                yield batch

    def shares_from(self, epoch: int, position: int) -> Shares:
        """This process's shares of the batches from `position` on, whoever has read them."""
        with closing(self._hand_out(self.loader.parts_from(epoch, position))) as shares:
            for share in shares:
                if share.witness is not None and self._hand_out is local_share:
                    self._compare(share.witness)
                yield share

    def rows(self, batch: Any) -> int:
        """The samples of the whole batch, of which the epoch's last may have fewer."""
        return self._counts.of(batch)

    def export(self) -> Iterator[Part]:
        """As `LoaderBatches` does; nothing where another process reads."""
        return super().export() if self._reads else iter(())
