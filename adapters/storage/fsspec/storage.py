"""Chunks of any size as blocks of one size, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from functools import partial
from itertools import chain
from typing import IO, Any

from hexloop.adapters.storage.digests import RunningDigest, check_algorithm
from hexloop.adapters.storage.fsspec.errors import Response, converting_errors, secrets_of, shown_url, with_retries
from hexloop.domain.checkpoints.names import stays_inside
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Entry, Publication, StorageCapabilities, Stored

BLOCK = 1 << 24
"""Bytes that are held, sent and fetched at a time: a part of a multi-part upload, of which S3 allows 10,000 a file."""

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further attempt at a request that failed for a reason that may pass."""


class FsspecStorage:
    """Answers the Storage port with what stands below a URL.

    options: what fsspec is to construct its file system with (key, secret, endpoint_url, ...); no secret of them, and
    no user, password or query of the URL, is ever shown. digest: "xxh3-128", which finds damage, or "blake2b", which
    nobody can forge. pauses: see PAUSES; without any there is one attempt.

    There is no rename, so the manifest comes last. A file of BLOCK bytes or more is sent in parts, one of which is held
    at a time; each part is retried by fsspec's file system itself, and everything else here. What was sent of a file
    that fails is discarded. Whether what a write returned survives a crash is up to the service: object stores promise
    it, "file://" does not, and there is `LocalStorage` for that.
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
        with self._reporting("open what is"):
            self._files, root = url_to_fs(url, **(options or {}))
        self._root = str(root).rstrip("/")

    @property
    def capabilities(self) -> StorageCapabilities:
        """A folder that appears whole when its manifest does; the location is the URL without what is secret."""
        return StorageCapabilities(Publication.MANIFEST_LAST, self._location, modified=self._modified)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`."""
        full = self._locate(path)
        self._refuse_taken(path)
        summary = RunningDigest(self._digest)
        parts = blocks(summary.watch(chunks), BLOCK)
        first = next(parts, b"")
        send = self._send_whole if len(first) < BLOCK else self._send_in_parts
        try:
            send(path, first, parts)
        except BaseException as error:
            if isinstance(error, StorageError) and self._holds(path, summary.stored()):
                return summary.stored()
            with suppress(Exception):
                self._files.rm_file(full)
            raise
        return summary.stored()

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """The file's bytes, BLOCK at a time; see `Storage.read`."""
        full = self._locate(path)
        with self._reporting(f"read {path}"):
            facts = self._request(partial(self._files.info, full))
        if facts["type"] == "directory":
            raise StorageError(f"You chose to read {path} in {self._location}, but it is a folder; name a file in it.")
        size = int(facts["size"])
        for begin in range(start, size, BLOCK):
            with self._reporting(f"read {path}"):
                chunk = self._request(partial(self._fetch, full, begin, min(begin + BLOCK, size)))
            yield memoryview(chunk)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """The names in a folder; see `Storage.list`."""
        full = self._locate(folder) if folder else self._root
        with self._reporting(f"list {folder or 'all'}"):
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
        """Copy every file and remove the old ones; see `Storage.move`."""
        old, new, action = self._locate(source), self._locate(destination), f"move {source} to {destination}"
        self._refuse_taken(destination)
        with self._reporting(action):
            names = [str(name) for name in self._request(partial(self._files.find, old))]
            if not names:
                raise FileNotFoundError(f"there is no {source}")
            for name in names:
                copy = new + f"/{name.strip('/')}".removeprefix(f"/{old.strip('/')}")
                self._request(partial(self._in_folder, copy, partial(self._files.cp_file, name, copy)))
        self.remove(source)

    def remove(self, path: str) -> None:
        """Remove a file or a folder; see `Storage.remove`."""
        full = self._locate(path)
        with self._reporting(f"remove {path}"), suppress(FileNotFoundError, NotADirectoryError):
            self._request(partial(self._files.rm, full, recursive=True))

    def digest(self, path: str) -> Stored:
        """Size and digest of a file, read through."""
        summary = RunningDigest(self._digest)
        for _ in summary.watch(self.read(path)):
            pass
        return summary.stored()

    def _modified(self, path: str) -> float | None:
        """When a file was written, in seconds of the epoch; None where the service does not say."""
        with suppress(NotImplementedError, OSError):
            written: datetime = self._files.modified(self._locate(path))
            return written.timestamp()
        return None

    def _send_whole(self, path: str, data: bytes, _: object) -> None:
        full = self._locate(path)
        with self._reporting(f"write {path}"):
            self._request(partial(self._in_folder, full, partial(self._files.pipe_file, full, data)))

    def _send_in_parts(self, path: str, first: bytes, rest: Iterable[bytes]) -> None:
        full, action = self._locate(path), f"write {path}"
        with self._reporting(action):
            open_file = partial(self._files.open, full, "wb", block_size=BLOCK)
            file: IO[bytes] = self._request(partial(self._in_folder, full, open_file))
        try:
            for part in chain([first], rest):
                with self._reporting(action):
                    file.write(part)
            with self._reporting(action):
                file.close()
        except BaseException:
            _give_up(file)
            raise

    def _holds(self, path: str, stored: Stored) -> bool:
        """Whether a file is there and whole though sending it failed: only the last answer may have been lost."""
        try:
            return self.digest(path) == stored
        except StorageError:
            return False

    def _in_folder(self, full: str, act: Callable[[], Response]) -> Response:
        """Do something that may need the folder of `full` first, which only some file systems have."""
        try:
            return act()
        except FileNotFoundError:
            self._make_folder(full.rpartition("/")[0])
            return act()

    def _make_folder(self, folder: str) -> None:
        """Make a folder and those above it, but not the first name of all, which may be a bucket."""
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
            raise ConnectionError(f"only {len(chunk)} of {end - start} bytes came")
        return chunk

    def _locate(self, path: str) -> str:
        if not stays_inside(path):
            raise StorageError(
                f"You chose the path {path!r}, which leads out of {self._location}, and nothing outside of it is ever "
                "touched; choose a path within it."
            )
        return f"{self._root}/{path}"

    def _refuse_taken(self, path: str) -> None:
        """Raises StorageError where there is something at `path`, or a file in the place of a folder above it.

        A folder that has entries has none but folders above it, so that most often one listing tells.
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
                f"You chose to write {path} in {self._location}, but {taken} is there already; remove it, or choose "
                "another name."
            )

    def _request(self, act: Callable[[], Response]) -> Response:
        """Do something anew after each pause, if need be, and never by a listing that was kept from before."""

        def attempt() -> Response:
            self._files.invalidate_cache()
            return act()

        return with_retries(attempt, self._pauses)

    def _reporting(self, action: str) -> AbstractContextManager[None]:
        return converting_errors(action, self._location, self._secrets)


def blocks(chunks: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """The bytes of the chunks, `size` at a time; the last block may be smaller."""
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


def _give_up(file: IO[bytes]) -> None:
    """Discard what was sent of a file, so that no half of it is kept, or completed when it is collected as garbage."""
    from fsspec.spec import AbstractBufferedFile

    with suppress(Exception):
        if isinstance(file, AbstractBufferedFile):
            file.discard()
            file.closed = True
        else:
            file.close()
