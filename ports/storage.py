"""Storage of checkpoints: files in folders, durable once synced; their signatures; and what the files contain.

Storage is small because the commit protocol belongs to the domain: an adapter moves bytes, returns what it moved (size
and digest, computed on the way) and guarantees one thing, stated in its capabilities: what makes a folder appear as a
whole. Writing and syncing are two operations, because waiting for a disk once for many files takes about as long as for
one. Paths are relative, with "/" between names. Every failure raises StorageError and leaves what was stored intact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from attrs import field, frozen

State = TypeVar("State")

PAGE = 4096
"""Bytes: a memory page, or a fraction of one, and a multiple of a disk's block size.

A storage may write a large chunk directly from memory, without a copy, if it is aligned to this both in memory and in
the file. Code that lays out memory and files should align them.
"""


TRAINING_ARGUMENTS = "training_args.json"
"""The name of the file with the arguments of a run."""

PRIVATE = frozenset({TRAINING_ARGUMENTS})
"""The names of files that only their owner may read, on a storage with permissions."""


class Publication(Enum):
    """What makes a folder appear as a whole: one rename, or the manifest as the last file."""

    RENAME = "rename"
    MANIFEST_LAST = "manifest last"


@frozen
class Stored:
    """What a storage wrote or read: the size in bytes, and the digest.

    Args:
        size: bytes.
        digest: the algorithm and the hexadecimal digest, as in `xxh3_128:2f0a`.
    """

    size: int
    digest: str


class Digest(Protocol):
    """A running digest of bytes."""

    def update(self, data: memoryview, /) -> None:
        """Add bytes.

        Args:
            data: the bytes.
        """

    def stored(self) -> Stored:
        """Return the size and digest so far."""


class Signatures(Protocol):
    """Signs and verifies bytes with one key, so that a change without the key is recognized.

    The kind of signature is that of the key, never one that a signature claims. What is signed, and where a signature
    lies, belongs to the domain.
    """

    @property
    def can_sign(self) -> bool:
        """Whether the key signs; a public key only verifies."""

    def sign(self, data: bytes, /) -> str:
        """Return the signature as one line of ASCII text.

        Args:
            data: what is signed.

        Raises:
            ConfigurationError: if the key cannot sign.
        """

    def verify(self, data: bytes, signature: str, /) -> bool:
        """Return whether `signature`, any text, is that of `data` by this key. Never raises.

        Args:
            data: what was signed.
            signature: any text.
        """


@frozen
class StorageCapabilities:
    """What a storage guarantees and can do.

    Args:
        publication: what makes a folder appear as a whole.
        location: a description for messages.
        local_folder: the root, if the storage is a folder of this machine.
        modified: returns when the file at a path was written, in seconds since the epoch; None if that is unknown.
        new_digest: returns a running digest of an algorithm; None if the storage does not have that algorithm.
        digest: the algorithm of the digests that it computes; None if that is unknown.
        signatures: sign every manifest that is written, and are required of every manifest that is read; None without.
    """

    publication: Publication
    location: str
    local_folder: str | None = None
    modified: Callable[[str], float | None] = field(default=lambda _: None, eq=False)
    new_digest: Callable[[str], Digest | None] | None = field(default=None, eq=False)
    digest: str | None = None
    signatures: Signatures | None = field(default=None, eq=False)


@frozen
class Entry:
    """One name in a folder.

    Args:
        name: its name in the folder.
        is_folder: whether it is a folder.
        size: that of a file in bytes, None if finding it out would cost a request of its own.
        on_disk: the bytes that a file takes where it is stored, None if that is unknown. Far fewer than its size say
            that it consists of holes, which read as zeros.
    """

    name: str
    is_folder: bool
    size: int | None = field(default=None, eq=False)
    on_disk: int | None = field(default=None, eq=False)


class Storage(Protocol):
    """A tree of files."""

    @property
    def capabilities(self) -> StorageCapabilities:
        """What this adapter guarantees."""

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file, creating parent folders. A crash may lose it, or any part of it, until it is synced.

        Args:
            path: a relative path that does not exist.
            chunks: the contents.
        """

    def sync(self, paths: Sequence[str]) -> None:
        """Make written files durable, all in one wait: after this returns, they and their names survive a crash.

        No-op if a write is durable when it returns. A caller that deletes or replaces what a file supersedes, or
        publishes the folder that it is in, must sync it first.

        Args:
            paths: the files, by relative path.
        """

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Yield the file's bytes from byte `start` on, in order, in chunks; none if the file ends before.

        Args:
            path: a relative path, with "/" between names.
            start: the first byte.
        """

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in `folder`, sorted; empty if the folder does not exist.

        Args:
            folder: a relative path; "" for the root.
        """

    def move(self, source: str, destination: str) -> None:
        """Rename a file or folder; atomic if `capabilities` state RENAME. Never overwrites.

        After this returns, the new name survives a crash. Files that were not synced may still lose their contents.

        Args:
            source: the present path.
            destination: the new path, which does not exist.
        """

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents. No-op if it does not exist.

        A crash may undo it until the next sync or move.

        Args:
            path: a relative path, with "/" between names.
        """

    def digest(self, path: str) -> Stored:
        """Read the file and return its size and digest.

        Args:
            path: a relative path, with "/" between names.
        """


@frozen
class File:
    """A relative path, with "/" between names, and the bytes in chunks, which can be read once.

    Args:
        path: relative, with "/" between names.
        chunks: the bytes, which can be read once.
        local: where a file with these bytes is on this machine, if there is one that does not change; else None.
    """

    path: str
    chunks: Iterable[bytes | memoryview]
    local: str | None = field(default=None, eq=False)


class OpenFile(Protocol):
    """Opens a file of the checkpoint by its relative path."""

    def __call__(self, path: str, start: int = 0, /) -> Iterator[memoryview]:
        """Yield the bytes from byte `start` on, in order, in chunks."""


class Contents(Protocol[State]):
    """Converts the state of a run and of its components to the files of a checkpoint and back.

    Where they are stored, and when they are valid, is decided elsewhere.
    """

    @property
    def loads_together(self) -> bool:
        """Whether loading is collective, so that ranks wait within it for each other."""

    def files(self, state: State) -> Iterator[File]:
        """Return every file of a checkpoint of the current state. Collective.

        Args:
            state: the state of the run.
        """

    def prepare(self) -> Callable[[], None]:
        """Return a function that makes the first snapshot as fast as the others; it may be called in another thread."""

    def snapshot(self, state: State) -> Callable[[], Iterator[File]]:
        """Copy the current state, so that the run can continue; each call of the result yields every file of it.
        Collective.

        The result may be called in another thread, repeatedly until the next snapshot is taken.

        Args:
            state: the state of the run.
        """

    def restore(self, names: Collection[str], open_file: OpenFile) -> State:
        """Restore the run from the files and return its state. Collective.

        Args:
            names: the names of the files of the checkpoint.
            open_file: opens one of them.

        Raises:
            CheckpointError: changing nothing, if a file is missing or does not fit this run.
        """

    def restore_weights(self, names: Collection[str], open_file: OpenFile) -> None:
        """Load only the model's weights.

        Args:
            names: the names of the files of the checkpoint.
            open_file: opens one of them.
        """
