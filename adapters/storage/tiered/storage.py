"""Storage of two tiers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator

from hexloop.adapters.storage.tiered.outbox import OUTBOX, Action, Outbox, exists, is_within
from hexloop.adapters.storage.tiered.remote import Remote, Uploader
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.ports.storage import Entry, Publication, Storage, StorageCapabilities, Stored

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)


class TieredStorage:
    """Storage adapter that writes to a fast storage and uploads the results to a slow one in the background.

    fast: a storage with durable writes and atomic moves, such as a local disk.
    slow: a storage that outlives it. Both must compute the same kind of digest.
    sends: whether this process uploads; if several share a fast tier, exactly one should.
    pauses: seconds between attempts; the last one repeats.
    limit: maximum number of seconds that the program waits at exit for pending uploads; it does not wait while the slow
    tier fails. Call `close` to be sure.

    Names that begin with a dot, such as unfinished saves, stay in the fast tier. Everything else is uploaded, the
    manifest of a checkpoint last, and verified by reading it back. The slow tier passes through the states of the fast
    one in the same order: what is removed before it was uploaded is hidden, uploaded, and then removed there. Reads and
    listings fall back to the slow tier.

    A slow tier that fails is retried until it succeeds, with one warning per outage; the run continues. The outbox of
    pending operations is kept in the fast tier: if the process dies, the next one continues.
    """

    def __init__(
        self,
        fast: Storage,
        slow: Storage,
        sends: bool = True,
        pauses: tuple[float, ...] = PAUSES,
        limit: float = 600.0,
    ) -> None:
        if fast.capabilities.publication is not Publication.RENAME:
            raise ConfigurationError(
                f"{fast.capabilities.location} cannot be the fast tier: it has no atomic rename. Choose a "
                "folder on this machine."
            )
        self._fast, self._slow = fast, slow
        self._outbox = Outbox(fast, takes_over=sends)
        self._remote = Remote(slow, self._outbox, self._has_anything)
        self._uploader = Uploader(fast, self._remote, self._outbox, pauses, limit)
        self._sends = sends
        self._warned: str | None = None
        self._wake()

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of the fast tier; the location names both."""
        fast, slow = self._fast.capabilities, self._slow.capabilities
        location = f"{fast.location}, and then {slow.location}"
        return StorageCapabilities(Publication.RENAME, location, fast.local_folder, fast.modified)

    @property
    def pending(self) -> tuple[str, ...]:
        """The paths whose latest state is not in the slow tier yet, oldest first."""
        return tuple(dict.fromkeys(intent.path for intent in self._outbox.pending()))

    def flush(self, limit: float | None = None) -> None:
        """Wait until the slow tier has everything, for at most `limit` seconds (None: without limit).

        Raises StorageError otherwise, with what is pending and why; it is kept and uploaded later.
        """
        ends_at = float("inf") if limit is None else time.monotonic() + limit
        self._wake()
        with self._outbox.changed:
            while self._sends and self.pending and time.monotonic() < ends_at:
                self._outbox.changed.wait(min(1.0, max(ends_at - time.monotonic(), 0.0)))
        if self.pending:
            why = self._uploader.trouble or "not enough time, or another process uploads"
            raise StorageError(
                f"Not yet uploaded to {self._slow.capabilities.location}: {', '.join(self.pending)} ({why}). They are "
                f"kept, and uploaded by the next program that uses {self._fast.capabilities.location} as its fast tier."
            )

    def close(self, limit: float | None = None) -> None:
        """Flush, then stop uploading; see `flush`."""
        try:
            self.flush(limit)
        finally:
            self._sends = False
            self._uploader.stop()

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`."""
        self._refuse_existing(path)
        if _is_local_only(path):
            return self._fast.write(path, chunks)
        stored: list[Stored] = []
        self._outbox.during(lambda: stored.append(self._fast.write(path, chunks)), Action.SEND, path, source=path)
        self._wake()
        return stored[0]

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Return the file's bytes; see `Storage.read`."""
        return self._tier_of(path).read(path, start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder of either tier; see `Storage.list`."""
        entries = {entry.name: entry for entry in self._remote.list(folder)}
        entries |= {entry.name: entry for entry in self._fast.list(folder)}
        if not folder:
            entries.pop(OUTBOX, None)
        return tuple(entry for _, entry in sorted(entries.items()))

    def move(self, source: str, destination: str) -> None:
        """Rename in the fast tier, and later in the slow one; see `Storage.move`."""
        self._refuse_existing(destination)
        _refuse_outbox(source)
        if not exists(self._fast, source):
            if not self._remote.has(source):
                self._fast.move(source, destination)  # raises the appropriate error
            self._remote.move(source, destination)
            return
        if _is_local_only(source) and not _is_local_only(destination):
            move = lambda: self._outbox.moving(source, destination)  # noqa: E731
            self._outbox.during(move, Action.SEND, destination, source=destination)
        else:
            known = self._remote.expects(source)
            self._outbox.moving(source, destination)
            if known and _is_local_only(destination):
                self._outbox.add(Action.REMOVE, source)
            elif known:
                self._outbox.add(Action.MOVE, source, destination)
        self._wake()

    def remove(self, path: str) -> None:
        """Remove a file or a folder, later in the slow tier; see `Storage.remove`."""
        _refuse_outbox(path)
        known = self._remote.expects(path)
        if exists(self._fast, path):
            self._remove_here(path)
        if known:
            self._outbox.add(Action.REMOVE, path)
        self._wake()

    def digest(self, path: str) -> Stored:
        """Read the file and return its size and digest."""
        return self._tier_of(path).digest(path)

    def _remove_here(self, path: str) -> None:
        sources = [intent.source for intent in self._outbox.pending() if intent.source]
        if any(is_within(source, path) for source in sources):
            self._outbox.hold(path)
        elif any(is_within(path, source) for source in sources):
            raise StorageError(
                f"Cannot remove {path} in {self.capabilities.location}: it is part of a pending upload. Remove the "
                "whole upload, or try again when it is complete."
            )
        else:
            self._fast.remove(path)

    def _tier_of(self, path: str) -> Storage:
        _refuse_outbox(path)
        return self._slow if not exists(self._fast, path) and self._remote.has(path) else self._fast

    def _refuse_existing(self, path: str) -> None:
        """Raise StorageError if only the slow tier has something at a path; the fast one checks itself."""
        _refuse_outbox(path)
        if _is_local_only(path):
            return
        above = path.split("/")
        for depth in range(1, len(above)):
            folder, _, name = "/".join(above[:depth]).rpartition("/")
            if Entry(name, False) in self._remote.list(folder):
                raise _exists_error(path, self._slow)
        if self._remote.has(path):
            raise _exists_error(path, self._slow)

    def _has_anything(self) -> bool:
        """Return whether the fast tier holds anything; if so, it holds the newest checkpoint to resume from."""
        return any(not _is_local_only(entry.name) for entry in self._fast.list(""))

    def _wake(self) -> None:
        if self._sends:
            self._uploader.wake()
        trouble = self._uploader.trouble
        if trouble is None or self._warned is None:
            self._warned = trouble
            if trouble is not None:
                warnings.warn(
                    f"Uploading to {self._slow.capabilities.location} failed and is retried while the run continues: "
                    f"{trouble}",
                    stacklevel=3,
                )


def _is_local_only(path: str) -> bool:
    """Return whether a path is never uploaded: readers ignore its name."""
    return path.startswith(".")


def _refuse_outbox(path: str) -> None:
    if is_within(path, OUTBOX):
        raise StorageError(f"The path {path!r} is reserved: {OUTBOX} belongs to the storage. Choose another name.")


def _exists_error(path: str, slow: Storage) -> StorageError:
    return StorageError(
        f"Cannot write {path}: it exists already in {slow.capabilities.location}. Remove it, or choose another name."
    )
