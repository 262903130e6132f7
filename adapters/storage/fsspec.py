"""Storage behind any URL that fsspec supports: s3://, gs://, az://, sftp://, memory://, and many more."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from time import sleep
from typing import IO, Any, ParamSpec, TypeVar
from urllib.parse import unquote

from hexloop.adapters.storage import NO_SPACE, RunningDigest, check_algorithm, digest_of, new_digest, outside_error
from hexloop.domain.checkpoints.manifest import stays_inside
from hexloop.domain.errors import MissingFileError, StorageError, StorageFullError
from hexloop.domain.redaction import user_of, without_user
from hexloop.ports.storage import Entry, Publication, StorageCapabilities, Stored

Arguments = ParamSpec("Arguments")
Response = TypeVar("Response")

BLOCK = 1 << 24
"""Bytes held, sent and fetched at a time: one part of a multi-part upload, of which S3 allows 10,000 per file."""

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each retry of a request that failed for a transient reason."""

_BAD_PATH = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_BAD_CALL = (AssertionError, AttributeError, ImportError, LookupError, NotImplementedError, TypeError, ValueError)
_PERMANENT_NUMBERS = NO_SPACE | {errno.EINVAL, errno.EPERM, errno.EROFS, errno.ENOSYS, errno.ENAMETOOLONG}
_FORBIDDEN_CODES = frozenset({"401", "403"})
_REFUSED_CODES = _FORBIDDEN_CODES | {"400", "404", "405", "410", "422"}
_FULL_CODES = frozenset({"QuotaExceeded", "StorageFull", "XMinioStorageFull", "InsufficientStorage", "507"})
_ADVICE: Mapping[type[Exception], str] = {
    FileNotFoundError: "Check the name; the bucket, or the first folder of the URL, must exist",
    FileExistsError: "Remove it, or choose another name",
    PermissionError: "Check the credentials that this process uses, and their permissions",
    NotImplementedError: "Choose a URL scheme that supports writing",
}
_SECRET = re.compile("key|secret|token|passw|credential|sas|signature", re.IGNORECASE)
_QUERY = re.compile(r"\?[^\s'\"<>]*[=&][^\s'\"<>]*")


