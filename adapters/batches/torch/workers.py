"""Loader workers: what they return, how they start, which signals they ignore, and how they divide a stream.

Workers ignore the signals that ask a run to stop: a shell sends Ctrl-C, and many schedulers their warning, to every
process of a job. The main process decides what a signal means; a worker that died of it would break the current step,
and the run could not save. Workers end when the main process is gone.

torch gives each worker a copy of an iterable dataset, which is expected to call `get_worker_info` and to yield only a
part. One that does not is read as often as there are workers. Each worker therefore watches whether the dataset asks,
until its first row, and compares that row with those of the other workers. If no dataset asks and all read the same
row, each worker reads all rows and keeps whole batches in turn: the batches are those of a single reader. If the rows
differ, the dataset may divide itself in another way, such as by a queue, so that nothing is left out.
"""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from hexloop.adapters.batches.torch.data_state import DataState, encode_state, is_stateful
from hexloop.adapters.batches.torch.order import KeyedDataset
from hexloop.adapters.batches.torch.shares import CollatedShares, ShareCollate
from hexloop.adapters.batches.torch.structure import batch_fingerprint, is_comparable
from hexloop.domain.errors import DataError, RunStateError
from hexloop.domain.wording import troubleshooting

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
    gc.freeze()
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
        with _blocked_signals(), _uncollected():
            super().__init__(loader)
        for worker in self._workers:
            # What torch calls for workers that do not end by themselves.
            worker.terminate = worker.kill  # type: ignore[method-assign]
        # At exit multiprocessing sends SIGTERM and waits, unless this runs first.
        multiprocessing.util.Finalize(self, _end, (weakref.ref(self),), exitpriority=100)
        _kill_at_exit(os.getpid())

    def _get_data(self) -> Any:
        began, has_warned, limit = time.monotonic(), False, self._timeout or math.inf
        while True:
            waited = time.monotonic() - began
            if waited >= limit:
                stalled = self._stalled(waited)
                self._shutdown_workers()  # which also ends a worker that cannot do so by itself
                raise RunStateError(
                    f"{stalled}, longer than dataloader_timeout={limit:g}. Look at what __iter__ "
                    "or __getitem__ of the data waits for (a network, a lock), or set a longer timeout. For help, "
                    f"{troubleshooting('slow data')}."
                )
            if waited >= WARN_AFTER and not has_warned:
                has_warned = True
                logging.getLogger("hexloop").warning(
                    "%s. The run waits. Look at what the data waits for (a network, a lock); "
                    "dataloader_timeout ends a run that waits too long. For help, %s.",
                    self._stalled(waited),
                    troubleshooting("slow data"),
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

    def __del__(self) -> None:
        """End the workers.

        If the iterator is in a reference cycle, its queues were finalized before it: workers are no longer told to end,
        and torch would wait `CHECK_EVERY` seconds for each.
        """
        queues = getattr(self, "_index_queues", ())
        if any(queue._close is not None and not queue._close.still_active() for queue in queues):
            self.kill_workers()
        super().__del__()

    def kill_workers(self) -> None:
        """Kill the workers that have not ended. torch then does not raise that one was killed."""
        if self._worker_pids_set:
            torch._C._remove_worker_pids(id(self))
            self._worker_pids_set = False
        for worker in self._workers:
            if worker.is_alive():
                worker.kill()

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


class Watchdog(torch_worker.ManagerWatchdog):
    """Watches the main process. torch's takes the parent at its own start for it, which is another if it was killed."""

    def __init__(self) -> None:
        super().__init__()
        main = multiprocessing.parent_process()
        if main is not None and main.pid is not None:
            self.manager_pid = main.pid


def _exit_with_main_process() -> None:
    """Exit with the main process. torch's workers exit with their parent; a fork server, which is one, lives on."""
    main = multiprocessing.parent_process()
    if main is None or main.pid == os.getppid():
        torch_worker.ManagerWatchdog = Watchdog  # type: ignore[misc]  # made after this, in this process alone
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
    iterator.kill_workers()


@cache
def _kill_at_exit(_process: int) -> None:
    """Register, once in a process, what runs after every `_end`."""
    multiprocessing.util.Finalize(None, _kill_shielded, exitpriority=90)


def _kill_shielded() -> None:
    """Kill the workers of an iterator that a second signal interrupted while it ended them."""
    for child in multiprocessing.active_children():
        if "terminate" in vars(child):
            child.kill()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Start processes whose garbage collector does not look at what they inherit.

    Cyclic garbage of an earlier run may have objects of a device, and a forked process cannot destroy these.
    """
    if gc.get_freeze_count():  # the program's own; undone together with this one
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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


# Division of a stream that does not divide itself

ASKED, NO_ROW, UNLIKE, FIRST_FINGERPRINT = range(1, 5)
"""What a worker notes: its dataset asked for the worker; it has no row; its first row cannot be compared with those of
others, as after a resume from a state. Larger numbers are the fingerprint of its first row."""

PAUSE = 0.002
"""Seconds between two looks at the notes of the other workers."""


class WatchedInfo(torch_worker.WorkerInfo):
    """Information about a worker, which notices whether a dataset reads its id or the number of workers."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers") and Watch.current is not None:
            Watch.current.notice()
        return super().__getattribute__(name)


