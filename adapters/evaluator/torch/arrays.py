"""Where the rows of predictions are kept: in memory, or in files that are mapped into it."""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from typing import Any, Protocol, TypeAlias

import numpy as np
from attrs import frozen

from hexloop.domain.errors import DataError, StorageFullError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Shape: TypeAlias = tuple[int, ...]


class ArrayStore(Protocol):
    """Room for arrays, which takes no memory until it is written to."""

    def lasting(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Room for a result. Raises DataError or StorageFullError, with what to do, where there is not enough."""
        ...

    def passing(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Room for rows on their way to a result, which is given back the moment that the array goes."""
        ...


class MemoryArrays:
    """Room in the process's own memory."""

    def lasting(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """An array like any other. Raises DataError where the system refuses so much memory."""
        try:
            return np.empty(shape, dtype)
        except MemoryError as error:
            raise DataError(
                f"The predictions need {_readable(shape, dtype)} of memory, which the system refuses. Keep less of "
                "them with preprocess_logits_for_metrics, keep none with batch_eval_metrics=True, or keep them on a "
                "disk with predictions_folder."
            ) from error

    def passing(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Pages of their own: an allocator would keep those that are freed one after the other."""
        size = max(_bytes(shape, dtype), 1)
        if sys.platform == "win32":
            pages = mmap.mmap(-1, size)
        else:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)


@frozen
class FileArrays:
    """Room in files of a folder, which have no name and end with their arrays, however the process ends."""

    path: str

    def lasting(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """A mapped file whose bytes the disk has promised. Raises StorageFullError where it has not so many."""
        if math.prod(shape) == 0:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self.path, prefix="hexloop-predictions-") as file:
                _reserve(file.fileno(), _bytes(shape, dtype))
                mapped: Array = np.memmap(file, dtype, "r+", shape=shape)
        except OSError as error:
            raise StorageFullError(
                f"You chose predictions_folder={self.path!r}, but {_readable(shape, dtype)} of predictions cannot be "
                f"kept there ({error}); choose a folder on a disk with more room."
            ) from error
        return mapped

    def passing(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """As for a result."""
        return self.lasting(shape, dtype)


def _reserve(file: int, size: int) -> None:
    """Make the file that long. A write to a mapped page that finds the disk full would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def _bytes(shape: Shape, dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def _readable(shape: Shape, dtype: np.dtype[Any]) -> str:
    return f"{_bytes(shape, dtype) / 1e9:.3g} GB (shape {shape})"


PADDING = -100
"""What fills the second dimension where arrays differ in it; cross entropy ignores it as a label."""

LEAST_BLOCK = 1 << 20
"""The bytes of the smallest block."""

BLOCKS = 16
"""A block holds this part of the rows before it: what exists twice while blocks are joined."""


class RowBuffer:
    """Arrays of shape (rows, ...), joined along the first dimension; the second is padded where it differs.

    Where `expected` says how many rows there will be, each is written to its place in the result at once. Others fill
    one block after the other, and so do rows that are wider, or of a wider type, than those before them; the
    blocks are then copied into the result, and each given back.
    """

    def __init__(self, room: ArrayStore, expected: int = 0) -> None:
        self._room = room
        self._expected = expected
        self._full: list[Array] = []
        self._block: Array | None = None
        self._filled = 0
        self._count = 0

    def add(self, rows: Array) -> None:
        """Add an array. Raises DataError where it fits no result with the earlier ones."""
        block, end = self._block, self._filled + len(rows)
        if block is None or end > len(block) or rows.shape[1:] != block.shape[1:] or rows.dtype != block.dtype:
            block = self._fitting(rows)
            end = self._filled + len(rows)
        if rows.shape[1:] == block.shape[1:]:
            block[self._filled : end] = rows
        else:
            _pad_into(block[self._filled : end], rows)
        self._filled = end
        self._count += len(rows)

    def joined(self) -> Array:
        """All rows, as one array. To be asked once: what they were kept in is given back."""
        assert self._block is not None
        blocks = [*self._full, self._block[: self._filled]]
        self._full, self._block = [], None
        if len(blocks) == 1:
            return blocks[0]
        widest = blocks[-1]
        result = self._room.lasting((self._count, *widest.shape[1:]), widest.dtype)
        blocks.reverse()
        end = 0
        while blocks:
            block = blocks.pop()
            start, end = end, end + len(block)
            _pad_into(result[start:end], block)
        return result

    def _fitting(self, rows: Array) -> Array:
        """A block in which there is room for `rows`: the present one, or a new one that is as wide as both."""
        block = self._block
        if block is None:
            return self._open(rows.shape[1:], rows.dtype, len(rows))
        if rows.ndim != block.ndim or rows.shape[2:] != block.shape[2:]:
            raise DataError(
                f"A batch gave predictions or labels of shape {rows.shape}, and an earlier one of shape "
                f"{(self._filled, *block.shape[1:])}: joined, they may differ in the first two dimensions alone. Let "
                "preprocess_logits_for_metrics make them alike, or set eval_do_concat_batches=False."
            )
        shape = (*map(max, rows.shape[1:2], block.shape[1:2]), *block.shape[2:])
        dtype = np.result_type(rows.dtype, block.dtype)
        if shape == block.shape[1:] and dtype == block.dtype and self._filled + len(rows) <= len(block):
            return block
        self._full.append(block[: self._filled])
        return self._open(shape, dtype, len(rows))

    def _open(self, shape: tuple[int, ...], dtype: np.dtype[Any], least: int) -> Array:
        self._filled = 0
        if self._expected and not self._full:
            self._block = self._room.lasting((max(self._expected, least), *shape), dtype)
            return self._block
        row = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        capacity = max(LEAST_BLOCK // row, self._count // BLOCKS)
        if self._expected > self._count:
            capacity = min(capacity, self._expected - self._count)
        self._block = self._room.passing((max(capacity, least), *shape), dtype)
        return self._block


def _pad_into(place: Array, rows: Array) -> None:
    """Write `rows` to a place that may be wider."""
    if rows.shape[1:] == place.shape[1:]:
        place[:] = rows
        return
    width = rows.shape[1]
    place[:, :width] = rows
    place[:, width:] = np.asarray(PADDING).astype(place.dtype)
