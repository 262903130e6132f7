"""Files to be written."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen


@frozen
class File:
    """A relative path, with "/" between names, and the bytes in chunks, which can be read once."""

    path: str
    chunks: Iterable[bytes | memoryview]
