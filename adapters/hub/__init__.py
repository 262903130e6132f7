"""A hub in a folder, on this machine or on a shared disk; one in memory; and none at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from attrs import define, field, frozen

from hexloop.domain.errors import RefusedError, StorageError, UnavailableError
from hexloop.ports.storage import File

MAIN = "main"
"""The branch that is published to by default."""

MESSAGE, BRANCH = ".message.txt", ".branch.txt"
"""The files of a version's message and branch, next to the version's files."""


class FolderHub:
    """Hub adapter for the folder `root`: version "3" of a name is the folder `<root>/<name>/3`.

    A version is written under a hidden name and published by one rename, so a reader sees all of it or nothing. Files
    that do not change are hard links, where the file system has them. Concurrent publishers get different versions. A
    change for review is a branch of its own.

    Args:
        root: the folder of the hub.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

    @property
    def address(self) -> str:
        """The folder."""
        return f"file://{self._root.absolute()}"

    def create(self, name: str, private: bool | None = None) -> str:
        """Create the folder of a model.

        Raises:
            RefusedError: if its name leads out of the hub.
        """
        model = self._folder(self._root, name)
        try:
            model.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._fail(name, error)
        return name

    def publish(
        self,
        name: str,
        files: Iterable[File],
        message: str,
        *,
        delete: Sequence[str] = (),
        branch: str | None = None,
        parent: str | None = None,
        review: bool = False,
    ) -> str:
        """Write the newest version.

        Raises:
            StorageError: leaving nothing behind, if that fails; see `Hub.publish`.
        """
        model = self._folder(self._root, name)
        staging = model / f".publishing-{secrets.token_hex(8)}"
        try:
            staging.mkdir(parents=True)
            newest = _newest(model, branch or MAIN) or _newest(model, MAIN)
            _check_parent(name, parent, newest)
            chosen = f"review-{secrets.token_hex(4)}" if review else branch or MAIN
            (staging / MESSAGE).write_text(message, encoding="utf-8")
            if chosen != MAIN:
                (staging / BRANCH).write_text(chosen, encoding="utf-8")
            written = set[str]()
            for file in files:
                path = self._folder(staging, file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as opened:
                    opened.writelines(file.chunks)
                written.add(file.path)
            for old in _paths(model / newest) if newest is not None else ():
                if old not in written and not _is_deleted(old, delete):
                    (staging / old).parent.mkdir(parents=True, exist_ok=True)
                    _link(model / str(newest) / old, staging / old)
            return self._appear(staging)
        except StorageError:
            raise
        except OSError as error:
            self._fail(name, error)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Return the files of a version.

        Raises:
            StorageError: listing the existing versions, if it does not exist.
        """
        model = self._folder(self._root, name)
        newest = _newest(model, version or MAIN)
        known = map(str, _versions(model))
        folder = model / (newest or _choose(version, known, f"{name!r} does not exist in {self._root}"))
        return (File(path, _chunks(folder / path), str(folder / path)) for path in _paths(folder))

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

    def _fail(self, name: str, error: OSError) -> NoReturn:
        raise UnavailableError(
            f"{name!r} cannot be published in {self._root}: {error}. Choose another folder, or free disk space."
        ) from error

    @staticmethod
    def _folder(root: Path, name: str) -> Path:
        path = root / name
        if ".." in path.parts or not path.resolve().is_relative_to(root.resolve()) or path == root:
            raise RefusedError(f"The name {name!r} leads out of {root}; choose a name within it.")
        return path


def _versions(model: Path) -> list[int]:
    names = [path.name for path in model.iterdir()] if model.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def _newest(model: Path, branch: str) -> str | None:
    """Return the newest version of a branch; None if it has none."""
    for number in reversed(_versions(model)):
        mark = model / str(number) / BRANCH
        if (mark.read_text(encoding="utf-8") if mark.is_file() else MAIN) == branch:
            return str(number)
    return None


def _paths(version: Path) -> list[str]:
    own = (version / MESSAGE, version / BRANCH)
    return sorted(
        path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file() and path not in own
    )


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            yield chunk


@frozen
class PublishedVersion:
    """One published version: its name, its message, each file's bytes by path, and its branch."""

    name: str
    message: str
    files: dict[str, bytes]
    branch: str = MAIN


@define
class MemoryHub:
    """Hub adapter in memory. `versions` maps each name to its versions, in the order of publication.

    Args:
        versions: from each name to its versions, in the order of publication.

    Examples:
        >>> from hexloop.ports.storage import File
        >>> from hexloop.testing import MemoryHub
        >>> hub = MemoryHub()
        >>> hub.publish("me/model", [File("config.json", [b"{}"])], "first")
        '1'
        >>> hub.versions["me/model"][0].files
        {'config.json': b'{}'}
    """

    versions: dict[str, list[PublishedVersion]] = field(factory=dict)
    address = "memory"

    def create(self, name: str, private: bool | None = None) -> str:
        """Create a model without versions."""
        self.versions.setdefault(name, [])
        return name

    def publish(
        self,
        name: str,
        files: Iterable[File],
        message: str,
        *,
        delete: Sequence[str] = (),
        branch: str | None = None,
        parent: str | None = None,
        review: bool = False,
    ) -> str:
        """Keep the newest version, named "1", "2", ...; see `Hub.publish`."""
        read = {file.path: b"".join(file.chunks) for file in files}
        versions = self.versions.setdefault(name, [])
        newest = _last(versions, branch or MAIN) or _last(versions, MAIN)
        _check_parent(name, parent, None if newest is None else newest.name)
        old = {} if newest is None else newest.files
        kept = {path: data for path, data in old.items() if not _is_deleted(path, delete)}
        number = str(len(versions) + 1)
        chosen = f"review-{number}" if review else branch or MAIN
        versions.append(PublishedVersion(number, message, kept | read, chosen))
        return number

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Return the files of a version.

        Raises:
            StorageError: listing the existing versions, if it does not exist.
        """
        versions = self.versions.get(name, [])
        published = {known.name: known for known in versions}
        chosen = _last(versions, version or MAIN) or published[_choose(version, published, f"{name!r} does not exist")]
        return iter([File(path, [data]) for path, data in chosen.files.items()])


class NoHub:
    """Hub adapter of a run without a hub: every method raises RefusedError."""

    address = "none"

    def create(self, name: str, private: bool | None = None) -> str:
        """Raise RefusedError."""
        self._refuse(name, "published")

    def publish(
        self,
        name: str,
        files: Iterable[File],
        message: str,
        *,
        delete: Sequence[str] = (),
        branch: str | None = None,
        parent: str | None = None,
        review: bool = False,
    ) -> str:
        """Raise RefusedError."""
        self._refuse(name, "published")

    def fetch(self, name: str, version: str | None = None) -> Iterator[File]:
        """Raise RefusedError."""
        self._refuse(name, "fetched")

    @staticmethod
    def _refuse(name: str, action: str) -> NoReturn:
        raise RefusedError(f"{name!r} cannot be {action}: no hub is set. Pass hub=... to the Trainer.")


def _last(versions: Sequence[PublishedVersion], branch: str) -> PublishedVersion | None:
    return next((version for version in reversed(versions) if version.branch == branch), None)


def _is_deleted(path: str, delete: Collection[str]) -> bool:
    """Return whether a path is to be removed: it is listed, or in a folder that is."""
    return any(path == each or (each.endswith("/") and path.startswith(each)) for each in delete)


def _check_parent(name: str, parent: str | None, newest: str | None) -> None:
    if parent is not None and parent != newest:
        raise UnavailableError(
            f"{name!r} has changed: its newest version is {newest or '(none)'} instead of {parent}. Publish again, on "
            "top of that one."
        )


def _choose(version: str | None, versions: Iterable[str], missing: str) -> str:
    """Return the version to fetch, by default the last. Raises StorageError if it is `missing`."""
    existing = list(versions)
    if not existing or (version is not None and version not in existing):
        raise StorageError(
            f"Version {version or 'newest'} of {missing}; choose one of: {', '.join(existing) or '(none)'}."
        )
    return version or existing[-1]
