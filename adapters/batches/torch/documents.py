"""Documents as samples of a data set: their lengths, the pieces that a batch needs of them, and how these are collated.

A document is a mapping with `input_ids`. Optional are `labels`; `completion_mask` and `assistant_masks`, of which the
tokens with 0 get no label; and, of rows that were packed before, `seq_lengths` or `position_ids`, which say where
their documents start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from torch import Tensor

from hexloop.adapters.batches.torch.collate import TOKENIZE, Collate
from hexloop.domain.errors import DataError
from hexloop.domain.packing import Row
from hexloop.ports.batches import IGNORED_LABEL

INPUT = "input_ids"

LABELS = "labels"

MASKS = ("completion_mask", "assistant_masks")
"""Columns with 1 for the tokens that are trained on, as in trl."""

BOUNDARIES = ("seq_lengths", "position_ids")
"""Columns that say where the documents of a packed row start."""

DOCUMENT_COLUMNS = frozenset({INPUT, LABELS, "attention_mask", *MASKS, *BOUNDARIES})

Integers = NDArray[np.int64]


# Samples


def length_of_document(document: Any, length_column: str) -> int:
    """Return the tokens of a document. Raises DataError if it is not one."""
    if isinstance(document, Mapping):
        if INPUT in document:
            return len(document[INPUT])
        if length_column in document:
            return int(document[length_column])
    raise no_document(document)


def no_document(sample: Any) -> DataError:
    """Return the error about a sample that is not a document."""
    if not isinstance(sample, Mapping):
        found = f"is of type {type(sample).__name__}"
        return DataError(
            f"A sample {found}, but packing, padding_free, max_length and tokens_per_batch need mappings with "
            f"{INPUT!r}; let the data set return dictionaries."
        )
    texts = any(isinstance(value, str) for value in sample.values())
    step = TOKENIZE if texts else f"Rename the column with the tokens to {INPUT}."
    return DataError(
        f"A sample has {', '.join(map(str, sample)) or 'no column'}, but packing, padding_free, max_length and "
        f"tokens_per_batch need {INPUT!r}. {step}"
    )


def pieces_of(documents: Mapping[int, Any] | Sequence[Any], row: Row) -> list[Any]:
    """Return the documents of a row, each cut to its piece."""
    return [cut(documents[piece.document], piece.start, piece.stop) for piece in row]


def cut(document: Any, start: int, stop: int) -> Any:
    """Return the tokens `start` to `stop` - 1 of a document, of all its columns that have a value for each token.

    Raises DataError if the sample is not a document.
    """
    if not isinstance(document, Mapping) or INPUT not in document:
        raise no_document(document)
    length = len(document[INPUT])
    if start == 0 and stop >= length:
        return document
    return {name: _cut(value, name, start, stop, length) for name, value in document.items()}


def _cut(value: Any, name: str, start: int, stop: int, length: int) -> Any:
    if name == "seq_lengths":
        ends = np.cumsum(as_integers(value)).clip(start, stop) - start
        lengths = np.diff(ends, prepend=0)
        return lengths[lengths > 0]
    sized = isinstance(value, list | tuple | np.ndarray | Tensor) and not (hasattr(value, "ndim") and not value.ndim)
    return value[start:stop] if sized and len(value) == length else value


def as_integers(values: Any) -> Integers:
    """Return a list, array or tensor as an array of 64-bit integers."""
    if isinstance(values, Tensor):
        values = values.numpy()
    return np.asarray(values, dtype=np.int64)


# Collating


@frozen
class JoinedRows:
    """Passes the documents of all rows to a collate function of documents, such as DataCollatorWithFlattening.

    Batches of samples, and not of rows, are passed as they are. without_cache: see `DocumentCollate`.
    """

    collate: Collate
    without_cache: bool = False

    def __call__(self, rows: list[Any]) -> Any:
        """Return the batch."""
        documents = list(chain.from_iterable(rows)) if rows and isinstance(rows[0], list) else rows
        batch = self.collate(documents)
        if self.without_cache and isinstance(batch, dict) and "position_ids" in batch:
            batch["use_cache"] = False
        return batch


@frozen
class CutSamples:
    """Cuts samples off at `max_length` tokens before another function collates them.

    noted: called with how many of a batch were longer.
    """

    collate: Collate
    max_length: int
    noted: Callable[[int], None]

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch."""
        longer = sum(length_of_document(each, INPUT) > self.max_length for each in samples)
        if longer:
            self.noted(longer)
            samples = [cut(each, 0, self.max_length) for each in samples]
        return self.collate(samples)


