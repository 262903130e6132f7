"""Storage behind a URL, through fsspec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from functools import partial
from itertools import chain
from typing import IO, Any

from hexloop.adapters.storage.digests import RunningDigest, check_algorithm
from hexloop.adapters.storage.fsspec.errors import Response, converting_errors, secrets_of, shown_url, with_retries
from hexloop.domain.checkpoints.manifest import stays_inside
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Entry, Publication, StorageCapabilities, Stored

BLOCK = 1 << 24
"""Bytes held, sent and fetched at a time: one part of a multi-part upload, of which S3 allows 10,000 per file."""

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each retry of a request that failed for a transient reason."""


class FsspecStorage:
    """Storage adapter for everything below a URL.

    options: passed to the file system of fsspec (key, secret, endpoint_url, ...). Secrets in them, and the user,
    password and query of the URL, are never shown.
    digest: "xxh3-128", which detects damage, or "blake2b", a cryptographic hash.
    pauses: see PAUSES; without any, a request is attempted once.

    There is no rename, so the manifest is written last. A file of BLOCK bytes or more is uploaded in parts, one of
    which is in memory at a time; parts are retried by fsspec, everything else here. The parts of a failed upload are
    discarded. Whether a completed write survives a crash depends on the service: object stores guarantee it, "file://"
    does not; use `LocalStorage` for that.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        digest: str = "xxh3-128",
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        from fsspec.core import url_to_fs

        self._location, self._secrets = shown_url(url), secrets_of(url, options or {})
        self._digest, self._pauses = check_algorithm(digest), pauses
        with self._converting_errors("open the storage"):
            self._files, root = url_to_fs(url, **(options or {}))
        self._root = str(root).rstrip("/")

    @property
    def capabilities(self) -> StorageCapabilities:
        """Publication by manifest; the location is the URL without secrets."""
        return StorageCapabilities(Publication.MANIFEST_LAST, self._location, modified=self._modified)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`."""
        full = self._locate(path)
        self._refuse_existing(path)
        summary = RunningDigest(self._digest)
        parts = blocks(summary.watch(chunks), BLOCK)
        first = next(parts, b"")
        send = self._send_whole if len(first) < BLOCK else self._send_in_parts
        try:
            send(path, first, parts)
        except BaseException as error:
            if isinstance(error, StorageError) and self._is_complete(path, summary.stored()):
                return summary.stored()
            with suppress(Exception):
                self._files.rm_file(full)
            raise
        return summary.stored()

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Yield the file's bytes, BLOCK at a time; see `Storage.read`."""
        full = self._locate(path)
        with self._converting_errors(f"read {path}"):
            facts = self._request(partial(self._files.info, full))
        if facts["type"] == "directory":
            raise StorageError(f"Cannot read {path} in {self._location}: it is a folder. Name a file in it.")
        size = int(facts["size"])
        for begin in range(start, size, BLOCK):
            with self._converting_errors(f"read {path}"):
                chunk = self._request(partial(self._fetch, full, begin, min(begin + BLOCK, size)))
            yield memoryview(chunk)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder; see `Storage.list`."""
        full = self._locate(folder) if folder else self._root
        with self._converting_errors(f"list {folder or 'everything'}"):
            try:
                found = self._request(partial(self._files.ls, full, detail=True))
            except (FileNotFoundError, NotADirectoryError):
                return ()
        above = f"{full.strip('/')}/".removeprefix("/")
        names: dict[str, bool] = {}
        for entry in found:
            full_name = entry["name"].strip("/")
            if full_name.startswith(above):
                names[full_name.removeprefix(above)] = entry["type"] == "directory"
        return tuple(Entry(name, is_folder) for name, is_folder in sorted(names.items()))

    def move(self, source: str, destination: str) -> None:
        """Copy every file and remove the originals; see `Storage.move`."""
        old, new, action = self._locate(source), self._locate(destination), f"move {source} to {destination}"
        self._refuse_existing(destination)
        with self._converting_errors(action):
            names = [str(name) for name in self._request(partial(self._files.find, old))]
            if not names:
                raise FileNotFoundError(f"{source} does not exist")
            for name in names:
                copy = new + f"/{name.strip('/')}".removeprefix(f"/{old.strip('/')}")
                self._request(partial(self._in_folder, copy, partial(self._files.cp_file, name, copy)))
        self.remove(source)

    def remove(self, path: str) -> None:
        """Remove a file or a folder; see `Storage.remove`."""
        full = self._locate(path)
        with self._converting_errors(f"remove {path}"), suppress(FileNotFoundError, NotADirectoryError):
            self._request(partial(self._files.rm, full, recursive=True))

    def digest(self, path: str) -> Stored:
        """Read the file and return its size and digest."""
        summary = RunningDigest(self._digest)
        for _ in summary.watch(self.read(path)):
            pass
        return summary.stored()

    def _modified(self, path: str) -> float | None:
        """Return when a file was written, in seconds since the epoch; None if the service does not report it."""
        with suppress(NotImplementedError, OSError):
            written: datetime = self._files.modified(self._locate(path))
            return written.timestamp()
        return None

    def _send_whole(self, path: str, data: bytes, _: object) -> None:
        full = self._locate(path)
        with self._converting_errors(f"write {path}"):
            self._request(partial(self._in_folder, full, partial(self._files.pipe_file, full, data)))

    def _send_in_parts(self, path: str, first: bytes, rest: Iterable[bytes]) -> None:
        full, action = self._locate(path), f"write {path}"
        with self._converting_errors(action):
            open_file = partial(self._files.open, full, "wb", block_size=BLOCK)
            file: IO[bytes] = self._request(partial(self._in_folder, full, open_file))
        try:
            for part in chain([first], rest):
                with self._converting_errors(action):
                    file.write(part)
            with self._converting_errors(action):
                file.close()
        except BaseException:
            _discard(file)
            raise

    def _is_complete(self, path: str, stored: Stored) -> bool:
        """Return whether the file is complete although the upload failed: only the response may have been lost."""
        try:
            return self.digest(path) == stored
        except StorageError:
            return False

    def _in_folder(self, full: str, act: Callable[[], Response]) -> Response:
        """Call `act`; create the folder of `full` first if the file system requires it."""
        try:
            return act()
        except FileNotFoundError:
            self._make_folder(full.rpartition("/")[0])
            return act()

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
            raise StorageError(
                f"The path {path!r} leads out of {self._location}; only files inside it are accessed. Choose a path "
                "inside."
            )
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

    def _request(self, act: Callable[[], Response]) -> Response:
        """Call `act`, with retries, ignoring fsspec's cached listings."""

        def attempt() -> Response:
            self._files.invalidate_cache()
            return act()

        return with_retries(attempt, self._pauses)

    def _converting_errors(self, action: str) -> AbstractContextManager[None]:
        return converting_errors(action, self._location, self._secrets)


def blocks(chunks: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Yield the bytes of the chunks, `size` at a time; the last block may be smaller."""
    held = bytearray()
    for chunk in chunks:
        rest = chunk
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
