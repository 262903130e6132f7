"""The storage of a path or URL (hexloop's own, an installed package's, or fsspec's), and the key that signs in it.

To add a storage for a URL scheme, add a file to `hexloop.adapters.storage` and a row to `STORAGES`. An installed
package offers one through the entry point group "hexloop.storages".
"""

from __future__ import annotations

import os
import re
import stat
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import url2pathname

from attrs import field, frozen

from hexloop.adapters.contents.run_documents import SETUP, RunDocuments
from hexloop.adapters.signatures import signatures_of
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.signed import SignedStorage
from hexloop.adapters.storage.within import StorageWithin
from hexloop.app.assembly.saved_setup import check_setup
from hexloop.app.engines import find_plugin, plugin_names
from hexloop.domain.checkpoints.manifest import checkpoint_name, step_of
from hexloop.domain.checkpoints.signatures import CRYPTOGRAPHIC, SIGNING_DIGEST
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.domain.installation import how_to_install
from hexloop.domain.redaction import user_of, without_user
from hexloop.domain.regular_files import read_file
from hexloop.domain.run_folder import EARLIER, OUTBOX
from hexloop.ports.storage import Signatures, Storage

_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:::|://.*::[A-Za-z][A-Za-z0-9+.-]+://)")
"""A chain of URLs, as fsspec accepts it, such as simplecache::s3://bucket or zip://inner::https://host/outer.zip."""

_SEPARATORS = os.sep + (os.altsep or "")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(?:::[A-Za-z0-9+.:-]*)?://")
"""A scheme has at least two characters; one would be a drive letter of Windows."""


def scheme_of(location: str | os.PathLike[str]) -> str | None:
    """Return the scheme of a URL in lower case; None for a path."""
    match = _URL.match(os.fspath(location))
    return match[1].lower() if match else None


