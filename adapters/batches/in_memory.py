"""Batches cut from rows in memory: from a sequence, from a stream, and from one that says where it stands."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from hexloop.domain.json_documents import json_part, only_value
from hexloop.domain.order.slices import global_batches
from hexloop.ports.state import Part

Row = TypeVar("Row")
Row_co = TypeVar("Row_co", covariant=True)


class SampleOrder(Protocol):
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
        order: Callable[[int], SampleOrder] | None = None,
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

    def _cut(self, order: SampleOrder, position: int) -> Iterator[list[Row]]:
        size, rows = self._batch_size, self._rows
        for number in range(self._count_from(position)):
            first = position + number * size
            yield [rows[order[at]] for at in range(first, min(first + size, len(rows)))]

    def _count_from(self, position: int) -> int:
        return global_batches(self._batch_size, len(self._rows), self._drop_last, position)


class StreamedBatches(Generic[Row]):
    """Answers the Batches port for rows that can only be read from the start, and that nobody has counted.

    `rows` is iterated once an epoch; a run that goes on within one reads the rows before its position, and drops them.
    """

    def __init__(self, rows: Iterable[Row], batch_size: int) -> None:
        self.rows: Callable[[Sized], int] = len
        self._source = rows
        self._batch_size = batch_size

    def batches_per_epoch(self) -> None:
        """Nobody knows."""

    def samples_per_epoch(self) -> None:
        """Nobody knows."""

    def epoch(self, epoch: int, position: int) -> Generator[list[Row], None, None]:
        """The batches after the first `position` rows."""
        rows = islice(self._source, position, None)
        while batch := list(islice(rows, self._batch_size)):
            yield batch

    def export(self) -> Iterator[Part]:
        """A position says it all."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """A position says it all. Raises ValueError for parts, which somebody else must have exported."""
        if unknown := [part.name for part in parts]:
            raise ValueError(f"These batches keep nothing, and were to load {unknown}; load them into who wrote them.")


class StatefulRows(Protocol[Row_co]):
    """Rows that say where they stand; an iteration goes on from there, and at its end from the beginning."""

    def __iter__(self) -> Iterator[Row_co]:
        """The rows that are left."""
        ...

    def state_dict(self) -> Any:
        """Where the rows stand, as JSON."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Stand there."""
        ...


class StatefulBatches(StreamedBatches[Row]):
    """Answers the Batches port for rows that say where they stand; no row is read twice."""

    def __init__(self, rows: StatefulRows[Row], batch_size: int) -> None:
        super().__init__(rows, batch_size)
        self._stateful = rows
        self._epoch: int | None = None
        self._ended = False
        self._saved: tuple[int, bool, Any] | None = None

    def epoch(self, epoch: int, position: int) -> Generator[list[Row], None, None]:
        """The batches from where the rows stand; at position 0 of an epoch that was begun, from where they are now."""
        saved, self._saved, self._epoch, self._ended = self._saved, None, epoch, False
        if saved is not None and (position or saved[0] < epoch):
            self._ended = saved[0] == epoch and saved[1]
            self._stateful.load_state_dict(saved[2])
        if self._ended:
            return
        for batch in super().epoch(epoch, 0):
            self._ended = len(batch) < self._batch_size  # the rows are at their end, and perhaps begin again
            yield batch
        self._ended = True

    def export(self) -> Iterator[Part]:
        """Where the rows stand, once they were read from."""
        saved = self._saved
        if saved is None and self._epoch is not None:
            saved = self._epoch, self._ended, self._stateful.state_dict()
        if saved is not None:
            yield json_part("rows", saved)

    def load(self, parts: Iterable[Part]) -> None:
        """Go on from there when an epoch is asked for. Raises ValueError for other parts."""
        parts = list(parts)
        if parts:
            epoch, ended, state = only_value(parts, "rows")
            self._saved = epoch, ended, state
