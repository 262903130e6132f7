"""The slow tier: its contents as of all pending intents, and the thread that carries the intents out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from hexloop.adapters.storage.tiered.outbox import Action, Intent, Outbox, exists, is_within
from hexloop.domain.checkpoints.manifest import MANIFEST
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Entry, Storage

UNRESPONSIVE_SECONDS = 60.0
"""Seconds for which a slow tier that did not respond is not asked for listings again."""


class Remote:
    """The contents of the slow tier, less what is about to be moved or removed there.

    Listings are cached, because only this process changes the slow tier. While the slow tier does not respond, it
    counts as empty if `may_do_without` returns True.
    """

    def __init__(self, slow: Storage, outbox: Outbox, may_do_without: Callable[[], bool]) -> None:
        self.storage = slow
        self._outbox = outbox
        self._may_do_without = may_do_without
        self._listings: dict[str, tuple[Entry, ...]] = {}
        self._changes = 0
        self._unresponsive_until = -float("inf")
        self._lock = threading.Lock()

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder. Raises StorageError if the slow tier does not respond and is needed."""
        leaving = [intent.path for intent in self._outbox.pending() if intent.action is not Action.SEND]
        prefix = f"{folder}/" if folder else ""
        return tuple(
            entry
            for entry in self._listing(folder)
            if not any(is_within(f"{prefix}{entry.name}", path) for path in leaving)
        )

    def has(self, path: str) -> bool:
        """Return whether there is a file or a folder at `path`."""
        folder, _, name = path.rpartition("/")
        return name in {entry.name for entry in self.list(folder)}

    def expects(self, path: str) -> bool:
        """Return whether there is something at `path`, or will be after all intents."""
        sent = (intent.path for intent in self._outbox.pending() if intent.action is Action.SEND)
        return any(is_within(each, path) or is_within(path, each) for each in sent) or self.has(path)

    def changed(self) -> None:
        """Clear the cached listings."""
        with self._lock:
            self._changes += 1
            self._listings.clear()

    def move(self, source: str, destination: str) -> None:
        """Rename; the manifest of a checkpoint moves first, so that a partial copy never counts as a checkpoint."""
        try:
            paths = sorted(files_below(self.storage, source), key=lambda path: path != f"{source}/{MANIFEST}")
            for path in paths:
                target = destination + path.removeprefix(source)
                if exists(self.storage, target):  # left by an earlier attempt
                    if self.storage.digest(target) == self.storage.digest(path):
                        self.storage.remove(path)
                        continue
                    self.storage.remove(target)
                self.storage.move(path, target)
            self.storage.remove(source)  # empty folders, if the storage has such
        finally:
            self.changed()

    def remove(self, path: str) -> None:
        """Remove something, the manifest of a checkpoint first."""
        try:
            self.storage.remove(f"{path}/{MANIFEST}")
            self.storage.remove(path)
        finally:
            self.changed()

    def send(self, fast: Storage, intent: Intent) -> None:
        """Upload the files of an intent, the manifest of a checkpoint last, and verify what arrived."""
        try:
            paths = list(files_below(fast, intent.source))
            for path in sorted(paths, key=lambda path: path == f"{intent.source}/{MANIFEST}"):
                self._upload_file(fast, path, intent.path + path.removeprefix(intent.source))
        finally:
            self.changed()

    def _upload_file(self, fast: Storage, path: str, target: str) -> None:
        if exists(self.storage, target):
            if self.storage.digest(target) == fast.digest(path):
                return
            self.storage.remove(target)
        sent = self.storage.write(target, fast.read(path))
        if self.storage.digest(target) != sent:
            self.storage.remove(target)
            raise StorageError(
                f"The digest of {target} differs after the upload; check the connection, or the storage."
            )

    def _listing(self, folder: str) -> tuple[Entry, ...]:
        with self._lock:
            if folder in self._listings:
                return self._listings[folder]
            changes = self._changes
            unresponsive = time.monotonic() < self._unresponsive_until
        if unresponsive and self._may_do_without():
            return ()
        try:
            found = self.storage.list(folder)
        except StorageError:
            self._unresponsive_until = time.monotonic() + UNRESPONSIVE_SECONDS
            if self._may_do_without():
                return ()
            raise
        with self._lock:
            if changes == self._changes:
                self._listings[folder] = found
        return found


