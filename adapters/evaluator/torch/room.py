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


class Room(Protocol):
    """Room for arrays, which takes no memory until it is written to."""

    def lasting(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Room for a result. Raises DataError or StorageFullError, with what to do, where there is not enough."""
        ...

    def passing(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Room for rows on their way to a result, which is given back the moment that the array goes."""
        ...


class Memory:
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
class Folder:
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
