"""Connects the processes of a run to a world: the store in which they meet, and torch's default process group.

Each step has a bound, so that a start of which some processes are missing ends with an error that names them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from attrs import frozen
from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from hexloop.adapters.collectives.torch.meeting import Attempt, Bound, Meeting, ranks_named
from hexloop.domain.errors import CollectiveError
from hexloop.domain.wording import troubleshooting

PAUSE = 0.2
"""Seconds between two attempts to reach the store."""

PROBE_TIMEOUT = 5.0
"""Seconds that one attempt may take."""

CONNECT_SHARE = 0.5
"""The time in which ranks that have met connect, as a share of the time in which they meet."""

ADJUSTABLE = frozenset({"gloo", "nccl"})
"""Back ends whose timeout can be changed after the group was made."""


@frozen
class MeetingPlace:
    """The address of the store. hosted: whether rank 0 provides it; otherwise the launcher does."""

    host: str
    port: int
    hosted: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@frozen
class Timeouts:
    """Seconds to wait for the others: at the rendezvous, and in later operations."""

    rendezvous: float
    operations: float

    @property
    def connecting(self) -> float:
        """The seconds in which ranks that have met connect."""
        return CONNECT_SHARE * self.rendezvous


class World:
    """The processes of a run that have met, and connect."""

    def __init__(self, store: Any, meeting: Meeting, attempt: Attempt, backend: str, timeouts: Timeouts) -> None:
        self._store, self._meeting, self._attempt = store, meeting, attempt
        self._backend, self._timeouts = backend, timeouts

    @property
    def _is_adjustable(self) -> bool:
        return {each.rpartition(":")[2] for each in self._backend.split(",")} <= ADJUSTABLE

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Convert an error of torch, while the processes connect, to one that names the ranks that were lost."""
        try:
            yield
        except RuntimeError as error:
            lost = self._meeting.find_lost()
            who = f"{ranks_named(lost)[0].lower()}{ranks_named(lost)[1:]}" if lost else ""
            raise CollectiveError(
                f"Rank {self._attempt.rank} met all {self._attempt.world_size} ranks, but "
                f"{f'{who} ended or hung' if lost else 'an operation failed'} before they were connected. Look at the "
                "first error in the log; a longer rendezvous_timeout gives slow ranks more time. For help, "
                f"{troubleshooting('hangs and timeouts')}. (torch reports: {_first_line(error)})",
                lost,
            ) from error

    def make_group(self, name: str) -> None:
        """Make the default process group of torch, whose keys in the store start with a new name."""
        seconds = self._timeouts.connecting if self._is_adjustable else self._timeouts.operations
        self._store.set_timeout(timedelta(seconds=self._timeouts.connecting))
        dist.init_process_group(
            self._backend,
            store=PrefixStore(f"hexloop/world/{name}", self._store),
            rank=self._attempt.rank,
            world_size=self._attempt.world_size,
            timeout=timedelta(seconds=seconds),
        )

    def settle(self) -> None:
        """Set the timeout of later operations: all processes are connected."""
        self._meeting.report()
        self._store.set_timeout(timedelta(seconds=self._timeouts.operations))
        if self._is_adjustable:
            set_timeout(dist.group.WORLD, self._timeouts.operations)


def start_world(place: MeetingPlace, rank: int, world_size: int, backend: str, timeouts: Timeouts) -> World:
    """Meet the other processes and make the default process group; the caller connects further ones, then settles.

    Raises CollectiveError, which names the missing ranks.
    """
    attempt = Attempt(rank, world_size, str(place), Bound(timeouts.rendezvous))
    while True:
        store = _open(place, attempt)
        meeting = Meeting(store, attempt)
        try:
            name = meeting.join()
            break
        except (DistNetworkError, DistStoreError) as error:  # the store has ended; in a restart, another one follows
            if attempt.bound.left <= 0 or (place.hosted and rank == 0):
                raise attempt.failure([0] if place.hosted else [], f" ({_first_line(error)})") from error
            time.sleep(PAUSE)
    world = World(store, meeting, attempt, backend, timeouts)
    with world.connecting():
        world.make_group(name)
    return world


def set_timeout(group: Any, timeout: float) -> None:
    """Set the timeout of a group's later operations, in seconds."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)


def _open(place: MeetingPlace, attempt: Attempt) -> Any:
    """Return the store, which rank 0 makes if it is hosted. Raises CollectiveError."""
    makes, bound = place.hosted and attempt.rank == 0, attempt.bound
    while True:
        try:
            if not makes:
                _probe(place, bound)
            return TCPStore(
                place.host,
                place.port,
                is_master=makes,
                timeout=timedelta(seconds=max(1.0, min(PROBE_TIMEOUT, bound.left))),
                wait_for_workers=False,
                multi_tenant=place.hosted,
                use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
            )
        except (OSError, dist.DistError) as error:
            reason = _first_line(error)
            if makes:
                raise CollectiveError(
                    f"Rendezvous failed: rank 0 cannot listen at {place} ({reason}). Start the processes with another "
                    "MASTER_PORT, or end the program that uses this one. For help, "
                    f"{troubleshooting('hangs and timeouts')}."
                ) from error
            if bound.left <= 0:
                raise attempt.failure([0] if place.hosted else [], f", where nothing answers ({reason})") from error
        time.sleep(PAUSE)


def _probe(place: MeetingPlace, bound: Bound) -> None:
    """Connect to the store and leave: torch prints a warning for every attempt that fails. Raises OSError."""
    socket.create_connection((place.host, place.port), max(0.1, min(PROBE_TIMEOUT, bound.left))).close()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
