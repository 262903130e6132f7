"""Batches cut from a sequence in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Generic, Protocol, TypeVar

from hexloop.domain.order.slices import global_batches
from hexloop.ports.state import Part

Row = TypeVar("Row")


class Order(Protocol):
    """Which sample comes at which position of an epoch, such as the domain's `KeyedPermutation`."""

    def __getitem__(self, position: int, /) -> int:
        """The index of the sample at a position."""
        ...


class InMemoryBatches(Generic[Row]):
    """Answers the Batches port for one process: lists of `batch_size` rows, the last of which may be shorter.

    order: from the number of an epoch to its order; without one, rows come as they stand.
    drop_last: leave a shorter last batch out.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        batch_size: int,
        order: Callable[[int], Order] | None = None,
        drop_last: bool = False,
    ) -> None:
        # A batch has as many rows as it is long; the builtin itself, because the loop asks at every step.
        self.rows: Callable[[Sized], int] = len
        self._rows = rows
        self._batch_size = batch_size
        self._order = order
        self._drop_last = drop_last
        # Without an order every epoch has the same batches, which are cut once.
        self._ready = () if order else tuple(self._cut(range(len(rows)), 0))

    def batches_per_epoch(self) -> int:
        """How many batches an epoch has."""
        return self._count_from(0)

    def samples_per_epoch(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def epoch(self, epoch: int, position: int) -> Generator[list[Row], None, None]:
        """The batches of an epoch from any row on."""
        if self._order is not None:
            yield from self._cut(self._order(epoch), position)
        elif position % self._batch_size:
            yield from self._cut(range(len(self._rows)), position)
        else:
            yield from islice(self._ready, position // self._batch_size, None)

    def export(self) -> Iterator[Part]:
        """A position says it all."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """A position says it all. Raises ValueError for parts, which somebody else must have exported."""
        if unknown := [part.name for part in parts]:
            raise ValueError(f"These batches keep nothing, and were to load {unknown}; load them into who wrote them.")

    def _cut(self, order: Order, position: int) -> Iterator[list[Row]]:
        size, rows = self._batch_size, self._rows
        for number in range(self._count_from(position)):
            first = position + number * size
            yield [rows[order[at]] for at in range(first, min(first + size, len(rows)))]

    def _count_from(self, position: int) -> int:
        return global_batches(self._batch_size, len(self._rows), self._drop_last, position)
