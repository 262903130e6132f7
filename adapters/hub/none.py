"""No hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hexloop.domain.errors import StorageError
from hexloop.ports.files import File


class NoHub:
    """Answers the Hub port where nothing is shared: both methods raise StorageError and say what to pass."""

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """There is no place to publish to."""
        raise StorageError(f"You asked to publish {name!r}, but there is no hub; pass hub=... to the Trainer.")

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """There is no place to fetch from."""
        raise StorageError(f"You asked for {name!r} of a hub, but there is none; pass hub=... to the Trainer.")