class Watch:
    """Watches whether a dataset asks for its worker in this process.

    asked: whether it has. on_ask: called the first time, before the dataset gets the answer.
    """

    current: Watch | None = None

    def __init__(self, on_ask: Callable[[], None]) -> None:
        self.asked, self._on_ask = False, on_ask
        info: Any = get_worker_info()
        if not isinstance(info, WatchedInfo):
            names = getattr(info, "__dataclass_fields__", None) or [name for name in vars(info) if name[0] != "_"]
            torch_worker._worker_info = WatchedInfo(**{name: getattr(info, name) for name in names})

    def notice(self) -> None:
        """Note that the dataset asks."""
        if not self.asked:
            self.asked = True
            self._on_ask()

    def __enter__(self) -> None:
        Watch.current = self

    def __exit__(self, *_: object) -> None:
        Watch.current = None


class Division:
    """The notes of the workers of one pass, in shared memory."""

    def __init__(self, workers: int) -> None:
        self.notes: Tensor = torch.zeros(workers, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def end(self, worker: int) -> None:
        """Note that a worker has ended, if it has noted nothing, so that no other waits for it."""
        if not self.notes[worker]:
            self.notes[worker] = NO_ROW

    def agree(self, worker: int, note: int, waits: bool = True) -> bool:
        """Note what this worker found; return whether the rows are divided, as soon as the notes tell.

        waits: the rows may be divided; otherwise no other worker is waited for.
        """
        self.notes[worker] = note
        main = multiprocessing.parent_process()
        while waits and (main is None or main.is_alive()):
            notes = self.notes.tolist()
            if ASKED in notes:
                return False
            if all(notes):
                return self.is_by_position()
            time.sleep(PAUSE)
        return False

    def is_by_position(self) -> bool:
        """Return whether all workers read the same first row."""
        first, *others = self.notes.tolist()
        return first >= FIRST_FINGERPRINT and all(note == first for note in others)

    @property
    def is_settled(self) -> bool:
        """Whether every worker has noted what it found, or one that the dataset divides itself."""
        notes = self.notes.tolist()
        return ASKED in notes or all(notes)

    def problem(self, dataset: object) -> str | None:
        """Return what to report about data that do not divide themselves; None if they do, or nothing is known yet."""
        notes = self.notes.tolist()
        if ASKED in notes or not all(notes) or len(notes) < 2:
            return None
        data, workers = type(dataset).__name__, len(notes)
        remedy = (
            "Let __iter__ call torch.utils.data.get_worker_info() and yield only the part of its worker, or set "
            "dataloader_num_workers=1."
        )
        if self.is_by_position():
            return (
                f"{data} does not divide its rows among the {workers} loader workers, so each worker reads all rows "
                f"and keeps one batch in {workers}: each row is used once, but reading is as slow as with one worker. "
                f"{remedy}"
            )
        if all(note == NO_ROW for note in notes):
            return None
        return (
            f"{data} does not ask which of the {workers} loader workers reads it. Each worker's rows are all used, so "
            f"a row that several workers read is used several times. {remedy}"
        )


def note_of(first: Any) -> int:
    """Return the note about the first row of a dataset that has not asked for its worker."""
    fingerprint = batch_fingerprint(first) if is_comparable(first) else None
    return UNLIKE if fingerprint is None else FIRST_FINGERPRINT | int(fingerprint, 16) >> 2


def late_question() -> DataError:
    """Return the error about a dataset that asks for its worker when its rows are divided already."""
    return DataError(
        "The dataset asks for its worker only after its first row, when its rows are divided among the workers: rows "
        "would be lost. Let it call get_worker_info at the start of __iter__."
    )


_reported: set[str] = set()


def report_once(problem: str | None) -> None:
    """Log a problem, once in this process."""
    if problem is not None and problem not in _reported:
        _reported.add(problem)
        logging.getLogger("hexloop").warning(problem)
