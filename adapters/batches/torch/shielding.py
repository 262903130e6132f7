"""Loader workers that go on when their whole process group is told to stop, so that the run can still save, and end
when the run's own process is gone.

A shell sends Ctrl-C, and many schedulers their warning, to every process of a job. The run's own process decides what a
signal means; a worker that died of it would take the step in hand along.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attrs import frozen
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

SIGNALS = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # Windows has two of them
)


@frozen
class Shielded:
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
    def _worker_init_fn(self) -> Shielded:
        return self._shielded

    @_worker_init_fn.setter
    def _worker_init_fn(self, initialise: Callable[[int], Any] | None) -> None:
        self._shielded = Shielded(initialise)

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
