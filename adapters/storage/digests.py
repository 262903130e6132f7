"""Size and digest of a file's bytes, computed while they are written or read.

The technologies that store real files share this module; the import contracts name it as the one exception.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from hexloop.domain.errors import ConfigurationError
from hexloop.ports.storage import Stored

DIGESTS = ("xxh3-128", "blake2b")
"""The algorithms to choose from: the first detects damage at memory speed, the second is a cryptographic hash."""


def check_algorithm(digest: str) -> str:
    """Return `digest`. Raises ConfigurationError if it is not in `DIGESTS`."""
    if digest not in DIGESTS:
        raise ConfigurationError(f"digest={digest!r} is not supported; choose one of: {', '.join(DIGESTS)}.")
    return digest


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

    def watch(self, chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
        """Yield the chunks as bytes, adding each."""
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            self.update(view)
            yield view

    def stored(self) -> Stored:
        """Return the size and digest so far."""
        return Stored(self._size, f"{self._algorithm}:{self._hexdigest()}")
