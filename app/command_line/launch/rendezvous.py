"""Where machines meet: torch's rendezvous over a TCP store, in the order that the command line gives to machines."""

from __future__ import annotations

import json
import socket
import sys
import time
import uuid
from contextlib import suppress
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _RendezvousExitOp
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

from hexloop.app.command_line.launch.plan import LOOPBACK, Plan

SHARED = "hexloop"
"""The name of a launch on several machines, which all of them have to know; a port holds one launch."""

PAUSE = 0.5
"""Seconds between two tries to find the others."""

PATIENCE = 5.0
"""Seconds in which the others hear that a machine leaves."""

LAST = sys.maxsize
"""The place of a machine that was given none."""


def meeting(plan: Plan) -> RendezvousHandler:
    """The rendezvous of this machine with the others, or with itself alone, at a free port."""
    alone = plan.rendezvous is None
    endpoint = plan.rendezvous or f"{LOOPBACK}:0"
    host, _, port = endpoint.rpartition(":")
    options: dict[str, Any] = {"join_timeout": int(plan.join_timeout)}
    if plan.node_rank is not None and not alone:
        options["is_host"] = plan.node_rank == 0
    if not options.get("is_host", alone or _matches_machine_hostname(host)):
        _wait_for(host.strip("[]"), int(port), plan.join_timeout)
    address = plan.address or (LOOPBACK if host in (LOOPBACK, "localhost") else None)
    parameters = RendezvousParameters(
        "c10d", endpoint, uuid.uuid4().hex if alone else SHARED, *plan.nodes, local_addr=address, **options
    )
    handler = get_rendezvous_handler(parameters)
    return handler if alone else InOrder(handler, plan.node_rank, address)


def _wait_for(host: str, port: int, timeout: float) -> None:
    """Wait until somebody listens there: torch would not do it in silence. Raises TimeoutError, which says why."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=PAUSE).close()
            return
        except OSError as error:  # nobody there yet, or no such name yet
            if time.monotonic() > deadline:
                raise TimeoutError(str(error)) from error
        time.sleep(PAUSE)


class InOrder(RendezvousHandler):
    """A rendezvous whose machines come in the order of their node ranks, those without one after them.

    torch's own orders them by name. Each machine writes one value and reads one, and the first reads all.
    """

    def __init__(self, inner: RendezvousHandler, node_rank: int | None, address: str | None) -> None:
        self._inner, self._node_rank, self._address = inner, node_rank, address

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet, and take the place that is one's own; the address of the new first one is that of rank 0."""
        met = self._inner.next_rendezvous()
        store = PrefixStore("order", met.store)
        store.set(f"given/{met.rank}", str(LAST if self._node_rank is None else self._node_rank))
        if met.rank == 0:
            given = store.multi_get([f"given/{index}" for index in range(met.world_size)])
            order = sorted(range(met.world_size), key=lambda index: (int(given[index]), index))
            store.multi_set(  # type: ignore[attr-defined]  # torch's types leave it out
                [f"place/{index}" for index in order], [json.dumps(place) for place in range(met.world_size)]
            )
        place = int(json.loads(store.get(f"place/{met.rank}")))
        first = RendezvousStoreInfo.build(place, store, self._address)
        return RendezvousInfo(met.store, place, met.world_size, first)

    def get_backend(self) -> str:
        """The name of torch's rendezvous."""
        return self._inner.get_backend()

    @property
    def use_agent_store(self) -> bool:
        """Whether workers share its store: they do not, as rank 0 may be on another machine than the store."""
        return False

    def is_closed(self) -> bool:
        """Whether nobody can join any more."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """Let nobody join any more."""
        self._inner.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """How many machines wait to join."""
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        """The name of the launch."""
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        """Leave, and let nobody join any more."""
        return self._inner.shutdown()

    def leave(self) -> None:
        """Leave, so that the others can go on. Where that fails, they miss this machine's sign of life within 15 s."""
        inner: Any = self._inner
        with suppress(Exception):  # torch shows no way to do so; the store may be gone, too
            inner._stop_heartbeats()
            inner._op_executor.run(_RendezvousExitOp(), time.monotonic() + PATIENCE)
