"""Which process writes what of a checkpoint that several write."""

from __future__ import annotations

from collections.abc import Sequence


def deal(sizes: Sequence[int], world_size: int) -> list[int]:
    """The rank that each of a row of things falls to, given their sizes in bytes.

    Neighbours fall to the same rank or to neighbours, and each rank gets about as many bytes. It is a function of its
    arguments alone, so that every process comes to the same without asking.
    """
    total, begun, owners = sum(sizes), 0, []
    for size in sizes:
        middle = 2 * begun + size
        owners.append(min(world_size - 1, middle * world_size // (2 * total)) if total else 0)
        begun += size
    return owners
