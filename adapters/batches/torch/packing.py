"""Loaders of packed documents: the rows of data sets with indices, and those of streams.

Documents are planned where batches are numbered: in this process for data with indices, and where a stream is read.
They are read and collated by workers, if there are any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Annotated, Any, NamedTuple

import torch
from attrs import asdict, evolve, frozen
from torch.utils.data import Dataset, IterableDataset, Sampler

from hexloop.adapters.batches.torch.collate import Collate
from hexloop.adapters.batches.torch.data_state import DataState, encode_state, is_stateful
from hexloop.adapters.batches.torch.documents import length_of_document, pieces_of
from hexloop.adapters.batches.torch.loader import ResumableLoader
from hexloop.adapters.batches.torch.order import only_stored
from hexloop.adapters.batches.torch.random_streams import seed_streams
from hexloop.adapters.batches.torch.shares import RANK_KEY_FACTOR, CollatedShares, SharesOfRanks
from hexloop.adapters.batches.torch.stream import restarted, set_epoch
from hexloop.adapters.batches.torch.workers import load_state
from hexloop.domain.order import ALL, WORD, Shard, sample_key
from hexloop.domain.packing import Division, Planner, Row, Unit, UnitOrder, UnitPlace, documents_of
from hexloop.domain.ranges import Between, Count
from hexloop.domain.schemas import structured

CutOff = Callable[[int, int], None]
"""Called with how many documents are cut off, of how many that were read."""


# Data sets with indices


class KeyedRow(NamedTuple):
    """A row of a batch, and the key of the random streams with which its documents are read."""

    row: Row
    key: int


class PackedDataset(Dataset[Any]):
    """The rows of a data set of documents. The index of a row is the row itself, as a sampler plans it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.dataset)

    def __getitem__(self, of: KeyedRow) -> list[Any]:
        return self.__getitems__([of])[0]

    def __getitems__(self, batch: Sequence[KeyedRow]) -> list[list[Any]]:
        """Return the documents of each row, cut to the pieces that belong to it."""
        if not only_stored(self.dataset):
            return [self._read(each) for each in batch]
        seed_streams(batch[-1].key)
        wanted = list(dict.fromkeys(piece.document for each in batch for piece in each.row))
        fetch = getattr(self.dataset, "__getitems__", None)
        documents = fetch(wanted) if fetch else [self.dataset[index] for index in wanted]
        known = dict(zip(wanted, documents, strict=True))
        return [pieces_of(known, each.row) for each in batch]

    def _read(self, of: KeyedRow) -> list[Any]:
        seed_streams(of.key)
        return pieces_of({piece.document: self.dataset[piece.document] for piece in of.row}, of.row)


class NextBatch(NamedTuple):
    """What a sampler notes of a batch: the place after it, the units up to there, and its documents over all ranks."""

    place: UnitPlace
    units: int
    documents: int
    counts: bool


