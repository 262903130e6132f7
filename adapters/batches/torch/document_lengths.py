"""The lengths of the documents of a data set with indices, by which rows are planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from attrs import define, field

from hexloop.adapters.batches.torch.documents import INPUT, Integers, length_of_document
from hexloop.adapters.batches.torch.loader import has_own_columns
from hexloop.adapters.batches.torch.order import only_stored
from hexloop.adapters.batches.torch.random_streams import preserved_rng_states, seed_streams
from hexloop.domain.packing import WINDOW

MOST_AT_ONCE = 512
"""Documents that are read in one call."""

FEW_WINDOWS = 8
"""So many windows of documents may be read before the first step."""


@define(eq=False)
class DocumentLengths:
    """The lengths of the documents of a data set with indices, in tokens.

    length_column: the column with the lengths, if the data have it; otherwise they are those of `input_ids`.
    For a table of `datasets` whose columns are those of its samples they are read from Arrow's offsets or values, chunk
    by chunk, without reading the tokens. A data set may have `stored_lengths`, a function that does the same, or None.
    Other documents are read, with random streams that depend on their index.
    """

    dataset: Any
    length_column: str
    _table: Callable[[Sequence[int]], list[int]] | None = field(init=False)

    @_table.default
    def _find_table(self) -> Callable[[Sequence[int]], list[int]] | None:
        return getattr(self.dataset, "stored_lengths", None) or column_lengths(self.dataset, self.length_column)

    @property
    def are_cheap(self) -> bool:
        """Whether the lengths of all documents may be read at once: they are stored as such, or in memory, or few."""
        stored = self._table is not None or type(self.dataset) in (list, tuple)
        return stored or len(self.dataset) <= FEW_WINDOWS * WINDOW

    def __call__(self, indices: Sequence[int]) -> list[int]:
        """Return the lengths of the documents at some indices. Raises DataError if one has none."""
        if self._table is not None:
            return self._table(indices)
        dataset, found = self.dataset, list[int]()
        if only_stored(dataset):
            fetch = getattr(dataset, "__getitems__", None)
            for start in range(0, len(indices), MOST_AT_ONCE):
                some = list(indices[start : start + MOST_AT_ONCE])
                documents = fetch(some) if fetch else [dataset[index] for index in some]
                found += [length_of_document(each, self.length_column) for each in documents]
            return found
        with preserved_rng_states():
            for index in indices:
                seed_streams(index)
                found.append(length_of_document(dataset[index], self.length_column))
        return found


@define(eq=False)
class ColumnLengths:
    """The lengths in a column of an Arrow table: its values, or those of its lists.

    chunks: of the column. rows: maps the index of a sample to its row in the table, if they differ.
    """

    chunks: Sequence[Any]
    rows: ColumnLengths | None = None
    _starts: Integers = field(init=False)
    _known: dict[int, tuple[Integers, bool]] = field(factory=dict, init=False)

    @_starts.default
    def _make_starts(self) -> Integers:
        return np.cumsum([0, *map(len, self.chunks)])

    def __call__(self, indices: Sequence[int]) -> list[int]:
        """Return the lengths of the samples at some indices."""
        wanted: Any = np.asarray(self.rows(indices) if self.rows is not None else indices, dtype=np.int64)
        where = np.searchsorted(self._starts, wanted, side="right") - 1
        within = wanted - self._starts[where]
        by_chunk = np.argsort(where, kind="stable")
        bounds = np.flatnonzero(np.diff(where[by_chunk], prepend=-1, append=len(self.chunks)))
        found = np.empty(len(wanted), dtype=np.int64)
        for first, last in pairwise(bounds):
            places = by_chunk[first:last]
            values, are_offsets = self._values(int(where[places[0]]))
            at = within[places]
            found[places] = values[at + 1] - values[at] if are_offsets else values[at]
        lengths: list[int] = found.tolist()
        return lengths

    def _values(self, number: int) -> tuple[Integers, bool]:
        """Return the offsets of the lists of a chunk, or its values; both without a copy where Arrow allows that."""
        if number not in self._known:
            chunk = self.chunks[number]
            offsets = getattr(chunk, "offsets", None)
            values = chunk if offsets is None else offsets
            self._known[number] = values.to_numpy(zero_copy_only=False), offsets is not None
        return self._known[number]


def column_lengths(dataset: Any, length_column: str) -> ColumnLengths | None:
    """Return the lengths of a table of `datasets`; None if it is not one, or its columns are not read as stored."""
    if not has_own_columns(dataset):
        return None
    with suppress(Exception):  # another release of datasets, or a column of another kind: samples are read instead
        table, name = dataset.data.table, length_column if length_column in dataset.column_names else INPUT
        column = table.column(name)
        if column.null_count or not str(column.type).startswith(("list<", "large_list<", "int", "uint")):
            return None
        own_order = dataset._indices
        rows = None if own_order is None else ColumnLengths(own_order.table.column(0).chunks)
        return ColumnLengths(column.chunks, rows)
    return None
