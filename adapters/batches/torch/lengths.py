"""Plans of the lengths to which the batches of a data set are padded, from the lengths of its samples.

The data are read once, in windows. The collate function shows what it does: with each sample alone, which shapes it
makes, and with a short and a long sample together, on which side and with which values it pads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from hexloop.adapters.batches.torch.buckets import (
    OUT,
    Axis,
    BucketCollate,
    Pad,
    Unfit,
    box_within,
    row_shapes,
    shapes_text,
)
from hexloop.adapters.batches.torch.collate import Collate
from hexloop.adapters.batches.torch.loader import has_own_columns
from hexloop.adapters.batches.torch.random_streams import preserved_rng_states, seed_streams
from hexloop.domain.buckets import LengthClass, LengthCounts, Sizes, fingerprint, plan_buckets
from hexloop.domain.errors import ConfigurationError

SHIFTED = {"decoder_input_ids": "labels"}
"""Fields that transformers' collators for models with a decoder make of others, by moving these by one position."""

WINDOW = 1024
"""Samples that are read at once while lengths are counted."""


def planned_collate(
    given: Any,
    data: Any,
    collate: Collate,
    most: int,
    rows: int | None,
    batch_size: int,
    length_column: str,
    main_input: str,
) -> BucketCollate:
    """Return a collate function that pads to at most `most` planned lengths, which depend on these parameters alone.

    given: the data set as the user passed it, which may have a column of lengths. data: its samples for `collate`, at
    least one. rows: samples of a batch that are drawn at random, for the plan; None if batches are `batch_size` samples
    in order. main_input: the field that decides the bucket, if its length varies.
    Raises ConfigurationError for what cannot be padded.
    """
    shown = Collator(collate, data)
    with preserved_rng_states():
        seed_streams(0)  # so that every process finds the same
        try:
            first = shown.shapes(0)
            _refuse_images(first, main_input)
            lengths = _lengths_in(given, length_column)
            if lengths is None:
                counted = _count_samples(shown, first, batch_size, main_input)
            else:
                counted = _count_column(shown, first, batch_size, lengths, length_column)
            pads = shown.pads(counted.pairs)
        except Unfit as problem:
            why = f"compile_buckets={most} cannot pad the batches: {problem}."
            raise ConfigurationError(why) from problem.__cause__
    plan, data_id = plan_buckets(counted.classes, most, rows), fingerprint(counted.classes)
    return BucketCollate(collate, first, counted.axes, pads, plan.buckets, most, plan.added, data_id)


def _refuse_images(first: Mapping[str, Sizes], main_input: str) -> None:
    """Raise Unfit if the main input is not a sequence. A data set of images is not read for that."""
    name = main_input if main_input in first else next((name for name, shape in first.items() if shape), None)
    if name is not None and len(first[name]) > 2:
        raise Unfit(
            f"a row of {name!r} has the shape {first[name]}, and not that of a sequence, (length,) or (length, "
            "features); leave compile_buckets out, because images of one size have one shape anyway"
        )


