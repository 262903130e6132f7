"""The rows of data that can only be read from the start, as a worker reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from hexloop.adapters.batches.torch.data_state import (
    Progress,
    ReadCursor,
    ReadPosition,
    ReadStart,
    is_stateful,
    no_progress,
)
from hexloop.adapters.batches.torch.loader import (
    SKIPPED,
    ResumableLoader,
    WorkerBatch,
    WorkerCollate,
    WorkerStateLoader,
    load_state,
)
from hexloop.adapters.batches.torch.random_streams import (
    preserved_rng_states,
    restore_rng_states,
    rng_states,
    seed_streams,
)
from hexloop.adapters.batches.torch.shares import Share, ShareCollate, as_padding, shares_of
from hexloop.domain.order.permutation import sample_key
from hexloop.domain.order.slices import ALL, Shard


@frozen
class WorkerStart:
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
        self.starts = [WorkerStart()] * workers
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
        self.starts[worker] = WorkerStart(anew=start.ended)
        # Workers that stay have not heard of it; where they share what it sets, it is set already and they do not race.
        set_epoch(self.dataset, epoch)
        for _ in range(start.waits):
            yield SKIPPED
        if start.ended:
            return
        rows = restarted(self.dataset) if start.anew else iter(self.dataset)
        for number, row in enumerate(self.keyed(rows, epoch, start.read, worker)):
            yield SKIPPED if number < start.passed else row

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


def restarted(data: Any, follow: Callable[[Iterator[Any]], Iterator[Any]] = lambda rows: rows) -> Iterator[Any]:
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


class StreamLoader(ResumableLoader):
    """A loader of an iterable data set, which goes on from the data set's own state, or passes over its first rows.

    Rows that are passed over are read and dropped where they are read, be that a worker or here: they are not collated.
    key_seed: the seed of the rows' random streams, each keyed by its position; without it the streams simply go on.
    batch_size: the rows of a batch over all processes. shards: the processes for which this one makes batches of them;
    it reads all rows in any case. in_turns: batches go round the processes instead, each whole, as a process that is
    alone would make them; batch_size is then one process's.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        collate_fn: Any,
        key_seed: int | None = None,
        progress: Progress = no_progress,
        shards: Sequence[Shard] = (ALL,),
        in_turns: bool = False,
        **options: Any,
    ) -> None:
        workers = options.get("num_workers", 0)
        self.rows = KeyedRows(dataset, key_seed, workers)
        self.turns = shards[0].world_size if in_turns else 1
        self._ranks = [shard.rank for shard in shards]
        self._divide = ShareCollate(
            collate_fn, batch_size, (ALL,) if in_turns else shards, testifies=shards[0].world_size > 1
        )
        self._progress, self._stateful = progress, is_stateful(dataset)
        self._live: Any = None
        self._anew = False
        self.place = ReadCursor(
            batch_size,
            max(workers, 1),
            keeps_readers=workers == 0 or options.get("persistent_workers", False),
            begins_anywhere=workers == 0,
        )
        super().__init__(
            self.rows if workers else dataset,
            batch_size=batch_size,
            collate_fn=WorkerCollate(self._divide, self._stateful) if workers else collate_fn,
            generator=torch.Generator(),
            **options,
        )

    def __iter__(self) -> Any:
        standing = ReadPosition.at_the_start(0, self.place.batch_size, max(1, self.num_workers))
        parts = self._delivered(standing) if self.num_workers else self._collated(standing, iter(self.dataset))
        return (first.batch for first, *_ in self._dealt(parts))

    def __len__(self) -> int:
        return math.ceil(super().__len__() / self.turns)

    @property
    def users_data(self) -> Any:
        """The data set that the user gave."""
        return self.rows.dataset

    def own_state(self) -> Any:
        """What the data set in this process, and the iterator over it, say of where they stand."""
        stateful = {"data": self.dataset, "rows": self._live}
        states = {name: each.state_dict() for name, each in stateful.items() if is_stateful(each)}
        return states or None

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches of `epoch` after its first `position` rows, or from where the loader was told to go on."""
        with closing(self.parts_from(epoch, position)) as parts:
            for first, *_ in parts:
                yield first.batch

    def parts_from(self, epoch: int, position: int) -> Generator[tuple[Share, ...], None, None]:
        """The shares of the processes that this one reads for; see `batches_from`."""
        beginning = self.place.begin(epoch, position)
        standing = beginning.standing
        self.generator.manual_seed(epoch)
        self.rows.epoch.fill_(epoch)
        set_epoch(self.users_data, epoch)
        if self.num_workers:
            self._send_workers(beginning)
            yield from self._dealt(self._delivered(standing))
        else:
            yield from self._dealt(self._collated(standing, self._opened(beginning)))

    def _dealt(self, parts: Iterator[tuple[Share, ...]]) -> Iterator[tuple[Share, ...]]:
        """The shares, where batches go round the processes those of as many batches as there are processes."""
        if self.turns == 1:
            yield from parts
            return
        while group := [share for (share,) in islice(parts, self.turns)]:
            samples, missing = sum(share.samples for share in group), self.turns - len(group)
            shares = [Share(share.batch, samples, group[0].witness) for share in group]
            padding = [Share(as_padding(group[0].batch), samples)] * missing
            yield tuple((shares + padding)[rank] for rank in self._ranks)

    # Without workers

    def _opened(self, beginning: ReadStart) -> Iterator[Any]:
        """The rows from where reading is to go on."""
        standing = beginning.standing
        state = standing.states[0] if beginning.loads else None
        if state is None and standing.samples:
            return self._passed_over(standing)
        if state is None:
            standing.streams = None if self._stateful or self.rows.key_seed is not None else rng_states()
            anew, self._anew = self._anew, False
        else:
            load_state(self.dataset, state, "data")
            if standing.ended[0]:
                self._anew = True
                return iter(())
            anew = beginning.anew
        rows = restarted(self.dataset, self._follow) if anew else self._begun(standing.epoch)
        if state is not None and not anew:
            load_state(rows, state, "rows")
        return self.rows.keyed(rows, standing.epoch, standing.samples)

    def _follow(self, rows: Iterator[Any]) -> Iterator[Any]:
        self._live = rows
        return rows

    def _begun(self, epoch: int) -> Iterator[Any]:
        """A pass over the data, whatever it draws at its beginning keyed as its first row."""
        if self.rows.key_seed is not None:
            seed_streams(sample_key(self.rows.key_seed, epoch, 0))
        return self._follow(iter(self.dataset))

    def _passed_over(self, standing: ReadPosition) -> Iterator[Any]:
        """The rows after those that were read, which are read once more with the streams that the epoch began with."""
        total, size = standing.samples, standing.batch_size
        with preserved_rng_states():
            if standing.streams is not None:
                restore_rng_states(standing.streams)
            rows = self.rows.keyed(self._begun(standing.epoch), standing.epoch)
            for passed, _ in enumerate(zip(range(total), rows, strict=False), 1):
                if passed % size == 0 or passed == total:
                    self._progress(passed, total)
        return rows

    def _collated(self, standing: ReadPosition, rows: Iterable[Any]) -> Iterator[tuple[Share, ...]]:
        size, batch = self.place.batch_size, []
        for row in rows:
            batch.append(row)
            if len(batch) == size:
                standing.note(0, size)
                yield self._finished(batch)
                batch = []
        standing.ended[0] = True
        if batch and not self.drop_last:
            standing.note(0, len(batch))
            yield self._finished(batch)

    def _finished(self, rows: list[Any]) -> tuple[Share, ...]:
        divided = self._divide(rows, self.rows.last_key)
        if self.pin_memory:
            divided = pin_memory(divided)  # type: ignore[no-untyped-call]
        return shares_of(divided.batches, divided.counted, len(rows), divided.witness)

    # With workers

    def _send_workers(self, beginning: ReadStart) -> None:
        """Tell workers that start now where to begin: by their states, or after the rows that each has given.

        Who has a state, and took a turn in the present round, first waits for one; rows are passed over in the turns in
        which they were given. Either way the next batch comes from the worker whose turn it is.
        """
        standing, size = beginning.standing, self.place.batch_size
        states = standing.plain_states if beginning.loads else [None] * self.num_workers
        given = [count * size for count in standing.counts]
        if any(state is not None for state in states):
            waits = [size if worker <= standing.last else 0 for worker in range(self.num_workers)]
            self.rows.starts = [
                WorkerStart(waiting, 0, read, beginning.anew, ended)
                for waiting, read, ended in zip(waits, given, standing.ended, strict=True)
            ]
        else:
            self.rows.starts = [WorkerStart(0, read) for read in given]
        self.worker_init_fn = WorkerStateLoader(states)

    def _delivered(self, standing: ReadPosition) -> Iterator[tuple[Share, ...]]:
        each: WorkerBatch
        passed, total = 0, sum(start.passed for start in self.rows.starts)
        for each in super().__iter__():
            if passed < total and each.passed:
                passed = min(passed + each.passed, total)
                self._progress(passed, total)
            if each.samples:
                standing.note(each.worker, each.samples, each.state)
                yield shares_of(each.divided.batches, each.divided.counted, each.samples, each.divided.witness)
        standing.ended = [True] * self.num_workers
