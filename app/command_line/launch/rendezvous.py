"""The rendezvous of machines: torch's, over a TCP store, with machines ordered by their node ranks."""

from __future__ import annotations

import json
import socket
import sys
import time
import uuid
from contextlib import suppress
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
    _RendezvousExitOp,
)
from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

from hexloop.app.command_line.launch.plan import LOOPBACK, LaunchPlan

RUN_ID = "hexloop"
"""The name of a launch on several machines, which all must know; a port serves one launch."""

PAUSE = 0.5
"""Seconds between two attempts to connect."""

LEAVE_TIMEOUT = 5.0
"""Seconds for telling the others that this machine leaves."""

LAST = sys.maxsize
"""The node rank of a machine that was given none."""


def rendezvous_handler(plan: LaunchPlan) -> DynamicRendezvousHandler:
    """Return the rendezvous of this machine with the others; for a single machine, at a free port."""
    alone = plan.rendezvous is None
    endpoint = plan.rendezvous or f"{LOOPBACK}:0"
    host, _, port = endpoint.rpartition(":")
    options = {} if plan.node_rank is None or alone else {"is_host": plan.node_rank == 0}
    if not options.get("is_host", alone or _matches_machine_hostname(host)):
        _wait_for(host.strip("[]"), int(port), plan.join_timeout)
    address = plan.address or (LOOPBACK if host in (LOOPBACK, "localhost") else None)
    parameters = RendezvousParameters(
        "c10d", endpoint, uuid.uuid4().hex if alone else RUN_ID, *plan.nodes, local_addr=address, **options
    )
    backend, store = create_backend(parameters)
    timeout = RendezvousTimeout(join=timedelta(seconds=int(plan.join_timeout)))
    kind = DynamicRendezvousHandler if alone else OrderedRendezvous
    handler: DynamicRendezvousHandler = kind.from_backend(
        parameters.run_id, store, backend, *plan.nodes, address, timeout
    )
    if isinstance(handler, OrderedRendezvous):
        handler.node_rank, handler.address = plan.node_rank, address
    return handler


def _wait_for(host: str, port: int, timeout: float) -> None:
    """Wait until the port accepts connections; torch would log while waiting. Raises TimeoutError with the reason."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=PAUSE).close()
            return
        except OSError as error:  # nothing is listening yet, or the name does not resolve yet
            if time.monotonic() > deadline:
                raise TimeoutError(str(error)) from error
        time.sleep(PAUSE)


class OrderedRendezvous(DynamicRendezvousHandler):
    """A rendezvous that orders machines by node rank, those without one last. address: that of this machine.

    torch orders them by name. Each machine writes one value and reads one, and the first one reads all.
    """

    node_rank: int | None = None
    address: str | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the rendezvous and return it with this machine's rank; the first machine's address is that of rank 0."""
        met = super().next_rendezvous()
        store = PrefixStore("order", met.store)
        store.set(f"given/{met.rank}", str(LAST if self.node_rank is None else self.node_rank))
        if met.rank == 0:
            given = store.multi_get([f"given/{index}" for index in range(met.world_size)])
            order = sorted(range(met.world_size), key=lambda index: (int(given[index]), index))
            store.multi_set(  # type: ignore[attr-defined]  # torch's types leave it out
                [f"place/{index}" for index in order], [json.dumps(rank) for rank in range(met.world_size)]
            )
        rank = int(json.loads(store.get(f"place/{met.rank}")))
        first = RendezvousStoreInfo.build(rank, store, self.address)
        return RendezvousInfo(met.store, rank, met.world_size, first)

    @property
    def use_agent_store(self) -> bool:
        """Whether workers share the store: no, because rank 0 may be on another machine than the store."""
        return False

    def leave(self) -> None:
        """Leave, so that the others can continue. If that fails, they notice missing heartbeats within 15 s."""
        with suppress(Exception):  # torch has no public way to do this, and the store may be gone
            self._stop_heartbeats()
            self._op_executor.run(_RendezvousExitOp(), time.monotonic() + LEAVE_TIMEOUT)
