"""Holes of files: parts that read as zeros, take no place on the disk, and take as long to read as any others.

A file of a few bytes can be given a size of many terabytes. Files of a run have holes too, where a file system
compresses zeros, or a copy leaves them out; but not many times more than data.
"""

from __future__ import annotations

import os

from hexloop.domain.limits import limits

FEW = 16
"""Bytes of a file for each one on the disk, up to which its holes do not matter."""

SMALL = 1 << 20
"""Bytes up to which the holes of a file do not matter."""

_SECTOR = 512
"""Bytes of a unit of `st_blocks`, on every system."""


def bytes_on_disk(descriptor: int) -> int:
    """Return the bytes that an open file takes on the disk, or its size if these are not far fewer. Raises OSError.

    Some file systems report too few, or none, at times; only what they call a hole when asked for one is taken for it.
    """
    found = os.fstat(descriptor)
    if not hasattr(os, "SEEK_HOLE") or not may_be_hollow(found) or _has_no_hole(descriptor, found.st_size):
        return found.st_size
    return min(os.fstat(descriptor).st_blocks * _SECTOR, found.st_size)


def may_be_hollow(found: os.stat_result) -> bool:
    """Return whether a file seems to take far fewer bytes on the disk than it has."""
    held: int | None = getattr(found, "st_blocks", None)  # there are none on Windows
    return held is not None and found.st_size > max(SMALL, held * _SECTOR * FEW)


def are_too_many(size: int, on_disk: int) -> bool:
    """Return whether files of `size` bytes together, of which `on_disk` are on the disk, are mostly holes.

    The limit `hole_bytes` is how many bytes of holes may be read in any case.
    """
    return size - on_disk > limits().hole_bytes + (FEW - 1) * on_disk


def _has_no_hole(descriptor: int, size: int) -> bool:
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        return os.lseek(descriptor, 0, os.SEEK_HOLE) >= size
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)
