"""Who is missing when an operation fails, and why."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Thread
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from hexloop.domain.errors import CollectiveError

PATIENCE = 3.0
"""Seconds in which those who live have time to say that the operation failed for them as well."""

FOR_EVER = timedelta(days=365)


class Witnesses:
    """Each rank whose operation fails says so in the store where the processes met; who says nothing is missing.

    A rank that fails by itself says why. All hear it at once, each in a thread that waits at the store for nothing
    else, so that they know before that rank takes the store along, which is mostly held by rank 0. While all goes well
    nothing is sent.

    meeting: names this world among those that have used the same store.
    """

    def __init__(self, rank: int, world_size: int, meeting: str) -> None:
        self._rank = rank
        self._world_size = world_size
        self._causes: dict[int, str] = {}
        # The time-out of a store is that of all who use it, so these are connections of their own where there can be.
        met, place = dist.distributed_c10d._get_default_store(), f"hexloop/{meeting}"
        self._store: Any = PrefixStore(place, _connection(met) or met)
        listening = (_connection(met), place)
        self._listener = Thread(target=self._listen, args=listening, name="hexloop listens", daemon=True)
        self._listener.start()

    @contextmanager
    def watching(self, what: str) -> Iterator[None]:
        """Turn torch's error into one that names the ranks that never came, or the one that failed, and its cause."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, CollectiveError):
                raise
            raise self.explained(what, error) from error

    def has_heard(self) -> bool:
        """Whether another rank has said that it failed."""
        return bool(self._causes)

    def explained(self, what: str, error: RuntimeError) -> CollectiveError:
        """What torch's error comes from, once the others had time to say what they know."""
        causes, missing = (self._causes, []) if self._causes else self._ask()
        self._let_the_others_hear({*causes, *missing})
        return CollectiveError(self._told(what, causes, missing, error), missing or causes)

    def tell(self, cause: str) -> None:
        """Say why this rank ends; the rank that mostly holds the store waits until all have heard."""
        with suppress(Exception):  # the store is gone
            self._store.set(f"cause/{self._rank}", cause[:2000])
            self._say_over([self._rank, cause[:2000]])

    def dismiss(self) -> None:
        """All ranks have come to their end: nobody listens any more."""
        if self._rank == 0:
            self._say_over(None)
        self._listener.join(PATIENCE)

    def _say_over(self, failed: list[Any] | None) -> None:
        """Let everybody hear which rank failed, and why, or that none did; what is said first counts."""
        self._store.compare_set("over", "", json.dumps(failed))
        self._let_the_others_hear({self._rank})

    def _listen(self, connection: Any, place: str) -> None:
        if connection is None:
            return
        with suppress(RuntimeError):  # whoever held the store is gone
            store = PrefixStore(place, connection)
            store.wait(["over"], FOR_EVER)
            failed = json.loads(store.get("over"))
            if failed is not None and failed[0] != self._rank:
                self._causes = {failed[0]: failed[1]}
            store.set(f"heard/{self._rank}", "")

    def _ask(self) -> tuple[dict[int, str], list[int]]:
        """Those that failed by themselves, with their causes, and those of whom nothing is heard."""
        causes: dict[int, str] = {}
        silent = set(range(self._world_size)) - {self._rank}
        try:
            self._store.set(f"witness/{self._rank}", "here")
            until = time.monotonic() + PATIENCE
            while silent and time.monotonic() < until:
                for rank in sorted(silent):
                    if self._store.check([f"cause/{rank}"]):
                        causes[rank] = self._store.get(f"cause/{rank}").decode()
                    if rank in causes or self._store.check([f"witness/{rank}"]):
                        silent.discard(rank)
                if causes:
                    break
                time.sleep(0.05)
        except RuntimeError:  # whoever held the store is gone
            return causes, sorted(silent)
        return causes, [] if causes else sorted(silent)

    def _let_the_others_hear(self, gone: set[int]) -> None:
        """Rank 0 mostly holds the store, which ends with it: it stays until those who live know what it knows."""
        with suppress(RuntimeError):
            self._store.set(f"heard/{self._rank}", "")
            waiting = set(range(self._world_size)) - gone if self._rank == 0 else set()
            until = time.monotonic() + PATIENCE
            while waiting and time.monotonic() < until:
                waiting = {rank for rank in waiting if not self._store.check([f"heard/{rank}"])}
                time.sleep(0.05)

    def _told(self, what: str, causes: dict[int, str], missing: list[int], error: RuntimeError) -> str:
        if causes:
            rank, cause = next(iter(causes.items()))
            return f"Rank {self._rank} waited for {what}, but rank {rank} failed: {cause}"
        if missing:
            said = ", ".join(map(str, missing))
            who = f"rank {said} never came" if len(missing) == 1 else f"ranks {said} never came"
            return (
                f"Rank {self._rank} waited for {what}, but {who}: dead, stuck, or cut off. Look at the last lines that "
                f"they wrote; a longer ddp_timeout gives slow ranks more time. (torch says: {_first_line(error)})"
            )
        return f"{what} failed on all ranks: {_first_line(error)}"


def _connection(store: Any) -> Any:
    """Another connection to the store; None where it is one that cannot be connected to."""
    inner = store
    while isinstance(inner, PrefixStore):
        inner = inner.underlying_store
    if isinstance(inner, TCPStore):
        with suppress(RuntimeError):
            return TCPStore(inner.host, inner.port, is_master=False, timeout=timedelta(seconds=PATIENCE * 2))
    return None


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0]
