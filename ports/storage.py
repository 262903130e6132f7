"""Where the bytes of a checkpoint go, and when they are there for good.

So few methods, because the commit protocol is the domain's: an adapter only moves bytes, says what it moved (size
and digest, computed as the bytes pass) and keeps one promise, which its capabilities name: what makes a folder appear
whole.
Paths are relative, with "/" between names. Every failure is a hexloop StorageError and leaves what was stored intact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Protocol

from attrs import field, frozen

PAGE = 4096
"""Bytes: a page of memory at the smallest, and a multiple of what disks move at once.

A storage may take a large chunk from where it lies, without a copy, where it begins at a multiple of this both in
memory and in the file. Whoever lays out either sees to that.
"""


class Publication(Enum):
    """What makes a folder appear whole: one rename, or the manifest being its last file to appear."""

    RENAME = "rename"
    MANIFEST_LAST = "manifest last"


def _unknown_time(path: str) -> float | None:
    return None


@frozen
class StorageCapabilities:
    """What a storage guarantees and can do.

    location: a description for messages. local_folder: the root, if the storage is a folder of this machine.
    modified: returns when the file at a path was written, in seconds since the epoch; None if that is unknown.
    """

    publication: Publication
    location: str
    local_folder: str | None = None
    modified: Callable[[str], float | None] = field(default=_unknown_time, eq=False)


@frozen
class Stored:
    """What a storage wrote or read: bytes, and "<algorithm>:<hexadecimal digest>"."""

    size: int
    digest: str


@frozen
class Entry:
    """One name in a folder."""

    name: str
    is_folder: bool


class Storage(Protocol):
    """A tree of files."""

    @property
    def capabilities(self) -> StorageCapabilities:
        """What this adapter promises."""
        ...

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file and make it durable: after a return it survives a crash. Folders are made as needed."""
        ...

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """The file's bytes from byte `start` on, in chunks, in order; none where the file ends before."""
        ...

    def list(self, folder: str) -> tuple[Entry, ...]:
        """The names in `folder`, sorted; none where there is no such folder."""
        ...

    def move(self, source: str, destination: str) -> None:
        """Give a file or folder another name, durably; atomic where `capabilities` say RENAME. Never overwrites."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; nothing happens where there is none."""
        ...

    def digest(self, path: str) -> Stored:
        """Size and digest of what the file holds now, read through."""
        ...
