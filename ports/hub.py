"""Publishing and fetching models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from hexloop.ports.storage import File


class Hub(Protocol):
    """A service through which models are shared by name."""

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """Publish `files` atomically as the newest version of `name`; return the name of the version."""

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Return the files of a version, by default the newest. Raises StorageError if it does not exist."""
