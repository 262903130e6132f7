"""A torch DataLoader for data that can only be read from the start, which can resume at any position."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from hexloop.adapters.batches.torch import random_streams
from hexloop.adapters.batches.torch.data_state import Progress, ReadPosition, is_stateful, no_progress
from hexloop.adapters.batches.torch.loader import ResumableLoader
from hexloop.adapters.batches.torch.random_streams import seed_streams
from hexloop.adapters.batches.torch.shares import Share, ShareCollate, SharesOfRanks, as_padding
from hexloop.adapters.batches.torch.workers import (
    ASKED,
    NO_ROW,
    SKIPPED,
    UNLIKE,
    Division,
    Watch,
    WorkerBatch,
    collate_in_worker,
    late_question,
    load_state,
    load_worker_state,
    note_of,
    report_once,
)
from hexloop.domain.order import ALL, Shard, sample_key


class StreamLoader(ResumableLoader):
    """A loader of an iterable dataset. It resumes from the dataset's own state, or skips the first rows.

    Skipped rows are read and dropped where they are read, in a worker or in this process; they are not collated.
    key_seed: the seed of the rows' random streams, keyed by position; if None, the streams are not seeded.
    batch_size: rows of a batch over all ranks. shards: the ranks for which this process collates batches; it always
    reads all rows. in_turns: each rank in turn gets a whole batch, as a single process would collate it; `batch_size`
    is then that of one rank. count: returns the samples of some rows, if a row is not a sample.
    """

    reads_all = True

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        collate_fn: Any,
        key_seed: int | None = None,
        progress: Progress = no_progress,
        shards: Sequence[Shard] = (ALL,),
        in_turns: bool = False,
        count: Callable[[list[Any]], int] = len,
        **options: Any,
    ) -> None:
        workers = options.get("num_workers", 0)
        self.rows = KeyedRows(dataset, key_seed, workers, batch_size)
        self._shards = shards
        several = shards[0].ranks.size > 1
        self.turns = shards[0].ranks.size if in_turns else 1
        self.packed = self.counts_documents = count is not len
        own = (ALL,) if in_turns else shards
        self._collate_shares = ShareCollate(collate_fn, batch_size, own, first_row=several, count=count)
        self._progress, self._stateful = progress, is_stateful(dataset)
        self._iterator_in_use: Any = None
        self._new_pass = False
        if workers:
            dataset, collate_fn = self.rows, partial(collate_in_worker, self._collate_shares, self._stateful)
        super().__init__(dataset, batch_size, workers == 0, batch_size=batch_size, collate_fn=collate_fn, **options)
        self.total_batch_size = batch_size * self.turns

    def __iter__(self) -> Any:
        current = ReadPosition.after(0, 0, self.cursor.batch_size, max(1, self.num_workers))
        parts = self._from_workers(current) if self.num_workers else self._collated(current, iter(self.dataset))
        return self.counted(first.batch for first, *_ in self._in_turns(parts))

    def __len__(self) -> int:
        return math.ceil(super().__len__() / self.turns)

    @property
    def user_dataset(self) -> Any:
        """The dataset that the user passed."""
        return self.rows.dataset

    def _length(self) -> int | None:
        return None if self.num_workers > 1 else super()._length()  # each of several workers has a last batch

    def local_state(self) -> Any:
        """Return the states of the dataset in this process and of the iterator over it; None if they have none."""
        stateful = {"data": self.dataset, "rows": self._iterator_in_use}
        states = {name: each.state_dict() for name, each in stateful.items() if is_stateful(each)}
        return states or None

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches of `epoch` after its first `position` rows, or from the saved position of the cursor."""
        with closing(self.parts_from(epoch, position)) as parts:
            for first, *_ in parts:
                yield first.batch

    def parts_from(self, epoch: int, position: int) -> SharesOfRanks:
        """Yield the shares of the ranks that this process reads for; see `batches_from`."""
        self._taken, self._exhausted = None, False
        current, new_pass = self.cursor.start(epoch, position)
        self.generator.manual_seed(epoch)
        self.set_epoch(epoch)
        self.begin()
        if self.num_workers:
            self._prepare_workers(current, new_pass)
            yield from self._in_turns(self._from_workers(current))
        else:
            yield from self._in_turns(self._collated(current, self._open(current, new_pass)))
        self._exhausted = True

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`: of the rows' random streams, and of the dataset if it has epochs."""
        self.rows.epoch.fill_(epoch)
        set_epoch(self.user_dataset, epoch)

    def _in_turns(self, parts: Iterator[tuple[Share, ...]]) -> Iterator[tuple[Share, ...]]:
        """Yield the shares; if ranks take whole batches in turn, those of one batch per rank."""
        if self.turns == 1:
            yield from parts
            return
        while group := [share for (share,) in islice(parts, self.turns)]:
            samples, missing = sum(share.samples for share in group), self.turns - len(group)
            batches = [share.batch for share in group]
            if missing:
                batches += [as_padding(batches[0])] * missing
            yield tuple(Share(shard.own(batches), samples, group[0].first_row) for shard in self._shards)

    # Without workers

    def _open(self, current: ReadPosition, new_pass: bool) -> Iterator[Any]:
        """Return the rows from the start position."""
        state = current.states[0]
        if state is None and current.samples:
            return self._skip_rows(current)
        if state is None:
            current.streams = (
                None
                if self._stateful or self.rows.key_seed is not None
                else random_streams.as_document(random_streams.streams())
            )
            new_pass, self._new_pass = self._new_pass, False
        else:
            load_state(self.dataset, state, "data")
            if current.ended[0]:
                self._new_pass = True
                return iter(())
        rows = restarted(self.dataset, self._remember) if new_pass else self._begin(current.epoch)
        if state is not None and not new_pass:
            load_state(rows, state, "rows")
        return self.rows.keyed(rows, current.epoch, current.samples)

    def _remember(self, rows: Iterator[Any]) -> Iterator[Any]:
        self._iterator_in_use = rows
        return rows

    def _begin(self, epoch: int) -> Iterator[Any]:
        """Start a pass over the dataset. What `iter()` draws at random is keyed like the first row."""
        if self.rows.key_seed is not None:
            seed_streams(sample_key(self.rows.key_seed, epoch, 0))
        return self._remember(iter(self.dataset))

    def _skip_rows(self, current: ReadPosition) -> Iterator[Any]:
        """Read and drop the rows that were read, with the random streams of the start of the epoch; return the rest."""
        total, size = current.samples, current.batch_size
        with random_streams.preserved_rng_states():
            if current.streams is not None:
                random_streams.set_streams(random_streams.from_document(current.streams))
            rows = self.rows.keyed(self._begin(current.epoch), current.epoch)
            for skipped, _ in enumerate(zip(range(total), rows, strict=False), 1):
                if skipped % size == 0 or skipped == total:
                    self._progress(skipped, total)
        return rows

    def _collated(self, current: ReadPosition, rows: Iterator[Any]) -> Iterator[tuple[Share, ...]]:
        size = self.cursor.batch_size
        while len(batch := list(islice(rows, size))) == size:
            current.note(0, size, documents=self._documents_in(batch))
            yield self._collate(batch)
        current.ended[0] = True
        if batch and not self.drop_last:
            current.note(0, len(batch), documents=self._documents_in(batch))
            yield self._collate(batch)

    def _documents_in(self, rows: list[Any]) -> int | None:
        """Return the documents in packed rows; None if a row is a sample."""
        return self._collate_shares.count(rows) if self.packed else None

    def _collate(self, rows: list[Any]) -> tuple[Share, ...]:
        shares = self._collate_shares(rows, self.rows.last_key)
        if self.pin_memory:
            shares = pin_memory(shares)  # type: ignore[no-untyped-call]
        return shares.by_rank(shares.samples)

    # With workers

    def _prepare_workers(self, current: ReadPosition, new_pass: bool) -> None:
        """Tell workers that are about to start where to begin: at their states, or after the rows that each returned.

        A worker that has a state, and has returned a batch in the present round, first returns an empty one; rows are
        skipped in the same turns in which they were returned. Either way the next batch comes from the right worker.
        """
        size, states = self.cursor.batch_size, current.plain_states
        returned = [count * size for count in current.counts]
        if any(state is not None for state in states):
            empty = [size if worker <= current.last else 0 for worker in range(self.num_workers)]
            self.rows.starts = [
                WorkerStart(waits, 0, read, new_pass, ended)
                for waits, read, ended in zip(empty, returned, current.ended, strict=True)
            ]
        else:
            self.rows.starts = [WorkerStart(0, read) for read in returned]
        self.worker_init_fn = partial(load_worker_state, states)

    def _from_workers(self, current: ReadPosition) -> Iterator[tuple[Share, ...]]:
        each: WorkerBatch
        skipped, total = 0, sum(start.skips for start in self.rows.starts)
        if self.num_workers > 1 and self._iterator is None:  # else persistent workers keep what they agreed on
            self.rows.division = Division(self.num_workers)
        division = self.rows.division
        for each in self._read():
            if division is not None and division.is_settled:
                if self._shards[0].is_first:
                    report_once(division.problem(self.user_dataset))
                division = None
            if skipped < total and each.skipped:
                skipped = min(skipped + each.skipped, total)
                self._progress(skipped, total)
            if each.samples:
                documents = each.shares.samples if self.packed else None
                current.note(each.worker, each.samples, each.state, documents)
                yield each.shares.by_rank(each.shares.samples)
        current.ended = [True] * self.num_workers


@frozen
class WorkerStart:
    """Where a worker starts.

    waits: rows to return as SKIPPED without reading. skips: rows to read and return as SKIPPED. read: rows that the
    state of the dataset is after. new_pass: whether that state is from the end of the previous pass. ended: whether
    there are no more rows in this pass.
    """

    waits: int = 0
    skips: int = 0
    read: int = 0
    new_pass: bool = False
    ended: bool = False


class KeyedRows(IterableDataset[Any]):
    """The rows of `dataset` as workers read them, each with its own random streams if there is a `key_seed`.

    starts: where the first iteration of each worker starts. last_key: the key of the row that was read last.
    division: how several workers divide the rows. batch_size: rows of a batch, for that.
    """

    def __init__(self, dataset: Any, key_seed: int | None, workers: int, batch_size: int) -> None:
        self.dataset, self.key_seed, self.batch_size = dataset, key_seed, batch_size
        self.division: Division | None = None
        self._agreed: bool | None = None  # in a worker: whether the rows are divided, once it is known
        self.starts = [WorkerStart()] * workers
        self.epoch: Tensor = torch.zeros((), dtype=torch.int64)
        if workers:
            self.epoch.share_memory_()  # type: ignore[no-untyped-call]  # so that persistent workers see it change
        self.last_key: int | None = None
        self._readers = max(workers, 1)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        epoch, worker = int(self.epoch), info.id
        start = self.starts[worker]
        self.starts[worker] = WorkerStart(new_pass=start.ended)
        # Persistent workers do not know the epoch yet. If they share memory with the main process, the dataset has it
        # already, so that this is no race.
        set_epoch(self.dataset, epoch)
        for _ in range(start.waits):
            yield SKIPPED
        division = self.division
        if start.ended:
            if division is not None:
                division.end(worker)
            return
        rows = self._opened(epoch, worker, start) if division is None else self._divided(epoch, worker, start, division)
        for number, row in enumerate(rows):
            yield SKIPPED if number < start.skips else row

    def _opened(self, epoch: int, worker: int, start: WorkerStart) -> Iterator[Any]:
        rows = restarted(self.dataset) if start.new_pass else iter(self.dataset)
        return self.keyed(rows, epoch, start.read, worker)

    def _divided(self, epoch: int, worker: int, start: WorkerStart, division: Division) -> Iterator[Any]:
        """Yield the rows of one of several workers; if all read the same rows, whole batches in turn.

        Rows that are the same in all workers are read with the random streams of a single reader. Those of a dataset
        that asks for its worker are read as by `_opened`: with the worker's own random streams, from when it asks.
        """
        readers, number, end = self._readers, start.read, object()
        stateful, before = is_stateful(self.dataset), random_streams.streams()
        is_own, rows = stateful or self._agreed is False, None

        def seed() -> None:
            if self.key_seed is not None:
                self.last_key = sample_key(self.key_seed, epoch, number * readers + worker if is_own else number)
                seed_streams(self.last_key)

        def ask() -> None:
            nonlocal is_own
            if not is_own:
                is_own = True
                seed() if rows is not None else random_streams.set_streams(before)

        watch = Watch(ask)
        try:
            if not is_own:
                seed()
            with watch:
                rows = restarted(self.dataset) if start.new_pass else iter(self.dataset)
            while True:
                seed()
                with watch:
                    row = next(rows, end)
                if self._agreed is None:
                    note = ASKED if watch.asked else NO_ROW if row is end else UNLIKE if stateful else note_of(row)
                    self._agreed = division.agree(worker, note, waits=not stateful)
                    is_own = not self._agreed
                if row is end:
                    return
                if self._agreed and watch.asked:
                    raise late_question()
                if not self._agreed or number // self.batch_size % readers == worker:
                    yield row
                number += 1
        finally:
            division.end(worker)

    def keyed(self, rows: Iterator[Any], epoch: int, read: int = 0, worker: int = 0) -> Iterator[Any]:
        """Return the rows after the first `read` of a worker, each read with its own random streams."""
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


def restarted(data: Any, remember: Callable[[Iterator[Any]], Iterator[Any]] = lambda rows: rows) -> Iterator[Any]:
    """Yield a new pass over data whose state is from the end of the previous pass.

    Some data resume there, have nothing left, and start over only at the next iteration. `remember` is called with each
    iterator.
    """
    empty = True
    for row in remember(iter(data)):
        empty = False
        yield row
    if empty:
        yield from remember(iter(data))


def set_epoch(data: Any, epoch: int) -> None:
    """Call `data.set_epoch(epoch)` if it has that method."""
    method = getattr(data, "set_epoch", None)
    if method is not None:
        method(epoch)