class FsspecStorage:
    """Storage adapter for everything below a URL.

    There is no rename, so the manifest is written last. A file of BLOCK bytes or more is uploaded in parts, one of
    which is in memory at a time; parts are retried by fsspec, everything else here. The parts of a failed upload are
    discarded. Whether a completed write survives a crash depends on the service: object stores guarantee it, "file://"
    does not; use `LocalStorage` for that.

    Secrets in them, and the user, password and query of the URL, are never shown.

    Args:
        url: the URL of the folder, with a scheme that fsspec knows.
        options: passed to the file system of fsspec (key, secret, endpoint_url, ...).
        digest: "xxh3-128", which detects damage, or "blake2b", a cryptographic hash.
        pauses: see PAUSES; without any, a request is attempted once.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        digest: str = "xxh3-128",
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        from fsspec.core import url_to_fs

        self._location, self._secrets = _shown_url(url), _secrets_of(url, options or {})
        self._digest, self._pauses = check_algorithm(digest), pauses
        with self._converting_errors("open the storage"):
            self._files, root = url_to_fs(url, **(options or {}))
        self._root = str(root).rstrip("/")

    @property
    def capabilities(self) -> StorageCapabilities:
        """Publication by manifest; the location is the URL without secrets."""
        return StorageCapabilities(
            Publication.MANIFEST_LAST,
            self._location,
            modified=self._modified,
            new_digest=new_digest,
            digest=self._digest,
        )

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`."""
        full, action = self._locate(path), f"write {path}"
        self._refuse_existing(path)
        summary = RunningDigest(self._digest)
        parts = _blocks(chunks, BLOCK, summary)
        first = next(parts, b"")
        try:
            if len(first) < BLOCK:
                with self._converting_errors(action):
                    self._request(self._in_folder, full, self._files.pipe_file, full, first)
            else:
                self._send_in_parts(full, action, chain([first], parts))
        except BaseException as error:
            with suppress(StorageError):
                if isinstance(error, StorageError) and self.digest(path) == summary.stored():
                    return summary.stored()  # only the response was lost
            with suppress(Exception):
                self._files.rm_file(full)
            raise
        return summary.stored()

    def sync(self, paths: Sequence[str]) -> None:
        """No-op: a completed write is as durable as the service makes it."""

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Yield the file's bytes, BLOCK at a time; see `Storage.read`."""
        full, action = self._locate(path), f"read {path}"
        with self._converting_errors(action):
            facts = self._request(self._files.info, full)
        if facts["type"] == "directory":
            raise StorageError(f"Cannot {action} in {self._location}: it is a folder. Name a file in it.")
        size = int(facts["size"])
        for begin in range(start, size, BLOCK):
            with self._converting_errors(action):
                chunk = self._request(self._fetch, full, begin, min(begin + BLOCK, size))
            yield memoryview(chunk)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder; see `Storage.list`."""
        full = self._locate(folder) if folder else self._root
        with self._converting_errors(f"list {folder or 'everything'}"):
            try:
                found = self._request(self._files.ls, full, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return ()
        above = f"{full.strip('/')}/".removeprefix("/")
        entries: dict[str, Entry] = {}
        for each in found:
            if (full_name := each["name"].strip("/")).startswith(above):
                name, is_folder, size = full_name.removeprefix(above), each["type"] == "directory", each.get("size")
                entries[name] = Entry(name, is_folder, size if isinstance(size, int) and not is_folder else None)
        return tuple(entry for _, entry in sorted(entries.items()))

    def move(self, source: str, destination: str) -> None:
        """Copy every file and remove the originals; see `Storage.move`."""
        old, new, action = self._locate(source), self._locate(destination), f"move {source} to {destination}"
        self._refuse_existing(destination)
        with self._converting_errors(action):
            names = [str(name) for name in self._request(self._files.find, old)]
            if not names:
                raise FileNotFoundError(f"{source} does not exist")
            for name in names:
                copy = new + f"/{name.strip('/')}".removeprefix(f"/{old.strip('/')}")
                self._request(self._in_folder, copy, self._files.cp_file, name, copy)
        self.remove(source)

    def remove(self, path: str) -> None:
        """Remove a file or a folder; see `Storage.remove`."""
        full = self._locate(path)
        with self._converting_errors(f"remove {path}"), suppress(FileNotFoundError, NotADirectoryError):
            self._request(self._files.rm, full, recursive=True)

    def digest(self, path: str) -> Stored:
        """Read the file and return its size and digest."""
        return digest_of(self.read(path), self._digest)

    def _modified(self, path: str) -> float | None:
        """Return when a file was written, in seconds since the epoch; None if the service does not report it."""
        with suppress(NotImplementedError, OSError):
            written: datetime = self._files.modified(self._locate(path))
            return written.timestamp()
        return None

    def _send_in_parts(self, full: str, action: str, parts: Iterable[bytes]) -> None:
        with self._converting_errors(action):
            file: IO[bytes] = self._request(self._in_folder, full, self._files.open, full, "wb", block_size=BLOCK)
        try:
            for part in parts:
                with self._converting_errors(action):
                    file.write(part)
            with self._converting_errors(action):
                file.close()
        except BaseException:
            _discard(file)
            raise

    def _in_folder(
        self, full: str, call: Callable[Arguments, Response], *values: Arguments.args, **options: Arguments.kwargs
    ) -> Response:
        """Make a call; create the folder of `full` first if the file system requires it."""
        try:
            return call(*values, **options)
        except FileNotFoundError:
            self._make_folder(full.rpartition("/")[0])
            return call(*values, **options)

    def _make_folder(self, folder: str) -> None:
        """Create a folder and its parents, except for the first name, which may be a bucket."""
        if "/" not in folder.strip("/"):
            return
        with suppress(FileExistsError):
            try:
                self._files.mkdir(folder, create_parents=False)
            except FileNotFoundError:
                self._make_folder(folder.rpartition("/")[0])
                self._files.mkdir(folder, create_parents=False)

    def _fetch(self, full: str, start: int, end: int) -> bytes:
        chunk = bytes(self._files.cat_file(full, start=start, end=end))
        if len(chunk) != end - start:
            raise ConnectionError(f"only {len(chunk)} of {end - start} bytes were received")
        return chunk

    def _locate(self, path: str) -> str:
        if not stays_inside(path):
            raise outside_error(path, self._location)
        return f"{self._root}/{path}"

    def _refuse_existing(self, path: str) -> None:
        """Raise StorageError if there is something at `path`, or a file instead of a folder above it.

        A folder with entries has only folders above it, so one listing usually suffices.
        """
        folder, _, name = path.rpartition("/")
        entries = self.list(folder)
        taken = path if name in {entry.name for entry in entries} else ""
        while folder and not entries:
            above, _, name = folder.rpartition("/")
            entries = self.list(above)
            taken = folder if Entry(name, False) in entries else ""
            folder = above
        if taken:
            raise StorageError(
                f"Cannot write {path} in {self._location}: {taken} exists already. Remove it, or choose another name."
            )

    def _request(
        self, call: Callable[Arguments, Response], *values: Arguments.args, **options: Arguments.kwargs
    ) -> Response:
        """Make a call, ignoring fsspec's cached listings; after a transient error, pause and try again."""
        for pause in self._pauses:
            self._files.invalidate_cache()
            try:
                return call(*values, **options)
            except Exception as error:
                if not _is_transient(error):
                    raise
            sleep(pause)
        self._files.invalidate_cache()
        return call(*values, **options)

    @contextmanager
    def _converting_errors(self, action: str) -> Iterator[None]:
        """Convert every exception to StorageError, with secrets removed from the message."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            texts = [str(each) for each in _with_causes(error)]
            shown = [self._redacted(text) for text in texts]
            text = f"Cannot {action} in {self._location}: {(shown[0] or type(error).__name__).rstrip('.')}"
            # The cause is chained unless its text contains a secret.
            raise _converted(error, text) from (error if shown == texts else None)

    def _redacted(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return _QUERY.sub("?***", text)


def _blocks(chunks: Iterable[bytes | memoryview], size: int, summary: RunningDigest) -> Iterator[bytes]:
    """Yield the bytes of the chunks, `size` at a time, adding them to the digest; the last block may be smaller."""
    held = bytearray()
    for chunk in chunks:
        rest = memoryview(chunk).cast("B")
        summary.update(rest)
        while rest:
            taken = rest[: size - len(held)]
            held += taken
            rest = rest[len(taken) :]
            if len(held) == size:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


def _discard(file: IO[bytes]) -> None:
    """Discard a partial upload, so that it is neither kept nor completed when the object is garbage collected."""
    from fsspec.spec import AbstractBufferedFile

    with suppress(Exception):
        if isinstance(file, AbstractBufferedFile):
            file.discard()
            file.closed = True
        else:
            file.close()


# Errors: which are transient, what to advise, and which texts are secret


def _shown_url(url: str) -> str:
    """Return a URL without user, password and query."""
    return without_user(url).partition("?")[0].rstrip("/")


def _secrets_of(url: str, options: Mapping[str, object]) -> frozenset[str]:
    """Return the texts that no message may show: user and password of a URL, and options named like a secret."""
    user = user_of(url).split(":")
    found = {*user, *map(unquote, user)}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _secrets_of("", value)
        elif isinstance(value, str) and _SECRET.search(name):
            found.add(value)
    return frozenset(found - {""})


def _converted(error: Exception, text: str) -> StorageError:
    if _is_full(error):
        return StorageFullError(f"{text}. Free some space, or choose another location.")
    retry = "Try again later, or choose another location"
    otherwise = retry if _is_transient(error) else "Check the URL and its options"
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"{text}. {_ADVICE[FileNotFoundError]}.")
    kind = PermissionError if _code(error) in _FORBIDDEN_CODES else type(error)
    advice = next((advice for each, advice in _ADVICE.items() if issubclass(kind, each)), otherwise)
    return StorageError(f"{text}. {advice}.")


def _is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed: a broken connection, a timeout, a server that is busy."""
    return not (
        isinstance(error, (*_BAD_PATH, *_BAD_CALL, StorageError))
        or (isinstance(error, OSError) and error.errno in _PERMANENT_NUMBERS)
        or _code(error) in _REFUSED_CODES
        or "Credentials" in type(error).__name__
        or _is_full(error)
    )


def _is_full(error: Exception) -> bool:
    return any(
        (isinstance(each, OSError) and each.errno in NO_SPACE) or _code(each) in _FULL_CODES
        for each in _with_causes(error)
    )


def _code(error: BaseException) -> str:
    """Return the error code of the service, or else the HTTP status; "" if there is neither."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(error, "status", getattr(response, "status_code", "")))


def _with_causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or each.__context__
    return found
