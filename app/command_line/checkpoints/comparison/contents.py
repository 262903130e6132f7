"""What a checkpoint holds, sorted by how it is compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from hexloop.adapters.contents.checkpoint import documents
from hexloop.adapters.contents.checkpoint.safetensors_files import INDEX, Stream, component_of, is_weights, tensor_parts
from hexloop.app.command_line.checkpoints.places import Place
from hexloop.domain.checkpoints.reading import Checkpoint, verify
from hexloop.domain.checkpoints.selection import STATE
from hexloop.ports.state import Part
from hexloop.ports.storage import Stored

TENSORS, DOCUMENT = ".safetensors", ".json"


@frozen
class Contents:
    """The contents of a verified checkpoint."""

    place: Place
    checkpoint: Checkpoint

    @property
    def files(self) -> Mapping[str, Stored]:
        """Size and digest of each file."""
        return self.checkpoint.manifest.files

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says, but for the files."""
        manifest = self.checkpoint.manifest
        names = ("run", "session", "ancestors", "parent", "step", "world_size", "environment")
        return {name: getattr(manifest, name) for name in names}

    @property
    def groups(self) -> dict[str, list[str]]:
        """The files with tensors by what they are the state of, the model's first: all shards of one are one."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.files, key=_order):
            if path.endswith(TENSORS):
                found.setdefault(component_of(path), []).append(path)
        return found

    @property
    def documents(self) -> list[str]:
        """The JSON documents; the run's state comes last. An index of shards tells of files, and not of contents."""
        return sorted((path for path in self.files if path.endswith(DOCUMENT) and path != INDEX), key=_order)

    @property
    def others(self) -> list[str]:
        """All other files."""
        return [path for path in sorted(self.files) if not path.endswith((TENSORS, DOCUMENT)) and path != INDEX]

    def parts(self, paths: list[str]) -> list[Part]:
        """The tensors of files, none of which is read yet. Raises CheckpointError where a file holds none."""
        stream = Stream(self.read)
        return [part for path in paths for part in tensor_parts(stream, path)]

    def document(self, path: str) -> Any:
        """The value of a JSON document. Raises CheckpointError where it is none."""
        return documents.read(self.read(path))

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """A file's bytes."""
        return self.place.storage.read(f"{self.place.name}/{path}", start)


def contents_of(place: Place) -> Contents:
    """The contents of a checkpoint, all bytes of which are verified. Raises CheckpointError and StorageError."""
    return Contents(place, verify(place.storage, place.name))


def _order(path: str) -> tuple[bool, bool, bool, str]:
    """The model first, then the optimizer, last where the run stands."""
    return not is_weights(path), not path.startswith(("optimizer.", "optimizer-")), path == STATE, path