class PackedBatchSampler(Sampler[list[Any]]):
    """Batches of rows in the order that `make_order(epoch)` plans, from the place set by `seek`.

    size: units of a batch over all ranks, of which this rank reads its `shard`. If the shard is empty, it reads the
    first unit of the batch, which must not be counted. drop_last: leave an incomplete last batch out.
    epochs: how many epochs are planned ahead, so that all of them get the same number of batches; 0 if none is. With a
    budget of tokens, epochs of fewer units have fewer batches: what is a batch then does not depend on the ranks.
    """

    def __init__(
        self, make_order: Callable[[int], UnitOrder], size: int, drop_last: bool, shard: Shard = ALL, epochs: int = 0
    ) -> None:
        self.size, self.drop_last, self.shard = size, drop_last, shard
        self._make_order, self._epochs = make_order, epochs
        self._evens = make_order(0).planner.budget is None
        self._units: list[list[int]] = []  # of each window, by epoch
        self.noted: deque[NextBatch] = deque()
        self.seek(0, UnitPlace(0, 0), 0)

    def seek(self, epoch: int, place: UnitPlace, units: int) -> None:
        """Start the next iteration at a place, before which there are so many units."""
        self._epoch, self._place, self._taken = epoch, place, units
        self.noted.clear()

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of `epoch`."""
        self.seek(epoch, UnitPlace(0, 0), 0)

    def place_at(self, epoch: int, position: int) -> tuple[UnitPlace, int]:
        """Return the place after so many documents, and the units before it where they are needed."""
        order = self._make_order(epoch)
        place = order.place_at(position)
        if not self._epochs or not position:
            return place, 0
        return place, sum(self._planned(epoch)[: place.window]) + place.unit

    def indices_at(self, epoch: int, position: int, count: int) -> list[int]:
        """Return the indices of documents of all ranks from `position` on, as many as the epoch has."""
        order, found = self._make_order(epoch), list[int]()
        for _, unit in order.units_from(order.place_at(position)):
            found += [piece.document for row in unit for piece in row if piece.ends]
            if len(found) >= count:
                break
        return found[:count]

    @property
    def plan(self) -> str:
        """By what the rows are planned; see `Planner.described`."""
        return self._make_order(0).planner.described

    @property
    def batches(self) -> int | None:
        """The number of batches in every epoch; None if it is not planned ahead."""
        if not self._epochs:
            return None
        units = [sum(self._planned(epoch)) for epoch in range(self._epochs)]
        if self.drop_last:
            return min(each // self.size for each in units)
        return max(-(-each // self.size) for each in units)

    def __len__(self) -> int:
        if (batches := self.batches) is None:
            raise TypeError("The number of batches is not known before the documents have been packed.")
        return batches

    def __iter__(self) -> Iterator[list[KeyedRow]]:
        order, size, taken = self._make_order(self._epoch), self.size, self._taken
        units = order.units_from(self._place)
        division, begun = self._division(), 0
        if division is not None:
            begun = division.batches_before(taken)
        while division is None or not self.drop_last or begun < division.batches:
            wanted = size if division is None or self.drop_last else division.next_size(taken, begun)
            batch = list(islice(units, wanted))
            if not batch or (self.drop_last and len(batch) < size):
                return
            taken, begun = taken + len(batch), begun + 1
            yield self._own(order, batch, taken)

    def _division(self) -> Division | None:
        batches = self.batches
        if batches is None or not (self._evens or self.drop_last):
            return None
        if self._epoch >= self._epochs:  # an epoch that makes up for steps that were left out
            return None
        return Division(sum(self._planned(self._epoch)), batches, self.size)

    def _own(self, order: UnitOrder, batch: list[tuple[UnitPlace, Unit]], taken: int) -> list[KeyedRow]:
        """Return this rank's rows of a batch, and note the batch."""
        mine = self.shard.of(range(len(batch)), self.size)
        (window, number), _ = batch[-1]
        documents = sum(documents_of(unit) for _, unit in batch)
        self.noted.append(NextBatch(UnitPlace(window, number + 1), taken, documents, bool(mine)))
        rows = list[KeyedRow]()
        for place, unit in batch[mine.start : mine.stop] or batch[:1]:
            key = sample_key(order.seed, order.epoch, place.window * order.planner.window + place.unit)
            rows += [KeyedRow(row, (key + each * RANK_KEY_FACTOR) & WORD) for each, row in enumerate(unit)]
        return rows

    def _planned(self, epoch: int) -> list[int]:
        """Return the number of units in each window of an epoch."""
        while len(self._units) <= epoch:
            self._units.append(self._make_order(len(self._units)).counts())
        return self._units[epoch]


@frozen
class PackedPosition:
    """How far a loader has read an epoch of packed documents: as stored in a checkpoint.

    plan: by what rows are planned; see `Planner.described`. window, unit: the next unit that is read. units, documents:
    of the epoch, which were read.
    """

    plan: str
    epoch: Count
    window: Count = 0
    unit: Count = 0
    units: Count = 0
    documents: Count = 0


class PackedLoader(ResumableLoader):
    """A loader of packed documents of a data set with indices, over all ranks or this one's share.

    size: units of a whole batch over all ranks.
    """

    counts_documents = True

    def __init__(self, dataset: Any, batches: PackedBatchSampler, collate_fn: Collate, **options: Any) -> None:
        self.order = batches
        self._position: PackedPosition | None = None
        self._saved: PackedPosition | None = None
        super().__init__(
            PackedDataset(dataset), batches.size, True, batch_sampler=batches, collate_fn=collate_fn, **options
        )
        self.total_batch_size = batches.size

    @property
    def user_dataset(self) -> Any:
        """The dataset that the user passed."""
        packed: Any = self.dataset
        return packed.dataset

    def __iter__(self) -> Any:
        return self.counted(self._batches())

    def load_position(self, document: Any) -> None:
        """Resume from a stored position. Raises ValueError for one that no reading leads to.

        One of rows that were planned otherwise, or of samples, is left out: the number of documents counts then.
        """
        if isinstance(document, dict) and "window" in document:
            saved = structured(document, PackedPosition, "standing")
            self._saved = saved if saved.plan == self.order.plan else None

    def position_state(self) -> DataState | None:
        """Return the position after the last batch that was taken from this loader; None before the first."""
        position = self._saved or self._position
        return None if position is None else encode_state(self.user_dataset, asdict(position))

    def batches_from(self, epoch: int, position: int) -> Generator[Any, None, None]:
        """Yield the batches of `epoch` after the first `position` documents, or from the stored place."""
        with closing(self.parts_from(epoch, position)) as parts:
            for (share,) in parts:
                yield share.batch

    def parts_from(self, epoch: int, position: int) -> SharesOfRanks:
        """Yield this rank's share, alone, of each batch; see `batches_from`.

        The stored place counts, because with pieces of documents several places have the same position. At position 0
        of an epoch of which documents were read, the epoch starts over.
        """
        saved, self._saved = self._saved, None
        self._taken, self._exhausted = None, False
        if saved is not None and saved.epoch == epoch and (position or not saved.documents):
            current = saved
        else:
            place, units = self.order.place_at(epoch, position)
            current = PackedPosition(self.order.plan, epoch, *place, units, position)
        self._position = current
        self.order.seek(epoch, UnitPlace(current.window, current.unit), current.units)
        self.generator.manual_seed(epoch)
        self.begin()
        for batch in self._batches():
            note = self.order.noted.popleft()
            read = current.documents + note.documents
            self._position = current = PackedPosition(current.plan, epoch, *note.place, note.units, read)
            yield CollatedShares([batch], [note.counts]).by_rank(note.documents)
        self._exhausted = True

    def _batches(self) -> Iterator[Any]:
        if self.num_workers > 0 or self.pin_memory:
            yield from self._read()
            return
        dataset: Any = self.dataset
        for rows in self.order:
            yield self.collate_fn(dataset.__getitems__(rows))

    def _length(self) -> int | None:
        return None  # documents, of which a batch has any number

    @property
    def _has_begun(self) -> bool:
        return self._taken is not None or self._position is not None


