"""A torch DataLoader that can start at any position of an epoch, and its workers.

Workers ignore the signals that ask a run to stop: a shell sends Ctrl-C, and many schedulers their warning, to every
process of a job. The main process decides what a signal means; a worker that died of it would break the current step,
and the run could not save. Workers end when the main process is gone.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hexloop.adapters.batches.torch.data_state import DataState, ReadCursor, encode_state, is_stateful
from hexloop.adapters.batches.torch.order import KeyedDataset, OrderedBatchSampler, loader_and_samplers
from hexloop.adapters.batches.torch.prepared import PreparedLoader, SampledLoader
from hexloop.adapters.batches.torch.shares import CollatedShares, ShareCollate, SharesOfRanks
from hexloop.domain.errors import RunStateError


class ResumableLoader(PreparedLoader):
    """A loader that knows its read position, and can end the workers that it keeps between epochs.

    It has its own generator for the base seeds of workers, so that reading data does not advance torch's generator.
    samples: how many are read for a batch. seekable: see `ReadCursor`.
    """

    def __init__(self, dataset: Any, samples: int, seekable: bool, **options: Any) -> None:
        workers = options.get("num_workers", 0)
        keeps_readers = workers == 0 or options.get("persistent_workers", False)
        self.cursor = ReadCursor(samples, max(workers, 1), keeps_readers, seekable)
        super().__init__(dataset, generator=torch.Generator(), **options)

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return ShieldedIterator(self)

    def renew(self) -> None:
        """Let the seeds of workers start again, as those of a new loader."""
        self.generator.manual_seed(torch.Generator().initial_seed())

    def stop_workers(self) -> None:
        """End the workers now; the next epoch starts new ones."""
        kept, self._iterator = self._iterator, None
        if isinstance(kept, _MultiProcessingDataLoaderIter):
            kept._shutdown_workers()

    def position_state(self) -> DataState | None:
        """Return the read position after the last batch that was taken from this loader; None before the first."""
        position = self.cursor.saved or self.cursor.current
        if position is None:
            return None
        if position is self.cursor.current and self.num_workers == 0:
            position.states = [self.local_state()]
        return encode_state(self.user_dataset, position.document())

    @property
    def user_dataset(self) -> Any:
        """The dataset that the user passed."""
        return self.dataset.dataset if isinstance(self.dataset, KeyedDataset) else self.dataset

    @property
    def _has_begun(self) -> bool:
        return self._taken is not None or self.cursor.current is not None

    @property
    def _samples_taken(self) -> int:
        current = self.cursor.current
        return super()._samples_taken if self._taken is not None or current is None else current.samples

    def local_state(self) -> Any:
        """Return the state of the dataset in this process; None if it has none."""
        return {"data": self.user_dataset.state_dict()} if is_stateful(self.user_dataset) else None


class OrderedLoader(ResumableLoader):
    """A loader whose batch sampler can seek. If workers read a KeyedDataset with a state, it comes with each batch."""

    def __init__(self, dataset: Any, batch_sampler: OrderedBatchSampler, **options: Any) -> None:
        has_workers = options.get("num_workers", 0) > 0
        self.order = batch_sampler
        self._with_state = has_workers and isinstance(dataset, KeyedDataset) and is_stateful(dataset.dataset)
        if self._with_state:
            collate = ShareCollate(options["collate_fn"], batch_sampler.batch_size)
            options["collate_fn"] = partial(collate_in_worker, collate, True)
        size, seekable = batch_sampler.batch_size, not self._with_state
        super().__init__(dataset, size, seekable, batch_sampler=batch_sampler, **options)
        self.total_batch_size = size

    def __iter__(self) -> Any:
        if self._with_state:
            return self.counted(each.shares.batches[0] for each in super().__iter__() if each.samples)
        return self.counted(self._batches())

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches of `epoch` from the sample at `position`, or from the saved position of the cursor.

        Without workers the samples are fetched directly, without the cost per batch of torch's iterator.
        """
        self._taken = None
        current, _ = self.cursor.start(epoch, position)
        empty_batches = (current.last + 1) % self.cursor.readers if self._with_state else 0
        self.order.seek(epoch, current.samples, empty_batches)
        self.generator.manual_seed(epoch)
        size = self.order.batch_size
        self.begin()
        if self._with_state:
            self.worker_init_fn = partial(load_worker_state, current.plain_states)
            each: WorkerBatch
            for each in super().__iter__():
                if each.samples:
                    samples = each.samples * self.order.shard.world_size if self.order.has_one_size else size
                    current.note(each.worker, samples, each.state)
                    yield each.shares.batches[0]
            return
        load_state(self.user_dataset, current.states[0], "data")
        for batch in self._batches():
            current.samples += size  # too many after a shorter last batch, after which nothing is read
            yield batch

    def parts_from(self, epoch: int, position: int) -> SharesOfRanks:
        """Yield this rank's share, alone, of each batch of `epoch` from the sample at `position`."""
        length, size = len(self.dataset), self.order.batch_size  # type: ignore[arg-type]
        with closing(self.batches_from(epoch, position)) as batches:
            for first, batch in zip(range(position, length, size), batches, strict=False):
                samples = min(size, length - first)
                counts = samples == size or bool(self.order.shard.of(range(samples), size))
                yield CollatedShares([batch], [counts]).by_rank(samples)

    def _batches(self) -> Iterator[Any]:
        if self.num_workers > 0 or self.pin_memory:
            yield from super().__iter__()
            return
        dataset, collate = self.dataset, self.collate_fn
        fetch = getattr(dataset, "__getitems__", None)
        for indices in self.order:
            yield collate(fetch(indices) if fetch else [dataset[index] for index in indices])


