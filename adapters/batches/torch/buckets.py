"""Batches that are padded to planned lengths, as their collate function pads.

Batches are padded after they were collated, so that collating draws the same random numbers as without buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen
from torch import Tensor

from hexloop.adapters.batches.torch.collate import Collate
from hexloop.adapters.batches.torch.workers import collate_in_worker
from hexloop.domain.buckets import Sizes
from hexloop.domain.errors import DataError

Axis = tuple[str, int]
"""A field of a batch, and one of its dimensions after that of the rows."""

OUT = "pad in the data_collator (pad_to_multiple_of, or padding='max_length') and leave compile_buckets out"


class Unfit(Exception):  # noqa: N818  # it is a part of a sentence, and is never seen
    """The part of a sentence that says why batches cannot be padded."""


@frozen
class Pad:
    """How a field is padded: with which value, and whether on the left of the values instead of the right.

    shifted: the field whose values this one has one position later, as a decoder's inputs have those of its labels.
    Then the last of these comes before the padding, unless it is itself padding.
    """

    value: Any
    left: bool
    shifted: str | None = None


@frozen
class BucketCollate:
    """Collates a batch, and pads it to the first bucket that fits it.

    shapes: of a row of each field; in `axes` they vary. pads: of the fields with such an axis. buckets: the sizes of
    the axes, in ascending order. most: how many buckets were asked for. added: see `BucketPlan`. data: the fingerprint
    of the lengths of the data.
    """

    collate: Collate
    shapes: Mapping[str, Sizes]
    axes: tuple[Axis, ...]
    pads: Mapping[str, Pad]
    buckets: tuple[Sizes, ...]
    most: int
    added: float
    data: str

    def __call__(self, features: list[Any]) -> Any:
        """Return the padded batch. Raises DataError if it fits no bucket, or has other fields than planned."""
        batch = self.collate(features)
        try:
            found = row_shapes(batch, len(features))
        except Unfit as problem:
            raise DataError(f"compile_buckets={self.most} cannot pad a batch: {problem}.") from problem
        bucket = self._bucket_of(found)
        if bucket is None:
            raise DataError(self._unplanned(found))
        for name, shape in _with_sizes({name: self.shapes[name] for name in self.pads}, self.axes, bucket).items():
            if found[name] != shape:
                pad = self.pads[name]
                whole = padded(batch[name], shape, pad)
                if pad.shifted is not None:
                    (length,) = found[name]
                    last = batch[pad.shifted][:, length - 1]
                    whole[:, length] = last.masked_fill(last == self.pads[pad.shifted].value, pad.value)
                batch[name] = whole
        return batch

    def _bucket_of(self, found: Mapping[str, Sizes]) -> Sizes | None:
        """Return the first bucket that fits a batch; None if there is none, or if it differs elsewhere."""
        try:
            sizes = [found[name][at] for name, at in self.axes]
        except (KeyError, IndexError):
            return None
        if _with_sizes(self.shapes, self.axes, sizes) != found:
            return None
        fitting = (each for each in self.buckets if all(room >= size for room, size in zip(each, sizes, strict=True)))
        return next(fitting, None)

    def _unplanned(self, found: Mapping[str, Sizes]) -> str:
        planned = _with_sizes(self.shapes, self.axes, self.buckets[-1])
        return (
            f"compile_buckets={self.most} planned batches whose rows have at most the shapes {shapes_text(planned)}, "
            f"and the rows of a batch have the shapes {shapes_text(found)}. The samples are not those whose lengths "
            "were counted: let the data and the data_collator return the same shapes each time, correct the column of "
            f"lengths (length_column_name), or {OUT}."
        )


def buckets_of(loader: Any) -> BucketCollate | None:
    """Return what pads the batches of one of hexloop's loaders; None if nothing does."""
    collate = getattr(loader, "collate_fn", None)
    if isinstance(collate, partial) and collate.func is collate_in_worker:
        collate = collate.args[0].collate
    return collate if isinstance(collate, BucketCollate) else None


def row_shapes(batch: Any, rows: int) -> dict[str, Sizes]:
    """Return the shapes of the tensors of a batch, without their first dimension, which is that of the rows.

    Raises Unfit if the batch is not a flat dictionary, or a tensor has another number of rows.
    """
    if not isinstance(batch, MutableMapping):
        raise Unfit(f"the data_collator returns a value of type {type(batch).__name__}; let it return a dictionary")
    found: dict[str, Sizes] = {}
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.ndim:
            if len(value) != rows:
                raise Unfit(
                    f"the data_collator makes {name!r} of shape {tuple(value.shape)} of {rows} "
                    f"sample{'s' * (rows > 1)}, so that its first dimension is not that of the samples; {OUT}"
                )
            found[name] = tuple(value.shape[1:])
        elif _holds_tensors(value):
            raise Unfit(f"the data_collator returns tensors within {name!r}; let it return a flat dictionary")
    return found


def _holds_tensors(value: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(isinstance(each, Tensor) or _holds_tensors(each) for each in inner)


def padded(tensor: Tensor, shape: Sizes, pad: Pad) -> Tensor:
    """Return a tensor of shape (rows, *shape) with the values of a smaller one, padded with one value."""
    whole = tensor.new_full((len(tensor), *shape), pad.value)
    whole[(slice(None), *box_within(tuple(tensor.shape[1:]), shape, pad.left))] = tensor
    return whole


def box_within(inner: Sizes, outer: Sizes, left: bool) -> tuple[slice, ...]:
    """Return where values of one shape are within those of a larger one, which is padded on the left or the right."""
    pairs = zip(inner, outer, strict=True)
    return tuple(slice(large - small, large) if left else slice(small) for small, large in pairs)


def _with_sizes(shapes: Mapping[str, Sizes], axes: Sequence[Axis], sizes: Sequence[int]) -> dict[str, Sizes]:
    """Return the shapes with other sizes of those axes that they have."""
    changed = {name: list(shape) for name, shape in shapes.items()}
    for (name, at), size in zip(axes, sizes, strict=True):
        if name in changed:
            changed[name][at] = size
    return {name: tuple(shape) for name, shape in changed.items()}


def shapes_text(shapes: Mapping[str, Sizes]) -> str:
    """Return the names and shapes for a message."""
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "of no field"
