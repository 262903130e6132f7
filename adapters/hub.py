"""A hub in a folder, on this machine or on a shared disk; one in memory; and none at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import define, field, frozen

from hexloop.domain.errors import StorageError
from hexloop.ports.storage import File

__path__: list[str] = []  # lets hexloop._moved serve old paths such as hexloop.adapters.hub.folder

MESSAGE = ".message.txt"
"""The file of a version's message, next to the version's files."""


class FolderHub:
    """Hub adapter for the folder `root`: version "3" of a name is the folder `<root>/<name>/3`.

    A version is written under a hidden name and published by one rename, so a reader sees all of it or nothing.
    Concurrent publishers get different versions.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """Write the files as the newest version. Raises StorageError, leaving nothing behind, if that fails."""
        model = self._folder(self._root, name)
        staging = model / f".publishing-{secrets.token_hex(8)}"
        try:
            staging.mkdir(parents=True)
            (staging / MESSAGE).write_text(message, encoding="utf-8")
            for file in files:
                path = self._folder(staging, file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as opened:
                    opened.writelines(file.chunks)
            return self._appear(staging)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                f"{name!r} cannot be published in {self._root}: {error}. Choose another folder, or free disk space."
            ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Return the files of a version. Raises StorageError, listing the existing versions, if it does not exist."""
        model = self._folder(self._root, name)
        chosen = model / _choose(version, map(str, _versions(model)), f"{name!r} does not exist in {self._root}")
        paths = sorted(path for path in chosen.rglob("*") if path.is_file() and path != chosen / MESSAGE)
        return (File(path.relative_to(chosen).as_posix(), _chunks(path)) for path in paths)

    def _appear(self, staging: Path) -> str:
        """Rename to the first free number; a rename onto a folder that has files fails."""
        number = max(_versions(staging.parent), default=0) + 1
        while True:
            try:
                staging.rename(staging.parent / str(number))
            except OSError:
                if not (staging.parent / str(number)).exists():
                    raise
                number += 1
            else:
                return str(number)

    @staticmethod
    def _folder(root: Path, name: str) -> Path:
        path = root / name
        if ".." in path.parts or not path.resolve().is_relative_to(root.resolve()) or path == root:
            raise StorageError(f"The name {name!r} leads out of {root}; choose a name within it.")
        return path


def _versions(model: Path) -> list[int]:
    names = [path.name for path in model.iterdir()] if model.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            yield chunk


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
        chosen = published[_choose(version, published, f"{name!r} does not exist")]
        return iter([File(path, [data]) for path, data in chosen.files.items()])


class NoHub:
    """Hub adapter of a run without a hub: both methods raise StorageError."""

    def publish(self, name: str, files: Iterable[File], message: str) -> str:
        """Raise StorageError."""
        raise StorageError(f"{name!r} cannot be published: no hub is set. Pass hub=... to the Trainer.")

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Raise StorageError."""
        raise StorageError(f"{name!r} cannot be fetched: no hub is set. Pass hub=... to the Trainer.")


def _choose(version: str | None, versions: Iterable[str], missing: str) -> str:
    """Return the version to fetch, by default the last. Raises StorageError if it is `missing`."""
    existing = list(versions)
    if not existing or (version is not None and version not in existing):
        raise StorageError(
            f"Version {version or 'newest'} of {missing}; choose one of: {', '.join(existing) or '(none)'}."
        )
    return version or existing[-1]