# What kind of loader or dataset it is


def is_iterable(dataset: Any) -> bool:
    """Return whether the dataset can only be read from the start."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def reads_by_index(loader: Any) -> bool:
    """Return whether the loader reads as torch's own DataLoader, with a batch sampler that chooses rows by index."""
    own = type(loader) in (DataLoader, SampledLoader)
    return own and loader.batch_sampler is not None and not is_iterable(loader.dataset)


def is_sharded_already(loader: Any) -> bool:
    """Return whether each rank's loader returns that rank's batches: with a DistributedSampler, or from accelerate."""
    prepared = any(kind.__module__.startswith("accelerate.") for kind in type(loader).__mro__)
    return prepared or distributed_sampler(loader) is not None


def distributed_sampler(loader: Any) -> DistributedSampler[Any] | None:
    """Return the sampler by which the loader reads only a part of the data; None if there is none."""
    for sampler in loader_and_samplers(loader):
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            return sampler
    return None


def unsharded_batches(loader: Any) -> BatchSampler | None:
    """Return batches of all rows, each once, for a loader with a DistributedSampler, which repeats some rows.

    None if the loader does not build its batches with torch's standard BatchSampler.
    """
    sampler = distributed_sampler(loader)
    if sampler is None or type(loader.batch_sampler) is not BatchSampler or not reads_by_index(loader):
        return None
    whole: DistributedSampler[Any] = DistributedSampler(sampler.dataset, 1, 0, sampler.shuffle, sampler.seed)
    whole.set_epoch(sampler.epoch)
    return BatchSampler(whole, loader.batch_sampler.batch_size, drop_last=False)


# What workers return, and how they start


class WorkerBatch(NamedTuple):
    """A batch from a worker. (A tuple, so that torch pins its memory.)

    state: the worker's dataset after this batch. skipped: rows that were skipped before it. shares: the batch of each
    rank that the loader reads for, which is mostly this one alone.
    """

    worker: int
    samples: int
    state: DataState | None
    skipped: int
    shares: CollatedShares


SKIPPED = object()
"""Stands for a row that is skipped."""


def collate_in_worker(collate: ShareCollate, stateful: bool, rows: list[Any]) -> WorkerBatch:
    """Return the batch of the rows that are not skipped, with the state of the worker's dataset if it has one."""
    info: Any = get_worker_info()
    kept = [row for row in rows if row is not SKIPPED]
    if not kept:
        return WorkerBatch(info.id, 0, None, len(rows), CollatedShares([], []))
    dataset = info.dataset.dataset  # the user's, wrapped by OrderedLoader or StreamLoader
    shares = collate(kept, getattr(info.dataset, "last_key", None))
    state = encode_state(dataset, {"data": dataset.state_dict()}) if stateful else None
    return WorkerBatch(info.id, len(kept), state, len(rows) - len(kept), shares)


def load_worker_state(states: Sequence[Any], worker: int) -> None:
    """Load the state of the worker's dataset, if there is one; called in the worker before its first sample."""
    info: Any = get_worker_info()
    load_state(info.dataset.dataset, states[worker], "data")


def load_state(data: Any, states: dict[str, Any] | None, name: str) -> None:
    """Load the state called `name`, if there is one and `data` can load it."""
    if states is not None and name in states and is_stateful(data):
        data.load_state_dict(states[name])


