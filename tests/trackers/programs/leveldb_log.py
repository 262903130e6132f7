"""Reads files of records in the format of LevelDB's log, which wandb and swanlab write."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

HEAD = 7
"""Bytes before the first record, and of the head of each part: checksum, length, and which part it is."""
BLOCK = 32768


def parts(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a LevelDB log, with 1 for a whole record, 2 for a first part, and 4 for a last one."""
    position = HEAD
    while position + HEAD <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEAD:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += HEAD
        if kind == 0 or position + length > len(content):  # a torn end
            return
        yield kind, content[position : position + length]
        position += length


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, up to a torn one at the end."""
    collected = b""
    for kind, part in parts(path.read_bytes()):
        collected += part
        if kind in (1, 4):
            yield collected
            collected = b""
