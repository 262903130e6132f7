"""A hub in memory, and none at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import define, field, frozen

from hexloop.domain.errors import StorageError
from hexloop.ports.storage import File


@frozen
class PublishedVersion:
    """One published version: its name, its message, and each file's bytes by path."""

    name: str
    message: str
    files: dict[str, bytes]


@define
class MemoryHub:
    """Hub adapter in memory. `versions` maps each name to its versions, in the order of publication."""

    versions: dict[str, list[PublishedVersion]] = field(factory=dict)

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """Keep the files as the newest version, named "1", "2", ..."""
        read = {file.path: b"".join(file.chunks) for file in files}
        versions = self.versions.setdefault(name, [])
        versions.append(PublishedVersion(str(len(versions) + 1), message, read))
        return versions[-1].name

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Return the files of a version. Raises StorageError, listing the existing versions, if it does not exist."""
        published = {known.name: known for known in self.versions.get(name, [])}
        if not published or (version is not None and version not in published):
            raise StorageError(
                f"Version {version or 'newest'} of {name!r} does not exist; "
                f"choose one of: {', '.join(published) or '(none)'}."
            )
        chosen = published[version or max(published, key=int)]
        return iter([File(path, [data]) for path, data in chosen.files.items()])


class NoHub:
    """Hub adapter of a run without a hub: both methods raise StorageError."""

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """Raise StorageError."""
        raise StorageError(f"{name!r} cannot be published: no hub is set. Pass hub=... to the Trainer.")

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Raise StorageError."""
        raise StorageError(f"{name!r} cannot be fetched: no hub is set. Pass hub=... to the Trainer.")
