"""A Storage of two tiers."""

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
    """Answers the Storage port with a fast storage, and brings all that becomes of it to a slow one later.

    fast: where writes and moves are durable and atomic, such as a disk of this machine. slow: what outlives it. Both
    are to compute the same kind of digest. What is written under a name that begins with a dot, as saves are until they
    are whole, stays in the fast tier; everything else goes to the slow one, a checkpoint's manifest last, and is read
    back there. The slow tier goes through the states of the fast one in their order: what is removed before it was sent
    is kept out of sight, sent, and removed there then. Reads and listings take what the fast tier lacks from the slow.

    A slow tier that fails is tried again and again, and warned of once each time it begins to fail; the run goes on.
    The outbox is kept in the fast tier: a process that dies leaves the rest to the next. `sends`: whether this process
    does that; of several that share a fast tier, one should. pauses: seconds between attempts, the last again and
    again. limit: the most seconds that a program waits, at its end, for what is not sent yet; it does not wait for a
    slow tier that fails then. To be sure, `close` it.
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
                [
                    f"You chose {fast.capabilities.location} as the fast tier, but it has no atomic rename; choose a "
                    "folder of this machine."
                ]
            )
        self._fast, self._slow = fast, slow
        self._outbox = Outbox(fast, takes_over=sends)
        self._remote = Remote(slow, self._outbox, self._has_something)
        self._uploader = Uploader(fast, self._remote, self._outbox, pauses, limit)
        self._sends = sends
        self._told: str | None = None
        self._wake()

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of the fast tier; the location names both."""
        fast, slow = self._fast.capabilities, self._slow.capabilities
        location = f"{fast.location}, and then {slow.location}"
        return StorageCapabilities(Publication.RENAME, location, fast.local_folder, fast.modified)

    @property
    def pending(self) -> tuple[str, ...]:
        """The paths of which the slow tier does not know the latest yet, oldest first."""
        return tuple(dict.fromkeys(errand.path for errand in self._outbox.pending()))

    def flush(self, limit: float | None = None) -> None:
        """Wait until the slow tier has everything, at most `limit` seconds (None: however long it takes).

        Raises StorageError where it has not, with what is not sent and why; that is kept, and sent later.
        """
        ends_at = float("inf") if limit is None else time.monotonic() + limit
        self._wake()
        with self._outbox.changed:
            while self._sends and self.pending and time.monotonic() < ends_at:
                self._outbox.changed.wait(min(1.0, max(ends_at - time.monotonic(), 0.0)))
        if self.pending:
            why = self._uploader.trouble or "there was no time to, or it is another process's to do"
            raise StorageError(
                f"You chose to wait until everything is in {self._slow.capabilities.location}, but not sent yet are "
                f"{', '.join(self.pending)} ({why}); they are kept, and sent by the next program that uses "
                f"{self._fast.capabilities.location} as its fast tier."
            )

    def close(self, limit: float | None = None) -> None:
        """Flush, and send nothing more; see `flush`."""
        try:
            self.flush(limit)
        finally:
            self._sends = False
            self._uploader.stop()

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; see `Storage.write`."""
        self._refuse_taken(path)
        if _stays(path):
            return self._fast.write(path, chunks)
        stored: list[Stored] = []
        self._outbox.during(lambda: stored.append(self._fast.write(path, chunks)), Action.SEND, path, source=path)
        self._wake()
        return stored[0]

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """The file's bytes; see `Storage.read`."""
        return self._tier_of(path).read(path, start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """The names in a folder of either tier; see `Storage.list`."""
        entries = {entry.name: entry for entry in self._remote.list(folder)}
        entries |= {entry.name: entry for entry in self._fast.list(folder)}
        if not folder:
            entries.pop(OUTBOX, None)
        return tuple(entry for _, entry in sorted(entries.items()))

    def move(self, source: str, destination: str) -> None:
        """Give something another name, in the slow tier later; see `Storage.move`."""
        self._refuse_taken(destination)
        _refuse_outbox(source)
        if not exists(self._fast, source):
            if not self._remote.has(source):
                self._fast.move(source, destination)  # which says what is wrong
            self._remote.move(source, destination)
            return
        if _stays(source) and not _stays(destination):
            move = lambda: self._outbox.moving(source, destination)  # noqa: E731
            self._outbox.during(move, Action.SEND, destination, source=destination)
        else:
            known = self._remote.expects(source)
            self._outbox.moving(source, destination)
            if known and _stays(destination):
                self._outbox.add(Action.REMOVE, source)
            elif known:
                self._outbox.add(Action.MOVE, source, destination)
        self._wake()

    def remove(self, path: str) -> None:
        """Remove a file or a folder, in the slow tier later; see `Storage.remove`."""
        _refuse_outbox(path)
        known = self._remote.expects(path)
        if exists(self._fast, path):
            self._remove_here(path)
        if known:
            self._outbox.add(Action.REMOVE, path)
        self._wake()

    def digest(self, path: str) -> Stored:
        """Size and digest of a file, read through."""
        return self._tier_of(path).digest(path)

    def _remove_here(self, path: str) -> None:
        sources = [errand.source for errand in self._outbox.pending() if errand.source]
        if any(is_within(source, path) for source in sources):
            self._outbox.hold(path)
        elif any(is_within(path, source) for source in sources):
            raise StorageError(
                f"You chose to remove {path} in {self.capabilities.location}, but it is part of something that is "
                "still to be sent; remove that as a whole, or try again once it is sent."
            )
        else:
            self._fast.remove(path)

    def _tier_of(self, path: str) -> Storage:
        _refuse_outbox(path)
        return self._slow if not exists(self._fast, path) and self._remote.has(path) else self._fast

    def _refuse_taken(self, path: str) -> None:
        """Raises StorageError where only the slow tier has something at a path; the fast one looks for itself."""
        _refuse_outbox(path)
        if _stays(path):
            return
        above = path.split("/")
        for depth in range(1, len(above)):
            folder, _, name = "/".join(above[:depth]).rpartition("/")
            if Entry(name, False) in self._remote.list(folder):
                raise _taken(path, self._slow)
        if self._remote.has(path):
            raise _taken(path, self._slow)

    def _has_something(self) -> bool:
        """Whether the fast tier holds anything: then it holds the newest, and a run goes on from it."""
        return any(not _stays(entry.name) for entry in self._fast.list(""))

    def _wake(self) -> None:
        if self._sends:
            self._uploader.wake()
        trouble = self._uploader.trouble
        if trouble is None or self._told is None:
            self._told = trouble
            if trouble is not None:
                warnings.warn(
                    f"Not everything that was saved is in {self._slow.capabilities.location} yet, and it is tried "
                    f"again and again while the run goes on: {trouble}",
                    stacklevel=3,
                )


def _stays(path: str) -> bool:
    """Whether something is never sent: it is under a name of which no reader takes notice."""
    return path.startswith(".")


def _refuse_outbox(path: str) -> None:
    if is_within(path, OUTBOX):
        raise StorageError(f"You chose the path {path!r}, but {OUTBOX} is the storage's own; choose another name.")


def _taken(path: str, slow: Storage) -> StorageError:
    return StorageError(
        f"You chose to write {path}, but {slow.capabilities.location} has something there already; remove it, or "
        "choose another name."
    )
