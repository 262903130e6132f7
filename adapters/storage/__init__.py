"""Storage adapters: where checkpoints are stored. What several of them need is defined here."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator

from hexloop.domain.errors import ConfigurationError, IrregularFileError
from hexloop.ports.storage import Entry, Storage, Stored

DIGESTS = ("xxh3-128", "blake2b")
"""The algorithms to choose from: the first detects damage at memory speed, the second is a cryptographic hash."""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk, or of a user's quota, that is full."""


def check_algorithm(digest: str) -> str:
    """Return `digest`. Raises ConfigurationError if it is not in `DIGESTS`."""
    if digest not in DIGESTS:
        raise ConfigurationError(f"digest={digest!r} is not supported; choose one of: {', '.join(DIGESTS)}.")
    return digest


def outside_error(path: str, location: str) -> IrregularFileError:
    """Return the error for a path that leads out of a storage."""
    return IrregularFileError(
        f"The path {path!r} leads out of {location}; only files inside it are accessed. Choose a path inside."
    )


class RunningDigest:
    """Size and digest of the bytes seen so far.

    algorithm: one of `DIGESTS`.
    """

    def __init__(self, algorithm: str) -> None:
        self._algorithm, self._size = algorithm, 0
        if algorithm == "blake2b":
            hashed = hashlib.blake2b()
            self._update, self._hexdigest = hashed.update, hashed.hexdigest
        else:
            import xxhash

            fast = xxhash.xxh3_128()
            self._update, self._hexdigest = fast.update, fast.hexdigest

    def update(self, data: memoryview) -> None:
        """Add bytes."""
        self._update(data)
        self._size += len(data)

    def stored(self) -> Stored:
        """Return the size and digest so far."""
        return Stored(self._size, f"{self._algorithm}:{self._hexdigest()}")


def new_digest(algorithm: str) -> RunningDigest | None:
    """Return a running digest, or None if the algorithm is not in `DIGESTS`."""
    return RunningDigest(algorithm) if algorithm in DIGESTS else None


def digest_of(chunks: Iterable[memoryview], algorithm: str) -> Stored:
    """Return the size and digest of the bytes in the chunks."""
    summary = RunningDigest(algorithm)
    for chunk in chunks:
        summary.update(chunk)
    return summary.stored()


def exists(storage: Storage, path: str) -> bool:
    """Return whether there is a file or a folder at a path."""
    folder, _, name = path.rpartition("/")
    return name in {entry.name for entry in storage.list(folder)}


def files_below(storage: Storage, path: str) -> Iterator[str]:
    """Yield the file at `path`, or every file below the folder there."""
    entries = storage.list(path)
    for entry in entries:
        inner = f"{path}/{entry.name}"
        if entry.is_folder:
            yield from files_below(storage, inner)
        else:
            yield inner
    if not entries:
        folder, _, name = path.rpartition("/")
        if Entry(name, False) in storage.list(folder):
            yield path