@define
class Collator:
    """Shows what a collate function makes of samples of a data set."""

    collate: Collate
    data: Any
    _known: dict[tuple[int, ...], dict[str, Tensor]] = field(factory=dict, init=False)

    def shapes(self, index: int) -> dict[str, Sizes]:
        """Return the shapes of a row of a batch of one sample. Raises Unfit, like all that follow."""
        return self.shapes_of(_read(self.data, [index])[0], index)

    def shapes_of(self, sample: Any, index: int) -> dict[str, Sizes]:
        """See `shapes`. index: of the sample, for messages."""
        return row_shapes(self._batch([sample], f"sample {index}"), 1)

    def together(self, *indices: int) -> dict[str, Tensor]:
        """Return the tensors of a batch of a few samples, which is kept."""
        if indices not in self._known:
            batch = self._batch(_read(self.data, indices), f"samples {' and '.join(map(str, indices))}")
            self._known[indices] = {name: batch[name] for name in row_shapes(batch, len(indices))}
        return self._known[indices]

    def _batch(self, samples: Sequence[Any], what: str) -> Any:
        try:  # with copies, because some functions remove entries
            return self.collate([copy(each) if isinstance(each, Mapping) else each for each in samples])
        except Exception as error:
            raise Unfit(
                f"the data_collator fails with {what} ({type(error).__name__}: {str(error).rstrip('.')}), and it has "
                "to make batches of samples of any length; pass one that pads, such as "
                "DataCollatorWithPadding(tokenizer)"
            ) from error

    def pads(self, pairs: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, Pad]:
        """Return how each field is padded, as pairs of a short and a long sample show it.

        The side is the one beside which the short sample is found again. If that may be either, as where all values are
        like the padding, or neither, because values are random, it is the side of another field.
        """
        options = {name: self._options(name, each) for name, each in pairs.items()}
        shifted = {name: pad for name in options if (pad := self._shifted(name, pairs, options)) is not None}
        certain, unclear = dict[str, bool](), list[str]()
        for name, sides in options.items():
            if name in shifted:
                continue
            if not sides:
                raise Unfit(
                    f"the data_collator does not pad {name!r} with one value, so that it is not known how to pad it "
                    f"further; {OUT}"
                )
            found_again = [left for left, (_, is_found) in sides.items() if is_found]
            if len(found_again) == 1 or len(sides) == 1:
                certain[name] = (found_again or list(sides))[0]
            elif not found_again:
                unclear.append(name)
        if unclear and not certain:
            raise Unfit(f"the data_collator does not show on which side it pads {unclear[0]!r}; {OUT}")
        usual = next(iter(certain.values()), False)
        chosen = {name: certain.get(name, usual) for name in options if name not in shifted}
        return {name: Pad(options[name][left][0], left) for name, left in chosen.items()} | shifted

    def _shifted(
        self,
        name: str,
        pairs: Mapping[str, Sequence[tuple[int, int]]],
        options: Mapping[str, Mapping[bool, tuple[Any, bool]]],
    ) -> Pad | None:
        """Return how a field is padded that has the values of another, one position later; None if it has not."""
        source = SHIFTED.get(name)
        if source is None or not options.get(source, {}).get(False, (None, False))[1]:
            return None
        ignored, values = options[source][False][0], list[Any]()
        for pair in pairs[name]:
            later, earlier = self.together(*pair)[name][:, 1:], self.together(*pair)[source][:, :-1]
            if later.shape != earlier.shape or not torch.equal(later[earlier != ignored], earlier[earlier != ignored]):
                return None
            values += later[earlier == ignored].tolist()
        if any(value != values[0] for value in values):
            return None
        return Pad(values[0] if values else 0, left=False, shifted=source)  # without a value none is ever padded with

    def _options(self, name: str, pairs: Sequence[tuple[int, int]]) -> dict[bool, tuple[Any, bool]]:
        """Return, for each side on which a field may be padded, the value, and whether the short samples are found."""
        options: dict[bool, tuple[Any, bool]] = {}
        for left in (False, True):
            regions, is_found = list[Tensor](), True
            for short, long in pairs:
                alone, beside = self.together(short)[name][0], self.together(short, long)[name][0]
                padding = torch.ones(beside.shape, dtype=torch.bool)
                box = box_within(tuple(alone.shape), tuple(beside.shape), left)
                padding[box] = False
                regions.append(beside[padding])
                is_found &= torch.equal(beside[box], alone)
            values = torch.cat(regions)
            if bool((values == values[0]).all()):
                options[left] = values[0].item(), is_found
        return options


# Lengths


@frozen
class Counted:
    """The lengths of a data set.

    axes: those whose size varies. classes: with the sizes of these axes. pairs: for each field with such an axis, pairs
    of the indices of a short and a long sample.
    """

    axes: tuple[Axis, ...]
    classes: Sequence[LengthClass]
    pairs: Mapping[str, Sequence[tuple[int, int]]]