def is_elsewhere(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is a URL rather than a local folder."""
    return scheme_of(location) not in (None, "file")


def as_location(location: str | os.PathLike[str]) -> str:
    """Return a path made absolute, or a URL without trailing slashes."""
    location = os.fspath(location)
    if is_elsewhere(location):
        return location.rstrip("/")
    return os.path.abspath(_path_of(location))


def _current_folder() -> str:
    """Return the working folder, "" if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


@frozen
class WorkingFolder:
    """The working folder of a moment, from which relative paths are resolved, also after the program has left it.

    Args:
        path: absolute; "" for the folder in which the program is at each call.
    """

    path: str = field(factory=_current_folder)

    def locate(self, location: str | os.PathLike[str]) -> str:
        """Return a path made absolute, or a URL without trailing slashes."""
        location = os.fspath(location)
        if is_elsewhere(location):
            return location.rstrip("/")
        return os.path.abspath(os.path.join(self.path, _path_of(location)))

    def spelled(self, location: str) -> str:
        """Return a path as it is written while it leads to the same place, and else the absolute one."""
        located = self.locate(location)
        return location if located == as_location(location) else located

    def receive(self, location: str, folder: str) -> str:
        """Return where a path that a method received leads, spelled like `spelled`.

        One that is `folder`, as it is written, or begins with it, is resolved from here, like `folder` itself, and any
        other one from the present working folder.
        """
        root = folder.rstrip(_SEPARATORS)
        is_below = (location.rstrip(_SEPARATORS) + os.sep).startswith(tuple(root + each for each in _SEPARATORS))
        return self.spelled(location) if root and is_below else location


def split_location(location: str | os.PathLike[str]) -> tuple[str, str]:
    """Split a checkpoint's path or URL into its parent folder and its name."""
    whole = as_location(location)
    if not is_elsewhere(whole):
        return os.path.split(whole)
    parent, _, name = whole.rpartition("/")
    return parent, name


def is_missing(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is a local folder that does not exist; False for a URL, which is not accessed."""
    return not is_elsewhere(location) and not os.path.isdir(as_location(location))


def joined(location: str | os.PathLike[str], name: str) -> str:
    """Return the path or URL of `name` in a folder."""
    location = os.fspath(location)
    return f"{location.rstrip('/')}/{name}" if is_elsewhere(location) else os.path.join(_path_of(location), name)


def storage_for(
    location: str | os.PathLike[str], digest: str = "xxh3-128", signatures: Signatures | None = None
) -> Storage:
    """Return the storage of a folder, given by its path or URL, without accessing it.

    Schemes are looked up in `STORAGES`, then in the entry points of installed packages; all others are fsspec's.

    Args:
        location: a path or a URL.
        digest: see `LocalStorage`; storages of installed packages choose their own.
        signatures: of the manifests in it, for which the digest is a cryptographic one.

    Raises:
        ConfigurationError: if a scheme is unknown, with what to install, or if a URL contains a password or is a chain.
    """
    if signatures is not None:
        return SignedStorage(storage_for(location, SIGNING_DIGEST), signatures)
    location, scheme = os.fspath(location), scheme_of(location) or "file"
    if _CHAIN.match(location):
        raise ConfigurationError(
            f"{without_user(location)} is a chain of URLs, which checkpoints are not read or written through: a cache "
            "may return old files. Use the last URL alone."
        )
    if scheme in STORAGES:
        return STORAGES[scheme](location, digest)
    if _split_url(location).password or ":" in user_of(location):
        raise ConfigurationError(
            f"The {scheme}:// URL contains a password, which would end up in logs and checkpoints. Remove it, and "
            "provide it through the environment, a configuration file of fsspec, or FsspecStorage(url, options)."
        )
    plugin = find_plugin("storages", scheme)
    if plugin is not None:
        storage: Storage = plugin(location)
        return storage
    if problem := _problem_of_fsspec(scheme):
        raise ConfigurationError(f"{without_user(location)} cannot be used: {problem}")
    from hexloop.adapters.storage.fsspec import FsspecStorage

    return FsspecStorage(location, digest=digest)


def storage_within(storage: Storage, folder: str) -> Storage:
    """Return a folder of a storage, by its path in it, as a storage of its own."""
    return StorageWithin(storage, folder)


def refuse_unreachable(location: str, storage: Storage) -> None:
    """Write a small file below a URL.

    Raises:
        ConfigurationError: if that fails.
    """
    name = f".hexloop-{uuid.uuid4().hex}"
    try:
        storage.write(name, [b"can this be written to?"])
        storage.remove(name)
    except StorageError as error:
        raise ConfigurationError(f"Checkpoints cannot be written to {without_user(location)}: {error}") from error


def _problem_of_fsspec(scheme: str) -> str | None:
    """Return why fsspec cannot handle a scheme, and what to do; None if it can."""
    try:
        from fsspec import available_protocols, get_filesystem_class
    except ImportError:
        return f"fsspec is not installed; {how_to_install('object-stores')}."
    if scheme not in available_protocols():
        offered = f" ({', '.join(plugin_names('storages'))})" if plugin_names("storages") else ""
        return (
            f"neither fsspec nor an installed package{offered} supports {scheme}://; check the URL, install a package "
            "that supports it, or pass storage=... to the Trainer."
        )
    try:
        get_filesystem_class(scheme)
    except ImportError as error:
        known = scheme in ("s3", "s3a")
        advice = f"{how_to_install('object-stores', 's3fs')}" if known else "install the package that it names"
        return f"the package that fsspec needs for {scheme}:// is not installed ({error}); {advice}."
    return None


def has_unsent_files(storage: Storage) -> bool:
    """Return whether a storage is the fast tier of a tiered storage with files that the slow tier does not have yet."""
    return any(entry.name.endswith(".json") for entry in (*storage.list(OUTBOX), *storage.list(EARLIER[OUTBOX])))


def _path_of(location: str) -> str:
    """Return the path of a path or file:// URL. Raises ConfigurationError if it is invalid or names another machine."""
    if "\0" in location:
        raise ConfigurationError(f"The path {without_user(location)!r} contains a null byte; choose another one.")
    if scheme_of(location) != "file":
        return os.path.expanduser(location)
    url = _split_url(without_user(location))
    if url.netloc not in ("", "localhost") or user_of(location):
        raise ConfigurationError(
            f"{without_user(location)} refers to the folder {url.path or '/'} on a machine named {url.netloc}; write "
            "file:///absolute/path, or only the path."
        )
    return url2pathname(url.path)


def _split_url(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # its text may contain the URL
        reason = str(error).partition(":")[0]
        raise ConfigurationError(f"{without_user(url)} is not a valid URL ({reason}); correct it.") from None


STORAGES: dict[str, Callable[[str, str], Storage]] = {
    "file": lambda location, digest: LocalStorage(_path_of(location), digest),
}
"""From a URL's scheme ("file" for a path) to the storage, given the location and the kind of digest."""


def get_last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the path or URL of the `checkpoint-<step>` folder with the highest step in `folder`; None without one.

    Only names are compared; a checkpoint is verified when it is loaded.

    Args:
        folder: a path or a URL.

    Raises:
        FileNotFoundError: if a local folder is missing.
    """
    folder = os.fspath(folder)
    if is_elsewhere(folder):
        names = [entry.name for entry in storage_for(folder).list("") if entry.is_folder]
    else:
        names = [entry.name for entry in os.scandir(as_location(folder)) if entry.is_dir()]
    steps = [step for step in map(step_of, names) if step is not None]
    return joined(folder, checkpoint_name(max(steps))) if steps else None


def read_setup(storage: Storage, checkpoint: str) -> dict[str, Any]:
    """Return the document in which a checkpoint describes the setup of its run.

    Raises:
        CheckpointError: if invalid.
    """
    names = [entry.name for entry in storage.list(checkpoint)]
    documents = RunDocuments(names, lambda path, start=0, /: storage.read(f"{checkpoint}/{path}", start))
    setup = documents.read(SETUP)
    check_setup(setup, f"{SETUP} in {documents.path_of(SETUP)}")
    return setup


CHUNK = 1 << 20


def files_below(folder: Path) -> dict[str, Path]:
    """Return every file below a folder of this machine, by its path in it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def chunks_of(path: Path, start: int = 0) -> Iterator[memoryview]:
    """Read the bytes of a file from `start` on."""
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            yield memoryview(chunk)


def read_key(path: str | os.PathLike[str] | None, source: str = "checkpoint_key") -> Signatures | None:
    """Return the signatures by the key in a file; None without a file. Warns if other users may read or replace it.

    Args:
        path: the file with the key.
        source: the argument or option that names the file, for messages, which do not repeat its path.

    Raises:
        ConfigurationError: if the file cannot be read or holds no key.
    """
    if path is None:
        return None
    path = os.path.expanduser(os.fspath(path))
    try:
        key = read_file(path, "note_bytes")
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        reason = error.strerror or "it is not a regular file"
        raise ConfigurationError(f"The file that {source} names cannot be read: {reason}. Name a key file.") from error
    try:
        signatures = signatures_of(key)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"The file that {source} names is not a key: {problem}." for problem in error.problems
        ) from error
    others = stat.S_IRWXG | stat.S_IRWXO if signatures.can_sign else stat.S_IWGRP | stat.S_IWOTH
    if os.name == "posix" and mode & others:
        warnings.warn(
            f"Other users can {'read' if signatures.can_sign else 'replace'} the key file that {source} names (its "
            f"permissions are {mode:o}), and with it sign checkpoints. Restrict it: chmod 600",
            stacklevel=2,
        )
    return signatures


def refuse_forgeable_digests(storage: Storage) -> None:
    """Raise ConfigurationError if a storage that the caller passed computes digests that a signature cannot rely on.

    Of a storage that does not state its digest, this is known only when it has written something.
    """
    digest = storage.capabilities.digest
    if digest is not None and digest not in CRYPTOGRAPHIC:
        raise ConfigurationError(
            f"You chose checkpoint_key, but storage={storage.capabilities.location} computes digests of the kind "
            f"{digest}, which can be forged; configure the storage with digest={SIGNING_DIGEST!r}."
        )


def refuse_public_key(storage: Storage) -> None:
    """Raise ConfigurationError if checkpoints are to be signed and the key only verifies."""
    signatures = storage.capabilities.signatures
    if signatures is not None and not signatures.can_sign:
        raise ConfigurationError(
            "The file that checkpoint_key names holds a public key, which only verifies checkpoints. A run that saves "
            "signs them: name the private key, or set save_strategy='no'."
        )
