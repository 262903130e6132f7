"""A hub in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import define, field, frozen

from hexloop.domain.errors import StorageError
from hexloop.ports.files import File


@frozen
class PublishedVersion:
    """What one `publish` made: the version's name, the message, and the bytes of each file by its path."""

    name: str
    message: str
    files: dict[str, bytes]


@define
class MemoryHub:
    """Answers the Hub port. `versions` has, for each name, the versions in the order in which they were published."""

    versions: dict[str, list[PublishedVersion]] = field(factory=dict)

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """Keep the files as the newest version, called "1", "2", ..."""
        read = {file.path: b"".join(file.chunks) for file in files}
        versions = self.versions.setdefault(name, [])
        versions.append(PublishedVersion(str(len(versions) + 1), message, read))
        return versions[-1].name

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """The files of a version. Raises StorageError, naming those that there are, where there is none."""
        published = {known.name: known for known in self.versions.get(name, [])}
        if not published or (version is not None and version not in published):
            raise StorageError(
                f"You chose version {version or 'newest'} of {name!r}, which was not published; "
                f"choose one of: {', '.join(published) or '(none)'}."
            )
        chosen = published[version or max(published, key=int)]
        return iter([File(path, [data]) for path, data in chosen.files.items()])


class NoHub:
    """Answers the Hub port where nothing is shared: both methods raise StorageError and say what to pass."""

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """There is no place to publish to."""
        raise StorageError(f"You asked to publish {name!r}, but there is no hub; pass hub=... to the Trainer.")

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """There is no place to fetch from."""
        raise StorageError(f"You asked for {name!r} of a hub, but there is none; pass hub=... to the Trainer.")