@define
class Tally:
    """Counts the lengths of all samples in order, and notes the shortest and the longest one."""

    total: int
    batch_size: int
    counts: LengthCounts = field(factory=LengthCounts, init=False)
    least: int = field(default=2**62, init=False)
    most: int = field(default=-1, init=False)
    shortest: int = field(default=0, init=False)
    longest: int = field(default=0, init=False)
    _longest_in_batch: int = field(default=0, init=False)

    def add(self, index: int, length: int, sizes: Sizes) -> None:
        """Count the sample at `index`."""
        self.counts.add(length, sizes)
        if length < self.least:
            self.least, self.shortest = length, index
        if length > self.most:
            self.most, self.longest = length, index
        self._longest_in_batch = max(self._longest_in_batch, length)
        if (index + 1) % self.batch_size == 0 or index + 1 == self.total:
            self.counts.add_batch(self._longest_in_batch)
            self._longest_in_batch = 0


def _count_samples(shown: Collator, first: Mapping[str, Sizes], batch_size: int, main_input: str) -> Counted:
    """Return the lengths that the collate function makes of each sample, all of which are read."""
    data, total = shown.data, len(shown.data)
    axes = [(name, at) for name, shape in first.items() for at in range(len(shape))]
    tallies = [Tally(total, batch_size) for _ in axes]
    for start in range(0, total, WINDOW):
        indices = range(start, min(start + WINDOW, total))
        for index, sample in zip(indices, _read(data, indices), strict=True):
            shapes = shown.shapes_of(sample, index)
            _refuse_other_fields(first, shapes, index)
            sizes = tuple(shapes[name][at] for name, at in axes)
            for tally, size in zip(tallies, sizes, strict=True):
                tally.add(index, size, sizes)
    varying = [number for number, tally in enumerate(tallies) if tally.least < tally.most]
    if not varying:
        return _one_shape(total)
    deciding = next((number for number in varying if axes[number] == (main_input, 0)), varying[0])
    classes = [
        evolve(each, sizes=tuple(each.sizes[number] for number in varying))
        for each in tallies[deciding].counts.classes()
    ]
    chosen = tuple(axes[number] for number in varying)
    samples = _spread(total) | {tallies[number].shortest for number in varying}
    return Counted(chosen, classes, _pairs(shown, chosen, samples, [tallies[number].longest for number in varying]))


