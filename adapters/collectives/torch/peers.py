"""Why a rank waits for others: a long wait is logged, and the cause of a failed operation is found out."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread, get_ident
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from hexloop.domain.errors import CollectiveError
from hexloop.domain.wording import troubleshooting

PATIENCE = 3.0
"""Seconds for the live ranks to report that the operation failed for them too."""

ANNOUNCED = 0.5
"""Seconds in which the announcement of an end reaches this rank."""

STORE_TIMEOUT = 2 * PATIENCE
"""Seconds that a request to the store may take, but for the wait for an end."""

FOREVER = timedelta(days=365)

WARN_AFTER = 120.0
"""Seconds of waiting for other ranks after which a warning says so."""

CHECK_EVERY = 5.0
"""Seconds between two looks at what this rank waits for."""

_logger = logging.getLogger("hexloop")


class PeerMonitor:
    """Finds out why a collective operation failed, through the store in which the processes met.

    Every rank whose operation fails reports to the store; a rank that does not report is missing. A rank that fails by
    itself reports the cause. Each rank receives it at once, in a thread that waits at the store for nothing else,
    before the failing rank takes the store down with it (usually rank 0 hosts it). Nothing is sent while all is well.

    A wait of more than `WARN_AFTER` seconds is logged once.

    world: names this world among those that have used the same store. timeout: of the operations, for messages.
    """

    def __init__(self, rank: int, world_size: int, world: str, timeout: float) -> None:
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout
        self._waits: dict[int, tuple[str, float]] = {}
        self._is_over = Event()
        Thread(target=self._watch, name="hexloop waits", daemon=True).start()
        self._causes: dict[int, str] = {}
        # The timeout of a store object is shared by all its users, so use separate connections if possible.
        shared, prefix = dist.distributed_c10d._get_default_store(), f"hexloop/{world}"
        self._store: Any = PrefixStore(prefix, _connection(shared) or shared)
        listening = (_connection(shared), prefix)
        self._listener = Thread(target=self._listen, args=listening, name="hexloop peer monitor", daemon=True)
        self._listener.start()

    def begin_wait(self, operation: str) -> None:
        """Note what this thread waits for from now on."""
        self._waits[get_ident()] = (operation, time.monotonic())

    def end_wait(self) -> None:
        """Note that this thread no longer waits."""
        self._waits.pop(get_ident(), None)

    @contextmanager
    def explaining(self, operation: str) -> Iterator[None]:
        """Convert torch's error to one that names the missing ranks, or the failed rank and its cause."""
        self.begin_wait(operation)
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, CollectiveError):
                raise
            raise self.explanation(operation, error) from error
        finally:
            self.end_wait()

    def has_failure(self) -> bool:
        """Return whether another rank has reported a failure."""
        return bool(self._causes)

    def explanation(self, operation: str, error: RuntimeError) -> CollectiveError:
        """Return the cause of torch's error, after the other ranks have had time to report."""
        causes, missing = (self._causes, []) if self._causes else self._find_missing()
        self._wait_for_receipts({*causes, *missing})
        return CollectiveError(self._message(operation, causes, missing, error), missing or causes)

    def report_failure(self, cause: str) -> None:
        """Report why this rank ends. The rank that hosts the store waits until all have received it."""
        with suppress(Exception):  # the store is closed
            self._store.set(f"cause/{self._rank}", cause[:2000])
            self._announce_end([self._rank, cause[:2000]])

    def close(self) -> None:
        """Announce that all ranks have finished."""
        if self._rank == 0:
            self._announce_end(None)

    def wait_until_silent(self) -> None:
        """Wait a few seconds for the thread that listens to end.

        If it returned from the store while the interpreter ends, Python would end it inside of torch's code, which
        aborts the process. After the loss of a process that could not announce its end, this one does.
        """
        self._is_over.set()
        self._listener.join(ANNOUNCED)
        if self._listener.is_alive():
            with suppress(RuntimeError):  # the host of the store has exited
                self._store.compare_set("ended", "", json.dumps(None))
            self._listener.join(STORE_TIMEOUT + PATIENCE)  # longer than a request that the thread has begun

    def _announce_end(self, failed: list[Any] | None) -> None:
        """Report to all ranks which rank failed and why, or that none did. The first report counts."""
        self._store.compare_set("ended", "", json.dumps(failed))
        self._wait_for_receipts({self._rank})

    def _listen(self, connection: Any, prefix: str) -> None:
        if connection is None:
            return
        with suppress(RuntimeError):  # the host of the store has exited
            store = PrefixStore(prefix, connection)
            store.wait(["ended"], FOREVER)
            failed = json.loads(store.get("ended"))
            if failed is not None and failed[0] != self._rank:
                self._causes = {failed[0]: failed[1]}
            store.set(f"received/{self._rank}", "")

    def _watch(self) -> None:
        """Warn of each long wait. The ranks need not be wrong: one may prepare data, or be slow."""
        reported: set[float] = set()
        while not self._is_over.wait(min(CHECK_EVERY, WARN_AFTER)):
            for operation, since in list(self._waits.values()):
                waited = time.monotonic() - since
                if waited >= WARN_AFTER and since not in reported:
                    reported.add(since)
                    _logger.warning(
                        "Rank %d has waited for %s for %.0f s, and fails after %g s (ddp_timeout). Other ranks are "
                        "slow, or wait for something else: the data of all ranks must have the same length, and all "
                        "must take part in every save and evaluation. For help, %s.",
                        self._rank, operation, waited, self._timeout, troubleshooting("hangs and timeouts"),
                    )  # fmt: skip

    def _find_missing(self) -> tuple[dict[int, str], list[int]]:
        """Return the ranks that failed by themselves, with their causes, and the ranks that do not report."""
        causes: dict[int, str] = {}
        missing = set(range(self._world_size)) - {self._rank}
        try:
            self._store.set(f"present/{self._rank}", "")
            until = time.monotonic() + PATIENCE
            while missing and time.monotonic() < until:
                for rank in sorted(missing):
                    if self._store.check([f"cause/{rank}"]):
                        causes[rank] = self._store.get(f"cause/{rank}").decode()
                    if rank in causes or self._store.check([f"present/{rank}"]):
                        missing.discard(rank)
                if causes:
                    break
                time.sleep(0.05)
        except RuntimeError:  # the host of the store has exited
            return causes, sorted(missing)
        return causes, [] if causes else sorted(missing)

    def _wait_for_receipts(self, gone: set[int]) -> None:
        """On rank 0, which usually hosts the store, wait until the live ranks have received its reports."""
        with suppress(RuntimeError):
            self._store.set(f"received/{self._rank}", "")
            waiting = set(range(self._world_size)) - gone if self._rank == 0 else set()
            until = time.monotonic() + PATIENCE
            while waiting and time.monotonic() < until:
                waiting = {rank for rank in waiting if not self._store.check([f"received/{rank}"])}
                time.sleep(0.05)

    def _message(self, operation: str, causes: dict[int, str], missing: list[int], error: RuntimeError) -> str:
        if causes:
            rank, cause = next(iter(causes.items()))
            return f"Rank {self._rank} waited for {operation}, but rank {rank} failed: {cause}"
        if missing:
            numbers = ", ".join(map(str, missing))
            who = f"rank {numbers} never arrived" if len(missing) == 1 else f"ranks {numbers} never arrived"
            return (
                f"Rank {self._rank} waited for {operation}, but {who}: dead, stuck, or disconnected. Look at its last "
                f"log lines; a longer ddp_timeout gives slow ranks more time. For help, "
                f"{troubleshooting('hangs and timeouts')}. (torch reports: {_first_line(error)})"
            )
        return f"{operation} failed on all ranks: {_first_line(error)}"


def _connection(store: Any) -> Any:
    """Return another connection to the store; None if it is of a kind without connections."""
    inner = store
    while isinstance(inner, PrefixStore):
        inner = inner.underlying_store
    if isinstance(inner, TCPStore):
        with suppress(RuntimeError):
            return TCPStore(inner.host, inner.port, is_master=False, timeout=timedelta(seconds=STORE_TIMEOUT))
    return None


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0]
