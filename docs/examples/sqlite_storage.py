"""A storage that keeps all checkpoints in one SQLite database.

It implements hexloop's Storage port with the standard library only.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.ports.storage import Entry, Publication, StorageCapabilities, Stored

TABLES = """
create table if not exists files (path text primary key, size integer not null, digest text not null) without rowid;
create table if not exists chunks (path text, number integer, bytes blob, primary key (path, number)) without rowid;
"""

UNDER = "path = :path or (path > :path || '/' and path < :path || '0')"
"""Selects a path and everything below it: '0' is the character after '/'."""


class SQLiteStorage:
    """Storage adapter for the database `file`.

    Every operation is one transaction, so a crash leaves all of it or nothing, and a folder appears by one rename.
    Each operation opens its own connection, so any thread may call any method.
    """

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file).absolute()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._transaction() as database:
            database.executescript(TABLES)

    @property
    def capabilities(self) -> StorageCapabilities:
        """Renames are atomic; the checkpoints are not in a local folder."""
        return StorageCapabilities(Publication.RENAME, f"sqlite:{self._file}")

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`."""
        _check(path)
        digest, size = hashlib.blake2b(), 0
        with self._transaction() as database:
            _refuse_taken(database, path)
            for number, chunk in enumerate(chunks):
                digest.update(chunk)
                size += memoryview(chunk).nbytes
                database.execute("insert into chunks values (?, ?, ?)", (path, number, chunk))
            stored = Stored(size, f"blake2b:{digest.hexdigest()}")
            database.execute("insert into files values (?, ?, ?)", (path, stored.size, stored.digest))
        return stored

    def sync(self, paths: Sequence[str]) -> None:
        """No-op: a transaction is durable once it is committed; see `Storage.sync`."""

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Yield the file's chunks as they were written, from the offset on; see `Storage.read`."""
        with self._transaction() as database:
            if database.execute("select 1 from files where path = ?", (path,)).fetchone() is None:
                raise StorageError(f"You asked for {path!r}, but {self._file} holds no such file; check the name.")
            for (chunk,) in database.execute("select bytes from chunks where path = ? order by number", (path,)):
                if start < len(chunk):
                    yield memoryview(chunk)[start:]
                start = max(start - len(chunk), 0)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the entries of `folder`; see `Storage.list`."""
        prefix = f"{folder}/" if folder else ""
        entries: dict[str, Entry] = {}
        with self._transaction() as database:
            for (path,) in database.execute("select path from files"):
                if path.startswith(prefix):
                    name, below, _ = path.removeprefix(prefix).partition("/")
                    entries[name] = Entry(name, bool(below))
        return tuple(entries[name] for name in sorted(entries))

    def move(self, source: str, destination: str) -> None:
        """Rename a file or a folder; see `Storage.move`."""
        _check(destination)
        with self._transaction() as database:
            _refuse_taken(database, destination)
            for table in ("chunks", "files"):
                moved = database.execute(
                    f"update {table} set path = :new || substr(path, length(:path) + 1) where {UNDER}",
                    {"path": source, "new": destination},
                )
            if moved.rowcount == 0:
                raise StorageError(f"You asked to move {source!r}, but {self._file} holds nothing there; check it.")

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents; see `Storage.remove`."""
        with self._transaction() as database:
            for table in ("chunks", "files"):
                database.execute(f"delete from {table} where {UNDER}", {"path": path})

    def digest(self, path: str) -> Stored:
        """Read the file and return its size and digest; see `Storage.digest`."""
        digest, size = hashlib.blake2b(), 0
        for chunk in self.read(path):
            digest.update(chunk)
            size += chunk.nbytes
        return Stored(size, f"blake2b:{digest.hexdigest()}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open the database; commit at the end of the block, or roll back if it raises."""
        try:
            with closing(sqlite3.connect(self._file, timeout=60)) as database, database:
                database.execute("pragma journal_mode = wal")  # readers do not block writers
                database.execute("pragma synchronous = full")
                yield database
        except sqlite3.Error as error:
            kind = StorageFullError if "full" in str(error) else StorageError
            raise kind(f"The database {self._file} failed: {error}. What it held is intact.") from error


def _check(path: str) -> None:
    if any(name in ("", ".", "..") for name in path.split("/")):
        raise StorageError(f"You chose the path {path!r}, but it may lead out of the storage; give a plain one.")


def _refuse_taken(database: sqlite3.Connection, path: str) -> None:
    """Raise StorageError if the path exists, or if a parent of it is a file."""
    taken = database.execute(f"select path from files where {UNDER}", {"path": path}).fetchone()
    names = path.split("/")
    for depth in range(1, len(names)):
        through = ("/".join(names[:depth]),)
        taken = taken or database.execute("select path from files where path = ?", through).fetchone()
    if taken is not None:
        raise StorageError(f"You chose the path {path!r}, but {taken[0]!r} is there; remove it, or choose another.")
