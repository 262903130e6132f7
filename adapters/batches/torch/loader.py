"""What loader workers hand over beside a batch, and how they are sent to where others stood."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from attrs import frozen
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hexloop.adapters.batches.torch.data_state import DataState, ReadCursor, ReadPosition, encode_state, is_stateful
from hexloop.adapters.batches.torch.order import OrderedBatchSampler
from hexloop.adapters.batches.torch.random_streams import KeyedDataset
from hexloop.adapters.batches.torch.shares import CollatedShares, Share, ShareCollate, shares_of
from hexloop.domain.order.slices import Shard


class WorkerBatch(NamedTuple):
    """The rows of a batch from a worker. A tuple, through which torch pins memory."""

    worker: int
    samples: int
    state: DataState | None
    """The worker's data set, as it stood when this batch was made."""
    passed: int
    """How many rows were passed over on the way to it."""
    divided: CollatedShares
    """What the rows make for each of the processes that the loader reads for, mostly this one alone."""


class Skipped:
    """Stands for a row that is passed over."""


SKIPPED = Skipped()


@frozen
class WorkerCollate:
    """Collates in a worker, and hands the batch over with where the worker stands then."""

    divide: ShareCollate
    stateful: bool

    def __call__(self, rows: list[Any]) -> WorkerBatch:
        """The batch of the rows that are not passed over; no batch where there are none."""
        info: Any = get_worker_info()
        given = [row for row in rows if row is not SKIPPED]
        if not given:
            return WorkerBatch(info.id, 0, None, len(rows), CollatedShares([], [], None))
        dataset = info.dataset.dataset  # the user's, in the wrapper of an OrderedLoader or a StreamLoader
        divided = self.divide(given, getattr(info.dataset, "last_key", None))
        state = encode_state(dataset, {"data": dataset.state_dict()}) if self.stateful else None
        return WorkerBatch(info.id, len(given), state, len(rows) - len(given), divided)


@frozen
class WorkerStateLoader:
    """Called in each worker when it starts: puts its data set where the worker of that number stood."""

    states: Sequence[Any]

    def __call__(self, worker: int) -> None:
        """Load the worker's state, where there is one."""
        info: Any = get_worker_info()
        load_state(info.dataset.dataset, self.states[worker], "data")


def load_state(data: Any, states: dict[str, Any] | None, name: str) -> None:
    """Put data where they gave the state of this name, unless there is none or they keep none."""
    if states is not None and name in states and is_stateful(data):
        data.load_state_dict(states[name])


SIGNALS = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # Windows has two of them
)


@frozen
class SignalShield:
    """A `worker_init_fn` that passes over `SIGNALS` from then on, and then does what `initialise` does."""

    initialise: Callable[[int], Any] | None = None

    def __call__(self, worker: int) -> None:
        """Called in the worker, before its first sample."""
        for number in SIGNALS:
            # Not SIG_IGN, which a program that the worker starts would inherit.
            signal.signal(number, _pass_over)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        _end_with_the_run()
        if self.initialise is not None:
            self.initialise(worker)


class ShieldedIterator(_MultiProcessingDataLoaderIter):
    """The iterator of a loader, whose `worker_init_fn` it shields; it ends its workers without SIGTERM."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        with _held_back():
            super().__init__(loader)
        for worker in self._workers:
            # What torch does to those that do not end by themselves.
            worker.terminate = worker.kill  # type: ignore[method-assign]
        # At the program's end multiprocessing sends SIGTERM and waits, unless this comes first.
        multiprocessing.util.Finalize(self, _end, (weakref.ref(self),), exitpriority=100)

    @property
    def _worker_init_fn(self) -> SignalShield:
        return self._shielded

    @_worker_init_fn.setter
    def _worker_init_fn(self, initialise: Callable[[int], Any] | None) -> None:
        self._shielded = SignalShield(initialise)

    def end(self) -> None:
        """End the workers."""
        self._shutdown_workers()


def _end_with_the_run() -> None:
    """Let this worker of a fork server end when the process dies that asked for it.

    torch's workers end when their parent has. Theirs is the server, which in turn stays for as long as a worker does.
    """
    run = multiprocessing.parent_process()
    if run is None or run.pid == os.getppid():
        return

    def wait() -> None:
        run.join()
        os._exit(1)

    threading.Thread(target=wait, name="hexloop waits for the run's end", daemon=True).start()


def _pass_over(number: int, frame: FrameType | None) -> None:
    """The run's process decides what the signal means."""


def _end(reference: weakref.ref[ShieldedIterator]) -> None:
    iterator = reference()
    if iterator is not None:
        iterator.end()


