"""Storage of two tiers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial

from attrs import evolve

from hexloop.adapters.storage import exists, files_below
from hexloop.domain.checkpoints.manifest import MANIFEST, marks_unfinished
from hexloop.domain.delivery import PAUSES, Backoff, Delivery
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.domain.outbox import Intent, Outbox, is_within, move_earlier_outbox
from hexloop.domain.run_folder import OUTBOX, OWN, own_name
from hexloop.ports.storage import Entry, Publication, Storage, StorageCapabilities, Stored

_logger = logging.getLogger("hexloop.outbox")

UNRESPONSIVE_SECONDS = 60.0
"""Seconds for which a slow tier that did not respond is not asked for listings again."""


class TierAction(StrEnum):
    """What to do to the slow tier.

    SEND: upload the intent's `source`, a path of the fast tier, to `path`. MOVE: rename `path` to `target`. REMOVE:
    remove `path`.
    """

    SEND = "send"
    MOVE = "move"
    REMOVE = "remove"


class TieredStorage:
    """Storage adapter that writes to a fast storage and uploads the results to a slow one in the background.

    Unfinished saves, and other names that begin with a dot, stay in the fast tier. Everything else is uploaded, the
    manifest of a checkpoint last, and verified by reading it back. The slow tier passes through the states of the fast
    one in the same order: what is removed before it was uploaded is hidden, uploaded, and then removed there. Reads and
    listings fall back to the slow tier.

    A slow tier that fails is retried until it succeeds, with one warning per outage; the run continues. The outbox of
    pending operations is kept in the fast tier: if the process dies, the next one continues.

    Args:
        fast: a storage with durable writes and atomic moves, such as a local disk.
        slow: a storage that outlives it. Both must compute the same kind of digest.
        sends: whether this process uploads; if several share a fast tier, exactly one should.
        pauses: seconds between attempts; the last one repeats.
        limit: maximum number of seconds that the program waits at exit for pending uploads; it does not wait while the
            slow tier fails. Call `close` to be sure.
    """

    def __init__(
        self, fast: Storage, slow: Storage, sends: bool = True, pauses: tuple[float, ...] = PAUSES, limit: float = 600.0
    ) -> None:
        if fast.capabilities.publication is not Publication.RENAME:
            raise ConfigurationError(
                f"{fast.capabilities.location} cannot be the fast tier: it has no atomic rename. Choose a "
                "folder on this machine."
            )
        self._fast, self._slow = fast, slow
        move_earlier_outbox(fast)
        self._outbox = Outbox(fast, takes_over=sends, actions=frozenset(TierAction))
        self._remote = Remote(fast, slow, self._outbox)
        self._uploader = Delivery(self._outbox, self._remote.carry_out, Backoff(pauses), limit)
        self._sends = sends
        self._warned: str | None = None
        self._wake()

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of the fast tier; the location names both."""
        fast, slow = self._fast.capabilities, self._slow.capabilities
        location = f"{fast.location}, and then {slow.location}"
        return evolve(fast, publication=Publication.RENAME, location=location)

    @property
    def pending(self) -> tuple[str, ...]:
        """The paths whose latest state is not in the slow tier yet, oldest first."""
        return tuple(dict.fromkeys(intent.path for intent in self._outbox.pending()))

    def flush(self, limit: float | None = None) -> None:
        """Wait until the slow tier has everything, for at most `limit` seconds (None: without limit).

        Args:
            limit: the most seconds to wait; None for no limit.

        Raises:
            StorageError: otherwise, with what is pending and why; it is kept and uploaded later.
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
        """Flush, then stop uploading; see `flush`.

        Args:
            limit: the most seconds to wait; None for no limit.
        """
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
        stored = self._outbox.during(partial(self._fast.write, path, chunks), TierAction.SEND, path, source=path)
        self._wake()
        return stored

    def sync(self, paths: Sequence[str]) -> None:
        """Make files durable in the fast tier; see `Storage.sync`. Those that only the slow tier has are durable."""
        self._fast.sync([path for path in paths if exists(self._fast, path)])

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Return the file's bytes; see `Storage.read`."""
        return self._tier_of(path).read(path, start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder of either tier; see `Storage.list`."""
        entries = {entry.name: entry for entry in self._remote.list(folder)}
        entries |= {entry.name: entry for entry in self._fast.list(folder)}
        own = {entry.name for entry in self._fast.list(OWN)} if folder in ("", OWN) else set()
        if folder == OWN:
            entries.pop(own_name(OUTBOX), None)
        elif own == {own_name(OUTBOX)} and not folder:
            entries.pop(OWN, None)
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
            move = partial(self._outbox.moving, source, destination)
            self._outbox.during(move, TierAction.SEND, destination, source=destination)
        else:
            known = self._remote.expects(source)
            self._outbox.moving(source, destination)
            if known and _is_local_only(destination):
                self._outbox.add(TierAction.REMOVE, source)
            elif known:
                self._outbox.add(TierAction.MOVE, source, destination)
        self._wake()

    def remove(self, path: str) -> None:
        """Remove a file or a folder, later in the slow tier; see `Storage.remove`."""
        _refuse_outbox(path)
        known = self._remote.expects(path)
        if exists(self._fast, path):
            self._remove_here(path)
        if known:
            self._outbox.add(TierAction.REMOVE, path)
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
        names = path.split("/")
        below_file = any(
            Entry(names[depth], False) in self._remote.list("/".join(names[:depth])) for depth in range(len(names) - 1)
        )
        if below_file or self._remote.has(path):
            raise StorageError(
                f"Cannot write {path}: it exists already in {self._slow.capabilities.location}. Remove it, or choose "
                "another name."
            )

    def _wake(self) -> None:
        if self._sends:
            self._uploader.wake()
        trouble = self._uploader.trouble
        if trouble is None or self._warned is None:
            self._warned = trouble
            if trouble is not None:
                _logger.warning(
                    "Uploading to %s failed and is retried while the run continues: %s",
                    self._slow.capabilities.location,
                    trouble,
                )


class Remote:
    """The contents of the slow tier, less what is about to be moved or removed there, and the operations on it.

    Listings are cached, because only this process changes the slow tier. While the slow tier does not respond, it
    counts as empty if the fast tier holds anything: then that has the newest checkpoint to resume from.

    Args:
        fast: the storage that the run writes to.
        slow: the storage that receives everything.
        outbox: what the slow tier does not have yet.
    """

    def __init__(self, fast: Storage, slow: Storage, outbox: Outbox) -> None:
        self._fast, self._slow, self._outbox = fast, slow, outbox
        self._listings: dict[str, tuple[Entry, ...]] = {}
        self._changes = 0
        self._unresponsive_until = -float("inf")
        self._lock = threading.Lock()

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder.

        Args:
            folder: a path on the slow tier.

        Raises:
            StorageError: if the slow tier does not respond and is needed.
        """
        leaving = [intent.path for intent in self._outbox.pending() if intent.action != TierAction.SEND]
        prefix = f"{folder}/" if folder else ""
        return tuple(
            entry
            for entry in self._listing(folder)
            if not any(is_within(f"{prefix}{entry.name}", path) for path in leaving)
        )

    def has(self, path: str) -> bool:
        """Return whether there is a file or a folder at `path`.

        Args:
            path: a path on the slow tier.
        """
        folder, _, name = path.rpartition("/")
        return name in {entry.name for entry in self.list(folder)}

    def expects(self, path: str) -> bool:
        """Return whether there is something at `path`, or will be after all intents.

        Args:
            path: a path on the slow tier.
        """
        sent = (intent.path for intent in self._outbox.pending() if intent.action == TierAction.SEND)
        return any(is_within(each, path) or is_within(path, each) for each in sent) or self.has(path)

    def carry_out(self, intent: Intent) -> None:
        """Carry out an intent. If its source is moved meanwhile, the upload starts again from there.

        Args:
            intent: what to do on the slow tier.
        """
        if not _is_possible(intent):
            _logger.warning("%s in %s is not carried out: no program of hexloop has made it.", intent.name, OUTBOX)
            return
        if intent.action == TierAction.MOVE:
            self.move(intent.path, intent.target)
            return
        if intent.action == TierAction.REMOVE:
            with self._changing():
                self._slow.remove(f"{intent.path}/{MANIFEST}")
                self._slow.remove(intent.path)
            return
        uploaded = None
        while uploaded != (intent := self._outbox.current(intent)):
            try:
                self._send(intent)
            except Exception:
                if self._outbox.current(intent) == intent:
                    raise
            uploaded = intent

    def move(self, source: str, destination: str) -> None:
        """Rename; the manifest of a checkpoint moves first, so that a partial copy never counts as a checkpoint.

        Args:
            source: the present path.
            destination: the new path.
        """
        with self._changing():
            paths = sorted(files_below(self._slow, source), key=lambda path: path != f"{source}/{MANIFEST}")
            for path in paths:
                target = destination + path.removeprefix(source)
                if exists(self._slow, target):  # left by an earlier attempt
                    if self._slow.digest(target) == self._slow.digest(path):
                        self._slow.remove(path)
                        continue
                    self._slow.remove(target)
                self._slow.move(path, target)
            self._slow.remove(source)  # empty folders, if the storage has such

    def _send(self, intent: Intent) -> None:
        """Upload the files of an intent, the manifest of a checkpoint last, and verify what arrived."""
        with self._changing():
            paths = list(files_below(self._fast, intent.source))
            for path in sorted(paths, key=lambda path: path == f"{intent.source}/{MANIFEST}"):
                self._upload_file(path, intent.path + path.removeprefix(intent.source))

    def _upload_file(self, path: str, target: str) -> None:
        if exists(self._slow, target):
            if self._slow.digest(target) == self._fast.digest(path):
                return
            self._slow.remove(target)
        sent = self._slow.write(target, self._fast.read(path))
        self._slow.sync([target])
        if self._slow.digest(target) != sent:
            self._slow.remove(target)
            raise StorageError(
                f"The digest of {target} differs after the upload; check the connection, or the storage."
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Clear the cached listings afterwards."""
        try:
            yield
        finally:
            with self._lock:
                self._changes += 1
                self._listings.clear()

    def _listing(self, folder: str) -> tuple[Entry, ...]:
        if folder == OWN and Entry(OWN, True) not in self._listing(""):
            return ()  # saves a request, which a storage that does not respond would refuse
        with self._lock:
            if folder in self._listings:
                return self._listings[folder]
            changes = self._changes
            unresponsive = time.monotonic() < self._unresponsive_until
        if unresponsive and self._may_do_without():
            return ()
        try:
            found = self._slow.list(folder)
        except StorageError:
            self._unresponsive_until = time.monotonic() + UNRESPONSIVE_SECONDS
            if self._may_do_without():
                return ()
            raise
        with self._lock:
            if changes == self._changes:
                self._listings[folder] = found
        return found

    def _may_do_without(self) -> bool:
        return any(not _is_local_only(entry.name) for entry in self._fast.list(""))


def _is_local_only(path: str) -> bool:
    """Return whether a path is never uploaded: hidden ones, except what is in hexloop's own folder for good."""
    if is_within(path, OWN):
        inner = "/".join(path.split("/")[:2])
        return path == OWN or inner == OUTBOX or marks_unfinished(inner)
    return path.startswith(".")


def _is_possible(intent: Intent) -> bool:
    """Return whether hexloop can have made an intent. Others may write to the folder that has the outbox."""
    if intent.action == TierAction.REMOVE:
        return bool(intent.path) and not is_within(intent.path, OUTBOX) and not is_within(OUTBOX, intent.path)
    if intent.action == TierAction.MOVE:
        return not any(not path or _is_local_only(path) for path in (intent.path, intent.target))
    is_source = bool(intent.source) and not is_within(OUTBOX, intent.source)
    return is_source and bool(intent.path) and not _is_local_only(intent.path)


def _refuse_outbox(path: str) -> None:
    if is_within(path, OUTBOX):
        raise StorageError(f"The path {path!r} is reserved: {OUTBOX} belongs to the storage. Choose another name.")
