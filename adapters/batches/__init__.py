"""Adapters of the Batches port; here those of rows in memory: a sequence, a stream, and a stream that has a state."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from hexloop.domain.json_documents import json_part
from hexloop.domain.order import global_batches, rank_slice
from hexloop.domain.ranges import Count
from hexloop.domain.schemas import read_part
from hexloop.ports.mesh import Place
from hexloop.ports.state import Part

Row = TypeVar("Row")
Row_co = TypeVar("Row_co", covariant=True)


class SampleOrder(Protocol):
    """The order of the samples of an epoch, such as the domain's `KeyedPermutation`."""

    def __getitem__(self, position: int, /) -> int:
        """Return the index of the sample at a position."""
        ...


class _Stateless:
    """Batches for which epoch and position are enough to resume."""

    # The builtin itself, because the loop calls it at every step.
    rows = staticmethod(len)

    def export(self) -> Iterator[Part]:
        """Export nothing: epoch and position are enough to resume."""
        return iter(())

    def load(self, parts: Iterable[Part]) -> None:
        """Load nothing.

        Raises:
            ValueError: for any part, because none was exported.
        """
        if unknown := [part.name for part in parts]:
            raise ValueError(f"Batches without a state cannot load the parts {unknown}.")


class InMemoryBatches(_Stateless, Generic[Row]):
    """Implements the Batches port for one process: lists of `batch_size` rows, the last of which may be shorter.

    Args:
        rows: the samples of an epoch.
        batch_size: rows in a batch.
        order: from the number of an epoch to its order; if None, rows are not shuffled.
        drop_last: leave out a shorter last batch.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        batch_size: int,
        order: Callable[[int], SampleOrder] | None = None,
        drop_last: bool = False,
    ) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._order = order
        self._drop_last = drop_last
        # Without an order every epoch has the same batches, which are made once.
        self._ready = () if order else tuple(self._batches(range(len(rows)), 0))

    def batches_per_epoch(self) -> int:
        """Return the number of batches in an epoch."""
        return self._count_from(0)

    def samples_per_epoch(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def epoch(self, epoch: int, position: int) -> Generator[list[Row], None, None]:
        """Yield the batches of an epoch from any row on."""
        if self._order is not None:
            yield from self._batches(self._order(epoch), position)
        elif position % self._batch_size:
            yield from self._batches(range(len(self._rows)), position)
        else:
            yield from islice(self._ready, position // self._batch_size, None)

    def _batches(self, order: SampleOrder, position: int) -> Iterator[list[Row]]:
        size, rows = self._batch_size, self._rows
        for number in range(self._count_from(position)):
            first = position + number * size
            yield [rows[order[at]] for at in range(first, min(first + size, len(rows)))]

    def _count_from(self, position: int) -> int:
        return global_batches(self._batch_size, len(self._rows), self._drop_last, position)


class RowsOfRank(list[Row]):
    """The rows of a batch that one rank has. samples: the rows of all ranks together."""

    samples = 0


class RankBatches(InMemoryBatches[Row]):
    """Implements the Batches port for one of several ranks: its part of every batch of `batch_size` rows.

    The parts are as even as possible, and may be empty in the last batch.

    Args:
        rows: the samples of an epoch.
        batch_size: rows in a batch.
        ranks: the place of this rank among those that read different rows.
        order: the order of the rows.
        drop_last: leave out an incomplete last batch.
    """

    rows = staticmethod(attrgetter("samples"))

    def __init__(
        self,
        rows: Sequence[Row],
        batch_size: int,
        ranks: Place,
        order: Callable[[int], SampleOrder] | None = None,
        drop_last: bool = False,
    ) -> None:
        self._ranks = ranks
        super().__init__(rows, batch_size, order, drop_last)

    def _batches(self, order: SampleOrder, position: int) -> Iterator[list[Row]]:
        for batch in super()._batches(order, position):
            own = rank_slice(range(len(batch)), self._ranks)
            part = RowsOfRank(batch[own.start : own.stop])
            part.samples = len(batch)
            yield part


class StreamedBatches(_Stateless, Generic[Row]):
    """Implements the Batches port for rows of unknown number that can only be read from the start.

    `rows` is iterated once per epoch; a run that resumes within an epoch reads and drops the rows before its position.

    Args:
        rows: an iterable of samples, iterated once per epoch.
        batch_size: rows in a batch.
    """

    def __init__(self, rows: Iterable[Row], batch_size: int) -> None:
        self._source = rows
        self._batch_size = batch_size

    def batches_per_epoch(self) -> None:
        """Return None: the number is unknown."""

    def samples_per_epoch(self) -> None:
        """Return None: the number is unknown."""

    def epoch(self, epoch: int, position: int) -> Generator[list[Row], None, None]:
        """Yield the batches after the first `position` rows."""
        rows = islice(self._source, position, None)
        while batch := list(islice(rows, self._batch_size)):
            yield batch


class StatefulRows(Protocol[Row_co]):
    """Rows with a state: an iteration starts there, and after the end at the beginning."""

    def __iter__(self) -> Iterator[Row_co]:
        """Yield the remaining rows."""
        ...

    def state_dict(self) -> Any:
        """Return the state, as JSON values."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Continue from this state.

        Args:
            state: what `state_dict` returned.
        """
        ...


class StatefulBatches(StreamedBatches[Row]):
    """Implements the Batches port for rows with a state; no row is read twice."""

    def __init__(self, rows: StatefulRows[Row], batch_size: int) -> None:
        super().__init__(rows, batch_size)
        self._stateful = rows
        self._epoch: int | None = None
        self._ended = False
        self._saved: tuple[int, bool, Any] | None = None

    def epoch(self, epoch: int, position: int) -> Generator[list[Row], None, None]:
        """Yield the batches from the saved state; at position 0 of a partly read epoch, from the present state."""
        saved, self._saved, self._epoch, self._ended = self._saved, None, epoch, False
        if saved is not None and (position or saved[0] < epoch):
            self._ended = saved[0] == epoch and saved[1]
            self._stateful.load_state_dict(saved[2])
        if self._ended:
            return
        for batch in super().epoch(epoch, 0):
            self._ended = len(batch) < self._batch_size  # the rows are at their end, and may start over
            yield batch
        self._ended = True

    def export(self) -> Iterator[Part]:
        """Export the state of the rows, if they have been read."""
        saved = self._saved
        if saved is None and self._epoch is not None:
            saved = self._epoch, self._ended, self._stateful.state_dict()
        if saved is not None:
            yield json_part("rows", saved)

    def load(self, parts: Iterable[Part]) -> None:
        """Resume from there with the next epoch.

        Raises:
            ValueError: for invalid parts.
        """
        parts = list(parts)
        if parts:
            self._saved = read_part(parts, "rows", tuple[Count, bool, Any])