@contextmanager
def _held_back() -> Iterator[None]:
    """Let `SIGNALS` wait in this thread, and in the processes that it starts until they are shielded."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ResumableLoader(DataLoader[Any]):
    """A loader that can be told to end the workers that it kept for another epoch, and knows where it stands.

    It has a generator of its own, which workers' base seeds are drawn from, so that reading data leaves torch's alone.
    """

    place: ReadCursor

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return ShieldedIterator(self)

    def stop_workers(self) -> None:
        """End the workers now; the next epoch starts new ones."""
        kept, self._iterator = self._iterator, None
        if isinstance(kept, _MultiProcessingDataLoaderIter):
            kept._shutdown_workers()

    def standing(self) -> DataState | None:
        """Where this loader stands, after the last batch that was taken from it; None before the first."""
        standing = self.place.saved or self.place.now
        if standing is None:
            return None
        if standing is self.place.now and self.num_workers == 0:
            standing.states = [self.own_state()]
        return encode_state(self.users_data, standing.document())

    def go_on_from(self, document: dict[str, Any]) -> None:
        """Begin the next epoch that is asked for where `standing` said."""
        self.place.saved = ReadPosition(**document)

    @property
    def users_data(self) -> Any:
        """The data set that the user gave."""
        return self.dataset.dataset if isinstance(self.dataset, KeyedDataset) else self.dataset

    def own_state(self) -> Any:
        """What the data set in this process says of where it stands."""
        return {"data": self.users_data.state_dict()} if is_stateful(self.users_data) else None


class OrderedLoader(ResumableLoader):
    """A loader whose batch sampler can be sent to any position.

    Where workers read a data set that keeps a state, it is given as a KeyedDataset, and each batch brings that state.
    """

    def __init__(self, dataset: Any, batch_sampler: OrderedBatchSampler, **options: Any) -> None:
        workers = options.get("num_workers", 0)
        self._delivers = workers > 0 and isinstance(dataset, KeyedDataset) and is_stateful(dataset.dataset)
        if self._delivers:
            divide = ShareCollate(options["collate_fn"], batch_sampler.batch_size)
            options["collate_fn"] = WorkerCollate(divide, stateful=True)
        self.place = ReadCursor(
            batch_sampler.batch_size,
            max(workers, 1),
            keeps_readers=workers == 0 or options.get("persistent_workers", False),
            begins_anywhere=not self._delivers,
        )
        super().__init__(dataset, batch_sampler=batch_sampler, generator=torch.Generator(), **options)

    @property
    def shard(self) -> Shard:
        """Which part of every batch this process takes."""
        sampler = self.batch_sampler
        assert isinstance(sampler, OrderedBatchSampler)
        return sampler.shard

    def __iter__(self) -> Any:
        if self._delivers:
            return (each.divided.batches[0] for each in super().__iter__() if each.samples)
        return self._batches(self.batch_sampler)

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """The batches of `epoch` from the sample at `position` on, or from where the loader was told to go on.

        Without workers the samples are fetched here and now, with none of a loader's own cost for a batch.
        """
        sampler = self.batch_sampler
        assert isinstance(sampler, OrderedBatchSampler)
        beginning = self.place.begin(epoch, position)
        standing = beginning.standing
        turns = (standing.last + 1) % self.place.readers if self._delivers else 0
        sampler.go_to(epoch, standing.samples, turns)
        self.generator.manual_seed(epoch)
        if self._delivers:
            states = standing.plain_states if beginning.loads else [None] * self.place.readers
            self.worker_init_fn = WorkerStateLoader(states)
            yield from self._delivered(standing)
            return
        if beginning.loads:
            load_state(self.users_data, standing.states[0], "data")
        size = sampler.batch_size
        for batch in self._batches(sampler):
            standing.samples += size  # the epoch's last batch may be shorter, but nothing begins after it
            yield batch

    def parts_from(self, epoch: int, position: int) -> Generator[tuple[Share, ...], None, None]:
        """This process's share, alone, of each batch of `epoch` from the sample at `position` on."""
        sampler, length = self.batch_sampler, len(self.dataset)  # type: ignore[arg-type]
        assert isinstance(sampler, OrderedBatchSampler)
        size = sampler.batch_size
        with closing(self.batches_from(epoch, position)) as batches:
            for first, batch in zip(range(position, length, size), batches, strict=False):
                samples = min(size, length - first)
                counts = samples == size or bool(self.shard.of(range(samples), size))
                yield shares_of([batch], [counts], samples)

    def _batches(self, sampler: Any) -> Iterator[Any]:
        if self.num_workers > 0 or self.pin_memory:
            yield from super().__iter__()
            return
        dataset, collate = self.dataset, self.collate_fn
        fetch = getattr(dataset, "__getitems__", None)
        for indices in sampler:
            yield collate(fetch(indices) if fetch else [dataset[index] for index in indices])

    def _delivered(self, standing: ReadPosition) -> Iterator[Any]:
        each: WorkerBatch
        ranks = self.shard.world_size
        for each in super().__iter__():
            if each.samples:
                standing.note(each.worker, each.samples * ranks, each.state)
                yield each.divided.batches[0]


def is_iterable(dataset: Any) -> bool:
    """Whether the data can only be read from the start."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")