def files_below(storage: Storage, path: str) -> Iterator[str]:
    """Yield the file at `path`, or every file below the folder there."""
    entries = storage.list(path)
    for entry in entries:
        inner = f"{path}/{entry.name}"
        if entry.is_folder:
            yield from files_below(storage, inner)
        else:
            yield inner
    if not entries:
        folder, _, name = path.rpartition("/")
        if Entry(name, False) in storage.list(folder):
            yield path


logger = logging.getLogger("hexloop.storage")


class Uploader:
    """Thread that carries out the intents one at a time, in order, retrying each until it succeeds; it ends when none
    is left.

    pauses: seconds before each retry; the last one repeats.
    limit: the program waits for this thread at exit for at most `limit` seconds, and only while nothing fails; the next
    process with the same outbox continues.
    trouble: why the current intent failed; None if it has not.
    """

    def __init__(self, fast: Storage, remote: Remote, outbox: Outbox, pauses: tuple[float, ...], limit: float) -> None:
        self._fast, self._remote, self._outbox = fast, remote, outbox
        self._pauses, self._limit = pauses, limit
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._ends_at: float | None = None
        self.trouble: str | None = None

    def wake(self) -> None:
        """Start the thread if there are pending intents."""
        with self._outbox.changed:
            if not self._stopped and self._thread is None and self._outbox.pending():
                self._thread = threading.Thread(target=self._run, name="hexloop upload")
                self._thread.start()

    def stop(self) -> None:
        """Finish the current intent, or its current attempt, and start no other."""
        with self._outbox.changed:
            self._stopped = True
            self._outbox.changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        failures = 0
        while (intent := self._next(failures)) is not None:
            try:
                self._do(intent)
            except Exception as error:
                self.trouble = str(error)
                logger.log(
                    logging.DEBUG if failures else logging.WARNING,
                    "Uploading %s failed and is retried: %s",
                    intent.path,
                    error,
                )
                failures += 1
            else:
                failures, self.trouble = 0, None
                self._outbox.done(intent)

    def _next(self, failures: int) -> Intent | None:
        """Return the next intent, after a pause if the last attempt failed; None if the thread is to end."""
        pause = self._pauses[min(failures, len(self._pauses)) - 1] if failures else 0.0
        ready_at = time.monotonic() + pause
        with self._outbox.changed:
            while not self._stopped and not self._is_late(failures):
                intent = self._outbox.first()
                if intent is not None and time.monotonic() >= ready_at:
                    return intent
                if not self._outbox.pending():
                    break
                self._outbox.changed.wait(min(1.0, max(ready_at - time.monotonic(), 0.01)))
            self._thread = None
            return None

    def _is_late(self, failures: int) -> bool:
        """Return whether the program is exiting and must not wait any longer."""
        if threading.main_thread().is_alive():
            return False
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self._limit
        late = failures > 0 or time.monotonic() >= self._ends_at
        if late and self._outbox.pending():
            unsent = ", ".join(sorted({intent.path for intent in self._outbox.pending()}))
            logger.warning("The program exits before everything is uploaded; the next one continues with: %s", unsent)
        return late

    def _do(self, intent: Intent) -> None:
        if intent.action is Action.REMOVE:
            self._remote.remove(intent.path)
        elif intent.action is Action.MOVE:
            self._remote.move(intent.path, intent.target)
        else:
            self._send(intent)

    def _send(self, intent: Intent) -> None:
        """Upload something from its current path, which may change meanwhile."""
        while True:
            intent = self._outbox.current(intent)
            try:
                self._remote.send(self._fast, intent)
            except Exception:
                if self._outbox.current(intent) == intent:
                    raise
            if self._outbox.current(intent) == intent:
                return
