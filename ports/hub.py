"""How a model is published and fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from hexloop.ports.files import File


class Hub(Protocol):
    """A place where models are shared under a name."""

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """Make `files` the newest version of `name`; gives back the version's own name. All of them appear, or none."""
        ...

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """The files of a version, the newest by default. Raises hexloop's StorageError where there is none."""
        ...
