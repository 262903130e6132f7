"""What was verified is what is loaded: digests of the blocks of a file, taken while it is verified.

A file can be replaced between its verification and its loading. While its digest is compared with the manifest, the
digest of each block is kept; when the file is read again, each block is compared before its bytes are handed on. That
needs no open files and no copy, and works on every storage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

from attrs import frozen

from hexloop.domain.errors import ChangedCheckpointError, MissingCheckpointError
from hexloop.ports.collectives import Json
from hexloop.ports.storage import Digest, Storage, Stored

MIB = 1 << 20

MOST_BLOCKS = 1 << 16
"""Blocks of a checkpoint, about; their digests are sent to every rank."""


@frozen
class FileBlocks:
    """The digest of each block of a file. size: of the file, in bytes. block: bytes of a block."""

    size: int
    block: int
    digests: Sequence[str]


class LibraryDigest:
    """A running digest by the standard library, for storages that do not offer one."""

    def __init__(self, algorithm: str) -> None:
        self._hash, self._size = hashlib.new(algorithm), 0

    def update(self, data: memoryview) -> None:
        """Add bytes."""
        self._hash.update(data)
        self._size += len(data)

    def stored(self) -> Stored:
        """Return the size and digest so far."""
        return Stored(self._size, f"{self._hash.name}:{self._hash.hexdigest()}")


_SPARE = "blake2b"
"""The algorithm of blocks if the digest of their file is of a kind that only the storage computes."""


def algorithm_of(stored: Stored) -> str:
    """Return the algorithm of a digest."""
    return stored.digest.partition(":")[0]


def block_size(total: int) -> int:
    """Return the bytes of a block, a power of two from 1 MiB on, for files of `total` bytes together."""
    block = MIB
    while total > block * MOST_BLOCKS:
        block *= 2
    return block


def maker_of(storage: Storage, algorithm: str) -> Callable[[], Digest] | None:
    """Return what makes running digests of a kind, or None if that kind is not supported."""
    made = storage.capabilities.new_digest
    if made is not None and made(algorithm) is not None:
        return lambda: cast(Digest, made(algorithm))
    known = algorithm in hashlib.algorithms_guaranteed and not algorithm.startswith("shake")
    return partial(LibraryDigest, algorithm) if known else None


def read_blocks(storage: Storage, path: str, expected: Stored, block: int) -> tuple[Stored, FileBlocks]:
    """Read a file once, and return its size and digest, and those of its blocks.

    expected: what the manifest has. Reading stops behind the expected size: the size is then larger than that.
    If only the storage can compute the digest, it does so before and after the blocks are read.
    Raises StorageError if the file cannot be read.
    """
    new = maker_of(storage, algorithm_of(expected))
    if new is None:
        found = storage.digest(path)
        if found != expected:
            return found, FileBlocks(found.size, block, ())
        _, blocks = read_blocks(storage, path, Stored(expected.size, f"{_SPARE}:"), block)
        return storage.digest(path), blocks
    whole, digests, size = new(), list[str](), 0
    for piece in _in_blocks(storage.read(path), block):
        size += len(piece)
        if size > expected.size:
            return Stored(size, ""), FileBlocks(size, block, ())
        whole.update(piece)
        digests += [_digest(new, piece[start : start + block]) for start in range(0, len(piece), block)]
    return whole.stored(), FileBlocks(size, block, digests)


@frozen
class VerifiedFiles:
    """Opens the files of a checkpoint; what is read are the bytes that were verified.

    folder: of the checkpoint. kinds: the kind of digest of each file. blocks: of each file.
    """

    storage: Storage
    folder: str
    kinds: Mapping[str, str]
    blocks: Mapping[str, FileBlocks]

    def __call__(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Yield the bytes of a file from byte `start` on, in order, in chunks.

        Raises ChangedCheckpointError, before it yields any byte of the block, if a block is not the one that was
        verified; and StorageError if the file cannot be read.
        """
        verified = self.blocks.get(path)
        if verified is None:
            raise MissingCheckpointError(f"{self.folder} has no file {path} that was verified.")
        new = maker_of(self.storage, self.kinds[path]) or partial(LibraryDigest, _SPARE)
        number = start // verified.block
        skipped = start - number * verified.block
        position = number * verified.block
        for piece in _in_blocks(self.storage.read(f"{self.folder}/{path}", position), verified.block):
            for start_of_block in range(0, len(piece), verified.block):
                block = piece[start_of_block : start_of_block + verified.block]
                expected = verified.digests[number] if number < len(verified.digests) else None
                if _digest(new, block) != expected:
                    raise self._changed(path)
                number += 1
            yield piece[skipped:]
            skipped = 0
        if number < len(verified.digests):
            raise self._changed(path)

    def _changed(self, path: str) -> ChangedCheckpointError:
        return ChangedCheckpointError(
            f"{self.folder} in {self.storage.capabilities.location} changed while it was loaded: {path} no longer "
            "holds the bytes that were verified. Nothing else may write to the folder of a checkpoint."
        )

    def to_json(self) -> Json:
        """Return the blocks as JSON, for other ranks."""
        return {
            path: [self.kinds[path], each.size, each.block, list(each.digests)] for path, each in self.blocks.items()
        }

    @classmethod
    def from_json(cls, storage: Storage, folder: str, document: Json) -> VerifiedFiles:
        """Return the opener of the same files on another rank."""
        entries = cast("dict[str, tuple[str, int, int, list[str]]]", document)
        kinds = {path: kind for path, (kind, *_) in entries.items()}
        blocks = {path: FileBlocks(size, block, digests) for path, (_, size, block, digests) in entries.items()}
        return cls(storage, folder, kinds, blocks)


def _digest(new: Callable[[], Digest], piece: memoryview) -> str:
    running = new()
    running.update(piece)
    return running.stored().digest


def _in_blocks(chunks: Iterator[memoryview], block: int) -> Iterator[memoryview]:
    """Yield the bytes of the chunks in pieces of one or more whole blocks, the last of which may be smaller.

    Whole blocks within a chunk are not copied.
    """
    held = bytearray()
    for chunk in chunks:
        data = memoryview(chunk).cast("B")
        if held:
            missing = block - len(held)
            held += data[:missing]
            data = data[missing:]
            if len(held) < block:
                continue
            yield memoryview(held)
            held = bytearray()
        whole = len(data) // block * block
        if whole:
            yield data[:whole]
        held += data[whole:]
    if held:
        yield memoryview(held)
