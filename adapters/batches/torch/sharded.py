"""A run's training data in one of several processes, from one of hexloop's own loaders."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

from hexloop.adapters.batches.torch.batches import Inspect, LoaderBatches, inspect_nothing
from hexloop.adapters.batches.torch.loader import OrderedLoader
from hexloop.adapters.batches.torch.shares import SampleCounts, Share
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.batches.torch.transfer import Transfer
from hexloop.domain.errors import DataError
from hexloop.ports.state import Part

Shares = Generator[Share, None, None]
Parts = Generator[tuple[Share, ...], None, None]
"""The shares of every process that this one reads for, batch by batch."""

HandOut = Callable[[Parts], Shares]
"""From what one process reads for all to each one's own; only that process's parts are read."""


def own_share(parts: Parts) -> Shares:
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
        inspect: Inspect = inspect_nothing,
        hand_out: HandOut = own_share,
        reads: bool = True,
        compare: Compare = inspect_nothing,
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
                if share.witness is not None and self._hand_out is own_share:
                    self._compare(share.witness)
                yield share

    def rows(self, batch: Any) -> int:
        """The samples of the whole batch, of which the epoch's last may have fewer."""
        return self._counts.of(batch)

    def export(self) -> Iterator[Part]:
        """As `LoaderBatches` does; nothing where another process reads."""
        return super().export() if self._reads else iter(())
