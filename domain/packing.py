"""Packing: which documents share a row, and which rows a micro-batch, planned window by window.

A window is a fixed number of neighbors in the order of an epoch, and is planned from the lengths of its documents
alone. So the documents of a row follow from seed, epoch and position, on any number of ranks, and the first row needs
the lengths of one window.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attrs import field, frozen
from attrs.validators import ge

from hexloop.domain.errors import DataError
from hexloop.domain.order import Order, random_order

WINDOW = 8192
"""Documents that are planned together: enough to fill rows, and planned in some hundredths of a second."""

BFD, BFD_SPLIT, WRAPPED = "bfd", "bfd_split", "wrapped"
"""The strategies; see `Packing`."""


class Piece(NamedTuple):
    """The tokens `start` to `stop` - 1 of a document. (A tuple, because one is made for every document.)

    ends: whether the rest of the document, if there is one, is in no later piece. Each document has one such piece, by
    which it is counted.
    """

    document: int
    start: int
    stop: int
    ends: bool


Row = tuple[Piece, ...]
"""The pieces that share a row, in order."""

Unit = tuple[Row, ...]
"""Rows that stay together: a single one, or with a budget of tokens those of a micro-batch of a rank."""


def tokens_of(row: Row) -> int:
    """Return the tokens of a row, without padding."""
    return sum(piece.stop - piece.start for piece in row)


def documents_of(unit: Unit) -> int:
    """Return how many documents are counted in some rows. Over all rows of a window, each counts once."""
    return sum(piece.ends for row in unit for piece in row)


@frozen
class Packing:
    """How documents are put in rows.

    max_length: tokens of a row at most; None if nothing is cut off, which packing needs.
    strategy: "bfd" (best fit, decreasing) puts whole documents together, each in the row that it leaves the least room
    in, the longest first; what is beyond `max_length` is cut off. "bfd_split" makes documents of their own of that.
    "wrapped" joins all documents and cuts where a row ends. None: each document has a row of its own, cut off.
    """

    max_length: int | None = None
    strategy: str | None = None

    def rows(self, documents: Sequence[int], lengths: Sequence[int]) -> list[Row]:
        """Return the rows of some documents, by their lengths in tokens. Raises ValueError for an unknown strategy."""
        most, strategy = self.max_length, self.strategy
        if strategy is None or most is None:
            return [
                (Piece(document, 0, length if most is None else min(length, most), True),)
                for document, length in zip(documents, lengths, strict=True)
            ]
        if strategy == BFD:
            whole = zip(documents, lengths, strict=True)
            return _best_fits([Piece(each, 0, min(length, most), True) for each, length in whole], most)
        if strategy == BFD_SPLIT:
            whole = zip(documents, lengths, strict=True)
            return _best_fits([piece for each, length in whole for piece in _split(each, length, most)], most)
        if strategy == WRAPPED:
            return _wrapped(documents, lengths, most)
        raise ValueError(f"There is no packing strategy {strategy!r}.")

    def cuts_off(self, lengths: Sequence[int]) -> int:
        """Return how many documents of these lengths are not used whole."""
        most = self.max_length
        if most is None or self.strategy in (BFD_SPLIT, WRAPPED):
            return 0
        return sum(length > most for length in lengths)


def _split(document: int, length: int, most: int) -> list[Piece]:
    """Return the pieces of a document, all but the last one of `most` tokens. An empty document has one, too."""
    starts = range(0, max(length, 1), most)
    return [Piece(document, start, min(start + most, length), start + most >= length) for start in starts]


def _best_fits(pieces: Sequence[Piece], capacity: int) -> list[Row]:
    """Return rows that hold at most `capacity` tokens, by best fit in decreasing order of length.

    The room of all rows is kept sorted, with the row's number below it, so that each piece takes two searches.
    """
    rows, room, base = list[list[Piece]](), list[int](), len(pieces) + 1
    for piece in sorted(pieces, key=_length_of, reverse=True):  # stable: equal lengths stay in order
        size = piece.stop - piece.start
        at = bisect_left(room, size * base)
        if at == len(room):
            left, number = capacity, len(rows)
            rows.append([piece])
        else:
            left, number = divmod(room.pop(at), base)
            rows[number].append(piece)
        insort(room, (left - size) * base + number)
    return list(map(tuple, rows))


def _length_of(piece: Piece) -> int:
    return piece.stop - piece.start


def _wrapped(documents: Sequence[int], lengths: Sequence[int], capacity: int) -> list[Row]:
    """Return rows of `capacity` tokens, the last one fewer, that hold all documents end to end."""
    rows, row, room = list[Row](), list[Piece](), capacity
    for document, length in zip(documents, lengths, strict=True):
        start = 0
        while length - start > room:
            if room:
                row.append(Piece(document, start, start + room, False))
            rows.append(tuple(row))
            start, row, room = start + room, [], capacity
        row.append(Piece(document, start, length, True))
        room -= length - start
    return [*rows, tuple(row)] if row else rows


@frozen
class TokenBudget:
    """The tokens of a micro-batch of one rank.

    tokens: the most there may be. padded: rows are padded to the longest one, and that to a `multiple`; otherwise they
    are joined to one row.
    """

    tokens: int = field(validator=ge(1))
    padded: bool = True
    multiple: int = 1

    def units(self, rows: Sequence[Row]) -> list[Unit]:
        """Return neighboring rows together, as many as fit. Raises DataError for a row that does not fit alone."""
        units, unit, longest, total = list[Unit](), list[Row](), 0, 0
        for row in rows:
            length = tokens_of(row)
            longest, total = max(longest, length), total + length
            if unit and self._size(len(unit) + 1, longest, total) > self.tokens:
                units.append(tuple(unit))
                unit, longest, total = [], length, length
            if not unit and self._size(1, length, length) > self.tokens:
                raise DataError(
                    f"A sample has {length} tokens, and tokens_per_batch={self.tokens} is the most of a batch; set "
                    "max_length, so that longer samples are cut off, or a larger tokens_per_batch."
                )
            unit.append(row)
        return [*units, tuple(unit)] if unit else units

    def _size(self, rows: int, longest: int, total: int) -> int:
        wide = rows * -(-longest // self.multiple) * self.multiple
        return wide if self.padded else -(-total // self.multiple) * self.multiple


@frozen
class Planner:
    """Plans the units of a window.

    shuffles: rows come in a random order; otherwise in that of their earliest documents. grouped: rows of similar
    lengths share a unit, and the units come in a random order, the longest of an epoch's first window first.
    window: the documents of a whole window.
    """

    packing: Packing
    budget: TokenBudget | None = None
    shuffles: bool = True
    grouped: bool = False
    window: int = field(default=WINDOW, validator=ge(1))

    @property
    def described(self) -> str:
        """What the units depend on besides the documents, in one line."""
        packing, budget = self.packing, self.budget
        words = [f"{packing.strategy or 'alone'} {packing.max_length}"]
        if budget is not None:
            words.append(f"budget {budget.tokens} {'padded' if budget.padded else 'joined'} {budget.multiple}")
        words.append("grouped" if self.grouped else "shuffled" if self.shuffles else "in order")
        return f"{' '.join(words)}, windows of {self.window}"

    def units(self, documents: Sequence[int], lengths: Sequence[int], *name: int) -> list[Unit]:
        """Return the units of a window, by its documents and their lengths. name: seed, epoch and number of the window.

        Raises DataError for a row that exceeds the budget.
        """
        rows = self.packing.rows(documents, lengths)
        if self.grouped:
            rows.sort(key=tokens_of, reverse=True)
        elif self.packing.strategy is not None:
            if self.shuffles:
                rows = [rows[number] for number in random_order(len(rows), "rows", *name)]
            elif self.packing.strategy != WRAPPED:
                places = {document: place for place, document in enumerate(documents)}
                rows.sort(key=lambda row: min(places[piece.document] for piece in row))
        units: list[Unit] = [(row,) for row in rows] if self.budget is None else self.budget.units(rows)
        if not self.grouped:
            return units
        ranking = list(random_order(len(units), "units", *name))
        if name[-1] == 0:
            ranking.sort(key=bool)  # moves only 0, the longest, to the front
        return [units[number] for number in ranking]


class UnitPlace(NamedTuple):
    """A place in an epoch: before the unit with this number in a window, both from 0."""

    window: int
    unit: int


@frozen(eq=False)
class UnitOrder:
    """The units of an epoch in order.

    order: of the documents. lengths_of: returns the lengths of the documents at some indices. noted: called with the
    lengths of each window that is planned.
    """

    order: Order
    planner: Planner
    lengths_of: Callable[[Sequence[int]], Sequence[int]]
    seed: int
    epoch: int
    noted: Callable[[Sequence[int]], None] = lambda _lengths: None

    @property
    def windows(self) -> int:
        """The number of windows in the epoch."""
        return -(-len(self.order) // self.planner.window)

    def window(self, number: int) -> list[Unit]:
        """Return the units of a window, whose documents are indices of the data set."""
        start, size = number * self.planner.window, self.planner.window
        documents = self.order.block(start, min(start + size, len(self.order)))
        lengths = self.lengths_of(documents)
        self.noted(lengths)
        return self.planner.units(documents, lengths, self.seed, self.epoch, number)

    def place_at(self, position: int) -> UnitPlace:
        """Return the place before which at least so many documents are counted, and the first one of these.

        With "bfd" there is exactly one such place for each end of a unit. Pieces that do not end their document count
        none, so that with the other strategies several places have the same position.
        """
        window, offset = divmod(position, self.planner.window)
        if not offset:
            return UnitPlace(window, 0)
        counted = 0
        for number, unit in enumerate(self.window(window)):
            if counted >= offset:
                return UnitPlace(window, number)
            counted += documents_of(unit)
        return UnitPlace(window + 1, 0)

    def units_from(self, place: UnitPlace) -> Iterator[tuple[UnitPlace, Unit]]:
        """Yield each unit from a place on, with its place."""
        first = place.unit
        for window in range(place.window, self.windows):
            units = self.window(window)
            for number in range(first, len(units)):
                yield UnitPlace(window, number), units[number]
            first = 0

    def counts(self) -> list[int]:
        """Return the number of units in each window. Plans the whole epoch."""
        return [len(self.window(number)) for number in range(self.windows)]


@frozen
class Division:
    """How the units of an epoch are divided into batches over all ranks, if every epoch is to have as many.

    units: of this epoch. batches: of every epoch, at most one for each unit. size: units of a whole batch.

    Epochs have slightly different numbers of units, because each packs other documents together. All batches are whole
    ones as long as there is a unit left for each later batch, and then have fewer.
    """

    units: int
    batches: int
    size: int

    def next_size(self, taken: int, begun: int) -> int:
        """Return the units of the next batch, after `taken` units in `begun` batches; 0 if there is none."""
        left, later = self.units - taken, self.batches - begun - 1
        return max(0, min(self.size, left if later <= 0 else max(1, left - later), left))

    def batches_before(self, taken: int) -> int:
        """Return how many batches the first `taken` units of the epoch make up."""
        whole = self.whole_batches
        if taken <= whole * self.size:
            return -(-taken // self.size)
        batches, reached = whole, whole * self.size
        while reached < taken and (size := self.next_size(reached, batches)):
            batches, reached = batches + 1, reached + size
        return batches

    @property
    def whole_batches(self) -> int:
        """The number of batches of full size at the start of the epoch."""
        if self.size == 1:
            return min(self.units, self.batches)
        return max(0, min((self.units - self.batches) // (self.size - 1), self.units // self.size))
