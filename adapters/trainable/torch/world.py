"""The processes that compute a window's loss between them, as the loss sees them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

Count = Tensor | int


def _own(items: Count) -> Count:
    return items


@frozen
class World:
    """How many processes there are, and from one's count of items to that of all."""

    size: int = 1
    total: Callable[[Count], Count] = _own


ALONE = World()


def exact_world(size: int, device: torch.device | str) -> World:
    """The processes of torch.distributed's default group, whose counts are added up on their device."""

    def total(items: Count) -> Tensor:
        count = items.clone() if isinstance(items, Tensor) else torch.tensor(items, device=device)
        dist.all_reduce(count)
        return count

    return World(size, total)


def even_world(size: int) -> World:
    """Processes each of which is taken to have as many items as this one."""
    return World(size, lambda items: items * size)
