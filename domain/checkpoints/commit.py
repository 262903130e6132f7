"""Writing a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from hexloop.domain.checkpoints.manifest import Manifest
from hexloop.domain.checkpoints.publication import Publisher
from hexloop.domain.errors import StorageError
from hexloop.ports.files import File
from hexloop.ports.storage import Storage, Stored


def commit(
    storage: Storage,
    publisher: Publisher,
    name: str,
    files: Iterable[File],
    make_manifest: Callable[[Mapping[str, Stored]], Manifest],
) -> Manifest:
    """Write the files, then the manifest over them, and publish: the checkpoint is there for good after a return.

    Until then no reader finds it. Where anything fails, what was written is removed, or left for a later clean-up.
    Raises StorageError.
    """
    folder = publisher.begin(name)
    try:
        stored: dict[str, Stored] = {}
        for file in files:
            stored[file.path] = storage.write(f"{folder}/{file.path}", file.chunks)
        manifest = make_manifest(stored)
        publisher.publish(name, manifest.to_json())
    except BaseException:
        with suppress(StorageError):
            publisher.abandon(name)
        raise
    return manifest