# Streams


class PackedUnit(NamedTuple):
    """The rows of a unit, each a list of documents, and how many documents are counted in it."""

    rows: list[list[Any]]
    documents: int


def documents_in(units: Iterable[PackedUnit]) -> int:
    """Return how many documents are counted in some units."""
    return sum(unit.documents for unit in units)


@frozen
class UnitCollate:
    """Collates the rows of some units together."""

    collate: Collate

    def __call__(self, units: Sequence[PackedUnit]) -> Any:
        """Return the batch."""
        return self.collate([row for unit in units for row in unit.rows])


Key = Annotated[int, Between(0, WORD)]


@frozen
class StreamPlace:
    """Where a packed stream is: in which window, after how many units; the random streams' key when it was read.

    plan: by what its rows are planned; see `Planner.described`.
    data, rows: the states of the data set and its iterator before the window was read. In the first window of a pass
    that is the state before the pass.
    """

    plan: str
    window: Count = 0
    unit: Count = 0
    key: Key | None = None
    data: Any = None
    rows: Any = None


class PackedStream(IterableDataset[PackedUnit]):
    """The units of the documents of a stream, planned in windows of documents as they come.

    planner, length_column: see `UnitOrder` and `length_of_document`. seed: of the order of units. cut_off: is told of
    documents that are cut off.
    """

    def __init__(self, dataset: Any, planner: Planner, length_column: str, seed: int, cut_off: CutOff) -> None:
        self.dataset, self.planner, self.length_column, self.seed = dataset, planner, length_column, seed
        self.epoch = 0
        self._cut_off = cut_off
        self._place = StreamPlace(planner.described)
        self._resumes: StreamPlace | None = None

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`."""
        self.epoch = epoch
        set_epoch(self.dataset, epoch)

    def __iter__(self) -> Iterator[PackedUnit]:
        at, self._resumes = self._resumes, None
        if at is None:
            at = StreamPlace(self.planner.described, data=self._state_of(self.dataset))
            documents = iter(self.dataset)
        elif at.window == 0:
            documents = restarted(self.dataset)
        else:
            documents = iter(self.dataset)
            load_state(documents, {"rows": at.rows} if at.rows is not None else None, "rows")
        while True:
            key = torch.default_generator.initial_seed() & WORD  # what reads the rows has seeded the streams
            if at.key is not None:  # the window is read once more, with the streams of the first time
                seed_streams(at.key)
            read = list(islice(documents, self.planner.window))
            if not read:
                return
            if at.key is not None:
                seed_streams(key)
            lengths = [length_of_document(each, self.length_column) for each in read]
            self._note_lengths(lengths)
            units = self.planner.units(range(len(read)), lengths, self.seed, self.epoch, at.window)
            data, rows = self._state_of(self.dataset), self._state_of(documents)
            after = StreamPlace(at.plan, at.window + 1, data=data, rows=rows)
            for number in range(at.unit, len(units)):
                self._place = evolve(at, unit=number + 1, key=key if at.key is None else at.key)
                unit = units[number]
                yield PackedUnit([pieces_of(read, row) for row in unit], documents_of(unit))
            at = after

    @staticmethod
    def _state_of(data: Any) -> Any:
        return data.state_dict() if is_stateful(data) else None

    def _note_lengths(self, lengths: Sequence[int]) -> None:
        if cut := self.planner.packing.cuts_off(lengths):
            self._cut_off(cut, len(lengths))


class StatefulPackedStream(PackedStream):
    """A packed stream of data that resume from their own state: from that before the present window."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last unit that was taken."""
        return asdict(self._place, recurse=False)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass start at a place; at the start of its window if rows are planned otherwise.

        Raises ValueError for a state that is not one of packed rows.
        """
        place, plan = structured(state, StreamPlace, "packed"), self.planner.described
        if place.plan != plan:
            place = evolve(place, plan=plan, unit=0)
        self._resumes = self._place = place
        if place.data is not None:
            self.dataset.load_state_dict(place.data)


def packed_stream(dataset: Any, planner: Planner, length_column: str, seed: int, cut_off: CutOff) -> PackedStream:
    """Return the units of a stream, with a state if the stream has one."""
    kind = StatefulPackedStream if is_stateful(dataset) else PackedStream
    return kind(dataset, planner, length_column, seed, cut_off)
