"""The rows of data that can only be read from the start, as a worker reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from hexloop.adapters.batches.torch.keyed import seed_streams
from hexloop.adapters.batches.torch.workers import PASSED
from hexloop.domain.order.permutation import sample_key


@frozen
class Start:
    """Where a worker begins.

    waits, passed: how many rows it hands out as PASSED, the latter after it read them. read: how many it need not read,
    as its data set's state is after them. anew: whether that state is of a pass that is over. ended: whether there are
    no more rows in this one.
    """

    waits: int = 0
    passed: int = 0
    read: int = 0
    anew: bool = False
    ended: bool = False


class KeyedRows(IterableDataset[Any]):
    """The rows of `dataset` as workers read them, each with its own random streams where there is a `key_seed`.

    starts: where the first iteration of each worker begins. last_key: that of the row that was made last.
    """

    def __init__(self, dataset: Any, key_seed: int | None, workers: int) -> None:
        self.dataset, self.key_seed = dataset, key_seed
        self.starts = [Start()] * workers
        self.epoch: Tensor = torch.zeros((), dtype=torch.int64)
        if workers:
            self.epoch.share_memory_()  # type: ignore[no-untyped-call]  # workers that stay see it change
        self.last_key: int | None = None
        self._readers = max(workers, 1)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        epoch, worker = int(self.epoch), info.id
        start = self.starts[worker]
        self.starts[worker] = Start(anew=start.ended)
        # Workers that stay have not heard of it; where they share what it sets, it is set already and they do not race.
        set_epoch(self.dataset, epoch)
        for _ in range(start.waits):
            yield PASSED
        if start.ended:
            return
        rows = begun_again(self.dataset) if start.anew else iter(self.dataset)
        for number, row in enumerate(self.keyed(rows, epoch, start.read, worker)):
            yield PASSED if number < start.passed else row

    def keyed(self, rows: Iterator[Any], epoch: int, read: int = 0, worker: int = 0) -> Iterator[Any]:
        """The rows after the first `read` of a worker, each made with its own random streams."""
        return rows if self.key_seed is None else self._seeded(rows, self.key_seed, epoch, read, worker)

    def _seeded(self, rows: Iterator[Any], seed: int, epoch: int, read: int, worker: int) -> Iterator[Any]:
        while True:
            self.last_key = sample_key(seed, epoch, read * self._readers + worker)
            seed_streams(self.last_key)
            try:
                row = next(rows)
            except StopIteration:
                return
            yield row
            read += 1


def begun_again(data: Any, follow: Callable[[Iterator[Any]], Iterator[Any]] = lambda rows: rows) -> Iterator[Any]:
    """What a new pass gives over data whose state is of the end of the last one.

    Some data go on from there, find nothing left, and begin again only at the next iteration. `follow` is told of each.
    """
    empty = True
    for row in follow(iter(data)):
        empty = False
        yield row
    if empty:
        yield from follow(iter(data))


def set_epoch(data: Any, epoch: int) -> None:
    """Tell whoever wants to know which pass over the data this is."""
    tell = getattr(data, "set_epoch", None)
    if tell is not None:
        tell(epoch)