def _count_column(
    shown: Collator, first: Mapping[str, Sizes], batch_size: int, lengths: Iterator[Any], column: str
) -> Counted:
    """Return the lengths in a column; a few samples show what the collate function makes of them.

    It may round lengths up to a multiple, and cut samples off. All axes that vary get the same length.
    """
    total = len(shown.data)
    tally, known = Tally(total, batch_size), dict.fromkeys(_spread(total), 0)
    for index, value in enumerate(lengths):
        length = _as_length(value, column, index)
        tally.add(index, length, (length,))
        if index in known:
            known[index] = length
    known |= {tally.shortest: tally.least, tally.longest: tally.most}
    shapes = {index: shown.shapes(index) for index in known}
    for index, each in shapes.items():
        _refuse_other_fields(first, each, index)
    axes = tuple(
        (name, at)
        for name, shape in first.items()
        for at in range(len(shape))
        if len({each[name][at] for each in shapes.values()}) > 1
    )
    if not axes:
        return _one_shape(total)
    made = {index: max(each[name][at] for name, at in axes) for index, each in shapes.items()}
    multiple = _multiple(shown.collate)

    def size(length: int) -> int:
        return min(-(-length // multiple) * multiple, made[tally.longest])

    for index, length in known.items():
        if made[index] != size(length):
            raise Unfit(
                f"the column {column!r} says {length} for sample {index}, of which the data_collator makes the length "
                f"{made[index]}; correct it, or let length_column_name name a column that does not exist, so that "
                "every sample is read"
            )
    classes = [evolve(each, sizes=(size(each.length),) * len(axes)) for each in tally.counts.classes()]
    longest = [max(known, key=lambda index, name=name, at=at: shapes[index][name][at]) for name, at in axes]  # type: ignore[misc]
    return Counted(axes, classes, _pairs(shown, axes, set(known), longest))


def _one_shape(total: int) -> Counted:
    """Return the lengths of samples that all have the same."""
    return Counted((), [LengthClass(0, total, 1, ())], {})


def _spread(total: int) -> set[int]:
    """Return the indices of a few samples, which show whether all are padded with the same values."""
    return {0, total // 2, total - 1}


def _refuse_other_fields(first: Mapping[str, Sizes], shapes: Mapping[str, Sizes], index: int) -> None:
    if {name: len(shape) for name, shape in first.items()} != {name: len(shape) for name, shape in shapes.items()}:
        raise Unfit(
            f"the data_collator makes rows of the shapes {shapes_text(first)} of sample 0, and {shapes_text(shapes)} "
            f"of sample {index}; let it return the same fields for all samples"
        )


def _pairs(
    shown: Collator, axes: Sequence[Axis], samples: set[int], longest: Sequence[int]
) -> dict[str, list[tuple[int, int]]]:
    """Return pairs of a short and a long sample for each field with an axis.

    longest: the longest sample of each axis. Raises Unfit unless a pair's batch has the length of its longer sample.
    """
    pairs: dict[str, list[tuple[int, int]]] = {}
    for (name, at), long in zip(axes, longest, strict=True):
        for short in sorted(samples):
            low, high = (shown.together(index)[name].shape[1 + at] for index in (short, long))
            if low == high:
                continue
            if (found := shown.together(short, long)[name].shape[1 + at]) != high:
                raise Unfit(
                    f"the data_collator makes {name!r} of the lengths {low} and {high} of samples {short} and {long}, "
                    f"and of length {found} of both together; {OUT}"
                )
            pairs.setdefault(name, []).append((short, long))
    return pairs


def _lengths_in(dataset: Any, column: str) -> Iterator[Any] | None:
    """Return the values of the column of lengths; None if there is none."""
    total = len(dataset)
    if has_own_columns(dataset):
        if column not in dataset.column_names:
            return None
        table = dataset.select_columns([column])
        return (value for start in range(0, total, WINDOW) for value in table[start : start + WINDOW][column])
    first = _read(dataset, [0])[0]
    if not isinstance(first, Mapping) or column not in first:
        return None
    windows = (range(start, min(start + WINDOW, total)) for start in range(0, total, WINDOW))
    return (sample[column] for window in windows for sample in _read(dataset, window))


def _as_length(value: Any, column: str, index: int) -> int:
    with suppress(TypeError, ValueError, RuntimeError):
        if (length := int(value)) == value and length >= 0:
            return length
    raise Unfit(
        f"the column {column!r} has {value!r} for sample {index}, which is not a length; correct it, or let "
        "length_column_name name a column that does not exist, so that every sample is read"
    )


def _multiple(collate: Collate) -> int:
    """Return the multiple to which a collate function pads, if it has the attribute of transformers' collators."""
    inner: Any = collate
    while isinstance(inner, partial):
        inner = inner.args[0] if inner.args else None
    multiple = getattr(inner, "pad_to_multiple_of", None)
    return multiple if isinstance(multiple, int) and multiple > 0 else 1


def _read(data: Any, indices: Sequence[int]) -> Sequence[Any]:
    """Return the samples at some indices, in one call if the data set supports that."""
    fetch: Callable[[list[int]], Sequence[Any]] | None = getattr(data, "__getitems__", None)
    return fetch(list(indices)) if fetch else [data[index] for index in indices]