# Workers and signals

SIGNALS = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # Windows has two of them
)


def initialize_shielded(initialize: Callable[[int], Any] | None, worker: int) -> None:
    """Make the worker ignore `SIGNALS`, and then call `initialize`; called in the worker before its first sample."""
    for number in SIGNALS:
        # Not SIG_IGN, which a program that the worker starts would inherit.
        signal.signal(number, _ignore)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    _exit_with_main_process()
    if initialize is not None:
        initialize(worker)


WARN_AFTER = 120.0
"""Seconds of waiting for a batch after which a warning names the worker."""

CHECK_EVERY = 5.0
"""Seconds between two checks whether the workers are alive, as in torch."""


class ShieldedIterator(_MultiProcessingDataLoaderIter):
    """An iterator whose workers ignore `SIGNALS`; it ends them without SIGTERM.

    It warns if it waits for a batch for `WARN_AFTER` seconds, and raises RunStateError after the loader's `timeout`.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        with _blocked_signals():
            super().__init__(loader)
        for worker in self._workers:
            # What torch calls for workers that do not end by themselves.
            worker.terminate = worker.kill  # type: ignore[method-assign]
        # At exit multiprocessing sends SIGTERM and waits, unless this runs first.
        multiprocessing.util.Finalize(self, _end, (weakref.ref(self),), exitpriority=100)

    def _get_data(self) -> Any:
        began, has_warned, limit = time.monotonic(), False, self._timeout or math.inf
        while True:
            waited = time.monotonic() - began
            if waited >= limit:
                stalled = self._stalled(waited)
                self._shutdown_workers()  # which also ends a worker that cannot do so by itself
                raise RunStateError(
                    f"{stalled}, longer than dataloader_timeout={limit:g}. Look at what __iter__ "
                    "or __getitem__ of the data waits for (a network, a lock), or set a longer timeout."
                )
            if waited >= WARN_AFTER and not has_warned:
                has_warned = True
                logging.getLogger("hexloop").warning(
                    "%s. The run waits. Look at what the data waits for (a network, a lock); "
                    "dataloader_timeout ends a run that waits too long.",
                    self._stalled(waited),
                )
            pause = min(CHECK_EVERY, limit - waited, CHECK_EVERY if has_warned else WARN_AFTER - waited)
            success, data = self._try_get_data(max(pause, 0.001))  # type: ignore[no-untyped-call]
            if success:
                return data
            if self._pin_memory and not self._pin_memory_thread.is_alive():
                raise RuntimeError("The thread that pins the memory of batches has ended.")

    def _stalled(self, waited: float) -> str:
        """Return which worker has returned nothing for how long, of which data."""
        worker = self._task_info[self._rcvd_idx][0]
        process, data = self._workers[worker], cast(Any, self._dataset)
        data = data.dataset if isinstance(data, KeyedDataset) or type(data).__name__ == "KeyedRows" else data
        return (
            f"Worker {worker} of {self._num_workers} (process {process.pid}, {_process_state(process.pid)}) has "
            f"returned no batch of {type(data).__name__} for {waited:.0f} s"
        )

    @property
    def _worker_init_fn(self) -> Callable[[int], None]:
        return partial(initialize_shielded, self._initialize)

    @_worker_init_fn.setter
    def _worker_init_fn(self, initialize: Callable[[int], Any] | None) -> None:
        self._initialize = initialize


def _process_state(pid: int | None) -> str:
    """Return what a process does, as far as the system says it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "running"
    return {"T": "stopped by a signal", "D": "waiting for a device", "Z": "ended"}.get(state, "running")


def _exit_with_main_process() -> None:
    """Exit with the main process. torch's workers exit with their parent; a fork server, which is one, lives on."""
    main = multiprocessing.parent_process()
    if main is None or main.pid == os.getppid():
        return

    def wait() -> None:
        main.join()
        os._exit(1)

    threading.Thread(target=wait, name="hexloop waits for the main process", daemon=True).start()


def _ignore(number: int, frame: FrameType | None) -> None:
    """No-op: the main process decides what the signal means."""


def _end(reference: weakref.ref[ShieldedIterator]) -> None:
    iterator = reference()
    if iterator is None:
        return
    iterator._shutdown_workers()  # does nothing after torch's own exit function: if multiprocessing was imported first
    for worker in iterator._workers:
        if worker.is_alive():
            worker.kill()


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block `SIGNALS` in this thread, and in the processes that it starts until they are shielded."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
