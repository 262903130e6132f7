"""The processes that compute a window's loss between them, as the loss sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

from hexloop.ports.collectives import Collectives, Reduction

Count = Tensor | int


def _own(items: Count) -> Count:
    return items


@frozen
class PendingCount:
    """The items of all processes, which they are still adding up.

    result: gives the sum, where the counts are. Waits for the processes that have not begun their window yet.
    """

    result: Callable[[], Count]


def settled(items: Any) -> Any:
    """What `count_items` gave, as a number or None: where it is still being added up, when it is."""
    return items.result() if isinstance(items, PendingCount) else items


@frozen
class World:
    """How many processes there are, and from one's count of items to that of all, there or on its way."""

    size: int = 1
    total: Callable[[Count], Count | PendingCount] = _own


ALONE = World()


def exact_world(size: int, device: torch.device | str, collectives: Collectives | None = None) -> World:
    """The processes of torch.distributed's default group, whose counts are added up on their device.

    collectives: adds them up where that is the host, where the counts are, too.
    """
    if collectives is not None and str(device).partition(":")[0] == "cpu":
        return _exact_host_world(collectives)

    def total(items: Count) -> PendingCount:
        if isinstance(items, Tensor):
            count = items.clone()
        else:  # filled in, as a copy from the host's memory would make the host wait for the device
            count = torch.full((), items, dtype=torch.int64, device=device)
        work = dist.all_reduce(count, async_op=True)

        def result() -> Tensor:
            work.wait()
            return count

        return PendingCount(result)

    return World(size, total)


def _exact_host_world(collectives: Collectives) -> World:
    """Processes that train on the host, where the counts are, too."""

    def total(items: Count) -> PendingCount:
        adding = collectives.start_reduction([float(items)], Reduction.SUM)

        def result() -> Count:
            count = int(adding.result()[0])
            return torch.tensor(count) if isinstance(items, Tensor) else count

        return PendingCount(result)

    return World(collectives.world_size, total)


def even_world(size: int) -> World:
    """Processes each of which is taken to have as many items as this one."""
    return World(size, lambda items: items * size)
