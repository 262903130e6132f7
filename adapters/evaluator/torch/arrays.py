"""Arrays that collect the rows of many batches, in memory or in mapped files, in no more memory than the result."""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from hexloop.domain.errors import DataError, StorageFullError
from hexloop.domain.wording import troubleshooting

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Shape: TypeAlias = tuple[int, ...]

PADDING = -100
"""The value that pads the second dimension if arrays differ in it; cross entropy ignores it as a label."""

LEAST_BLOCK = 1 << 20
"""The bytes of the smallest block."""

BLOCKS = 16
"""A block holds 1 / BLOCKS of the rows before it. That much exists twice while blocks are joined."""


class RowBuffer:
    """Collects arrays of shape (rows, ...), joined along the first dimension and padded in the second.

    If `expected` is the number of rows to come, each row is written directly into the result. Otherwise, and for rows
    that are wider or of a wider type than those before, rows are written into blocks, which are then copied into the
    result one by one, and freed.
    """

    def __init__(self, store: ArrayStore, expected: int = 0) -> None:
        self._store = store
        self._expected = expected
        self._full: list[Array] = []
        self._block: Array | None = None
        self._filled = 0
        self._count = 0

    def add(self, rows: Array) -> None:
        """Append an array. Raises DataError if its shape cannot be joined with the earlier ones."""
        block, end = self._block, self._filled + len(rows)
        if block is None or end > len(block) or rows.shape[1:] != block.shape[1:] or rows.dtype != block.dtype:
            block = self._fitting(rows)
            end = self._filled + len(rows)
        _pad_into(block[self._filled : end], rows)
        self._filled = end
        self._count += len(rows)

    def joined(self) -> Array:
        """Return all rows as one array. Call it once: the blocks are freed."""
        assert self._block is not None
        blocks = [*self._full, self._block[: self._filled]]
        self._full, self._block = [], None
        if len(blocks) == 1:
            return blocks[0]
        widest = blocks[-1]
        result = self._store.allocate_result((self._count, *widest.shape[1:]), widest.dtype)
        blocks.reverse()
        end = 0
        while blocks:
            block = blocks.pop()
            start, end = end, end + len(block)
            _pad_into(result[start:end], block)
        return result

    def _fitting(self, rows: Array) -> Array:
        """Return a block with space for `rows`: the present one, or a new one that is as wide as both."""
        block = self._block
        if block is None:
            return self._open(rows.shape[1:], rows.dtype, len(rows))
        if rows.ndim != block.ndim or rows.shape[2:] != block.shape[2:]:
            raise DataError(
                f"A batch has predictions or labels of shape {rows.shape}, and an earlier one of shape "
                f"{(self._filled, *block.shape[1:])}, but only the first two dimensions may differ. Make the shapes "
                "equal with preprocess_logits_for_metrics, or set eval_do_concat_batches=False."
            )
        shape = (*map(max, rows.shape[1:2], block.shape[1:2]), *block.shape[2:])
        dtype = np.result_type(rows.dtype, block.dtype)
        if shape == block.shape[1:] and dtype == block.dtype and self._filled + len(rows) <= len(block):
            return block
        self._full.append(block[: self._filled])
        return self._open(shape, dtype, len(rows))

    def _open(self, shape: Shape, dtype: np.dtype[Any], least: int) -> Array:
        self._filled = 0
        if self._expected and not self._full:
            self._block = self._store.allocate_result((max(self._expected, least), *shape), dtype)
            return self._block
        row = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        capacity = max(LEAST_BLOCK // row, self._count // BLOCKS)
        if self._expected > self._count:
            capacity = min(capacity, self._expected - self._count)
        self._block = self._store.allocate_block((max(capacity, least), *shape), dtype)
        return self._block


def _pad_into(target: Array, rows: Array) -> None:
    """Write `rows` into a target that may be wider."""
    if rows.shape[1:] == target.shape[1:]:
        target[:] = rows
        return
    width = rows.shape[1]
    target[:, :width] = rows
    target[:, width:] = np.asarray(PADDING).astype(target.dtype)


# Where the arrays are stored


class MemoryArrays:
    """Arrays in the memory of the process, which take none until they are written."""

    def allocate_result(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return an ordinary array. Raises DataError if the system refuses that much memory."""
        try:
            return np.empty(shape, dtype)
        except MemoryError as error:
            raise DataError(
                f"The predictions need {_readable(shape, dtype)} of memory, which the system refuses. Reduce them with "
                "preprocess_logits_for_metrics, keep none with batch_eval_metrics=True, or write them to a disk with "
                "predictions_folder."
            ) from error

    def allocate_block(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return an array for temporary rows, on pages of its own: an allocator would keep the memory of freed ones."""
        size = max(_bytes(shape, dtype), 1)
        if sys.platform == "win32":
            pages = mmap.mmap(-1, size)
        else:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)


@frozen
class FileArrays:
    """Arrays in unnamed files in a folder. The files are deleted with their arrays, however the process ends."""

    path: str

    def allocate_result(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return a mapped file whose disk space is reserved. Raises StorageFullError if there is not enough."""
        if math.prod(shape) == 0:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self.path, prefix="hexloop-predictions-") as file:
                _reserve(file.fileno(), _bytes(shape, dtype))
                mapped: Array = np.memmap(file, dtype, "r+", shape=shape)
        except OSError as error:
            raise StorageFullError(
                f"You chose predictions_folder={self.path!r}, but {_readable(shape, dtype)} of predictions cannot be "
                f"stored there ({error}); choose a folder on a disk with more space. For help, "
                f"{troubleshooting('disk full')}."
            ) from error
        return mapped

    allocate_block = allocate_result


ArrayStore: TypeAlias = MemoryArrays | FileArrays


def _reserve(file: int, size: int) -> None:
    """Give the file its size. Without reserved space, writing to a mapped page of a full disk kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def _bytes(shape: Shape, dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def _readable(shape: Shape, dtype: np.dtype[Any]) -> str:
    return f"{_bytes(shape, dtype) / 1e9:.3g} GB (shape {shape})"
