"""Chunks of any size as blocks of one size, and what they add up to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol

from hexloop.ports.storage import Stored

DIGESTS = ("xxh3-128", "blake2b")


class _Hash(Protocol):
    def update(self, data: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


class Summary:
    """Size and digest of the bytes that passed so far; see DIGESTS for the `digest`."""

    def __init__(self, digest: str) -> None:
        self._digest, self._size = digest, 0
        self._hash = _new_hash(digest)

    def watch(self, chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
        """The same chunks, as bytes."""
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            self._hash.update(view)
            self._size += len(view)
            yield view

    def stored(self) -> Stored:
        """What passed."""
        return Stored(self._size, f"{self._digest}:{self._hash.hexdigest()}")


def blocks(chunks: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """The bytes of the chunks, `size` at a time; the last block may be smaller."""
    held = bytearray()
    for chunk in chunks:
        rest = chunk
        while rest:
            taken = rest[: size - len(held)]
            held += taken
            rest = rest[len(taken) :]
            if len(held) == size:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


def _new_hash(digest: str) -> _Hash:
    if digest == "blake2b":
        return hashlib.blake2b()
    import xxhash

    return xxhash.xxh3_128()