@frozen
class DocumentCollate:
    """Makes batches of documents: (rows, tokens), with labels of -100 where a token is not predicted.

    layout: "padded" has a document in each row, with an attention mask. "rows" has several, whose positions restart,
    and "flat" one row for all rows. Neither has an attention mask, because models of transformers derive attention
    within documents from positions only without one.
    pad_id: the token that rows are padded with. multiple: rows are padded to a multiple of it. first_position: of each
    document; RoBERTa counts from 2. boundaries: add the arguments of flash attention, `cu_seq_lens_q` and others, to
    "flat". copies: documents without labels are their own. without_cache: add `use_cache=False`, because with a cache
    transformers takes no boundaries from positions. extra: other columns that the model takes, of a value per token.
    """

    layout: str = "padded"
    pad_id: int = 0
    multiple: int = 1
    first_position: int = 0
    boundaries: bool = False
    copies: bool = True
    without_cache: bool = True
    extra: tuple[str, ...] = ()

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """Return the batch of some rows, which are lists of documents, or documents. Raises DataError."""
        rows = [row if isinstance(row, list) else [row] for row in rows]
        if self.layout == "flat":
            rows = [[document for row in rows for document in row]]
        packed = self.layout != "padded"
        made = [self._row(row, packed) for row in rows]
        longest = max(1, *(len(each.columns[INPUT]) for each in made))
        width = -(-longest // self.multiple) * self.multiple
        names = list(made[0].columns)
        for number, each in enumerate(made):
            if list(each.columns) != names:
                raise DataError(
                    f"Row 0 of a batch has {', '.join(names)}, and row {number} has {', '.join(each.columns)}; give "
                    "every document the same columns."
                )
        batch: dict[str, Any] = {
            name: _stacked([each.columns[name] for each in made], width, self._pad(name)) for name in names
        }
        if not packed:
            batch["attention_mask"] = _stacked([np.ones(len(each.columns[INPUT]), np.int64) for each in made], width, 0)
            return batch
        batch["position_ids"] = self._positions(
            [each.starts for each in made], [len(each.columns[INPUT]) for each in made], width
        )
        if self.boundaries and self.layout == "flat":
            ends = [
                *made[0].starts.tolist(),
                *([len(made[0].columns[INPUT])] if len(made[0].columns[INPUT]) < width else []),
                width,
            ]
            seams = torch.tensor(ends, dtype=torch.int32)
            most = int(np.diff(ends).max())
            batch |= {"cu_seq_lens_q": seams, "cu_seq_lens_k": seams, "max_length_q": most, "max_length_k": most}
        if self.without_cache:
            batch["use_cache"] = False
        return batch

    def _row(self, documents: Sequence[Any], packed: bool) -> RowColumns:
        """Return the joined columns of the documents of a row, and where documents start, also in packed rows."""
        columns: dict[str, list[Integers]] = {}
        starts, at = list[int](), 0
        for document in documents:
            found = self._columns_of(document)
            length = len(found[INPUT])
            if packed and length:
                inner = _inner_starts(document, length)
                found[LABELS] = found[LABELS].copy()
                found[LABELS][inner] = IGNORED_LABEL
                starts += (inner + at).tolist()
            for name, values in found.items():
                columns.setdefault(name, []).append(values)
            at += length
        return RowColumns({name: np.concatenate(each) for name, each in columns.items()}, np.array(starts, np.int64))

    def _columns_of(self, document: Any) -> dict[str, Integers]:
        """Return the columns of a document that have a value for each token. Raises DataError if one does not fit."""
        if not isinstance(document, Mapping) or INPUT not in document:
            raise no_document(document)
        tokens = as_integers(document[INPUT])
        found = {INPUT: tokens}
        if (given := document.get(LABELS)) is not None:
            found[LABELS] = _of_length(as_integers(given), LABELS, len(tokens))
        elif self.copies:
            found[LABELS] = tokens
        elif self.layout != "padded":
            raise DataError(f"A document has no {LABELS!r}; add the column.")
        for name in MASKS:
            if (mask := document.get(name)) is not None and LABELS in found:
                kept = _of_length(as_integers(mask), name, len(tokens)) != 0
                found[LABELS] = np.where(kept, found[LABELS], IGNORED_LABEL)
        if (mask := document.get("attention_mask")) is not None and not _of_length(
            as_integers(mask), "attention_mask", len(tokens)
        ).all():
            raise DataError(
                "A document has padding: its attention_mask has zeros. Tokenize the documents without padding (with "
                "padding=False), because batches are padded when they are made."
            )
        for name in self.extra:
            if (values := document.get(name)) is not None:
                found[name] = _of_length(as_integers(values), name, len(tokens))
        return found

    def _pad(self, name: str) -> int:
        return self.pad_id if name == INPUT else IGNORED_LABEL if name == LABELS else 0

    def _positions(self, starts: Sequence[Integers], lengths: Sequence[int], width: int) -> Tensor:
        """Return the position of each token in its document; those of padding are another document."""
        positions = np.tile(np.arange(width, dtype=np.int64), (len(starts), 1))
        for number, (own, length) in enumerate(zip(starts, lengths, strict=True)):
            begins = np.append(own, length) if length < width or not len(own) else own
            positions[number] -= np.repeat(begins, np.diff(begins, append=width))
        return torch.from_numpy(positions + self.first_position)


@frozen(eq=False)
class RowColumns:
    """The columns of a row, each of shape (tokens,), and where its documents start."""

    columns: dict[str, Integers]
    starts: Integers


def _inner_starts(document: Mapping[str, Any], length: int) -> Integers:
    """Return where documents start in a sample: several if it was packed before."""
    if (lengths := document.get("seq_lengths")) is not None:
        lengths = as_integers(lengths)
        if lengths.sum() != length or (lengths < 0).any():
            raise DataError(
                f"A row has {length} tokens, and its seq_lengths {lengths.tolist()[:8]} make up {int(lengths.sum())}; "
                "correct the column, or leave it out."
            )
        starts: Integers = np.cumsum(lengths[lengths > 0])[:-1]
        return np.concatenate([np.zeros(1, np.int64), starts])
    if (positions := document.get("position_ids")) is not None:
        positions = _of_length(as_integers(positions), "position_ids", length)
        return np.flatnonzero(np.diff(positions, prepend=positions[0] - 2) != 1)
    return np.zeros(1, np.int64)


def _of_length(values: Integers, name: str, length: int) -> Integers:
    """Return the values. Raises DataError unless there is one for each token."""
    if values.shape != (length,):
        raise DataError(
            f"A document has {length} tokens in {INPUT!r}, and its {name!r} has the shape {values.shape}; give it a "
            "value for each token, or leave it out."
        )
    return values


def _stacked(rows: Sequence[Integers], width: int, value: int) -> Tensor:
    """Return the rows, padded on the right to a width, as a tensor of shape (rows, width)."""
    whole = np.full((len(rows), width), value, dtype=np.int64)
    for row, values in zip(whole, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(whole)
