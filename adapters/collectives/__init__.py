"""Adapters of the Collectives port; here the one for a single process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from hexloop.ports.collectives import Json, Reduction

REDUCERS: dict[Reduction, Callable[[Iterable[float]], float]] = {
    Reduction.SUM: sum,
    Reduction.MAXIMUM: max,
    Reduction.MINIMUM: min,
}
"""What combines the numbers of all ranks."""


def place_among(rank: int, ranks: Sequence[int]) -> int:
    """Return the number of a rank among `ranks`, in ascending order. Raises ValueError if it is not among them."""
    if rank not in ranks:
        raise ValueError(f"Rank {rank} is not among the ranks {sorted(ranks)} whose collectives it asks for.")
    return sorted(ranks).index(rank)


@frozen
class PendingReduction:
    """Pending adapter. `result` waits for the numbers of all ranks and reduces them; it can be called repeatedly."""

    result: Callable[[], tuple[float, ...]]


class SingleProcessCollectives:
    """Collectives adapter for a world of one."""

    rank = 0
    world_size = 1

    def start_reduction(self, values: Sequence[float], reduction: Reduction) -> PendingReduction:
        """Return the numbers themselves."""
        numbers = tuple(values)
        return PendingReduction(lambda: numbers)

    def gather(self, value: Json) -> list[Json]:
        """Return the value in a list."""
        return [value]

    def broadcast(self, value: Json, source: int = 0) -> Json:
        """Return the value."""
        return value

    def barrier(self, name: str) -> None:
        """No-op."""

    def among(self, ranks: Sequence[int]) -> SingleProcessCollectives:
        """Return this object.

        Raises:
            ValueError: for other ranks than 0.
        """
        place_among(0, ranks)
        return self

    def apart(self) -> SingleProcessCollectives:
        """Return this object: without communication, any thread may use it."""
        return self

    def tell_failure(self, cause: str) -> None:
        """No-op."""

    def explain(self, error: BaseException) -> BaseException:
        """Return the error."""
        return error
