"""The slow tier: as it is seen while errands to it are not done, and how they are done."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from hexloop.adapters.storage.tiered.outbox import Action, Intent, Outbox, exists, is_within
from hexloop.domain.checkpoints.names import MANIFEST
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Entry, Storage

SILENCE = 60.0
"""Seconds for which a slow tier that did not answer is not asked again what it holds."""


class Remote:
    """What the slow tier holds, less what is to be moved or removed there.

    Its listings are kept, because this process alone is to change it. Where it does not answer, it counts as empty as
    long as `may_do_without` says so.
    """

    def __init__(self, slow: Storage, outbox: Outbox, may_do_without: Callable[[], bool]) -> None:
        self.storage = slow
        self._outbox = outbox
        self._may_do_without = may_do_without
        self._listings: dict[str, tuple[Entry, ...]] = {}
        self._changes = 0
        self._silent_until = -float("inf")
        self._lock = threading.Lock()

    def list(self, folder: str) -> tuple[Entry, ...]:
        """The names in a folder. Raises StorageError where it does not answer and cannot be done without."""
        going = [errand.path for errand in self._outbox.pending() if errand.action is not Action.SEND]
        prefix = f"{folder}/" if folder else ""
        return tuple(
            entry
            for entry in self._listing(folder)
            if not any(is_within(f"{prefix}{entry.name}", path) for path in going)
        )

    def has(self, path: str) -> bool:
        """Whether there is a file or a folder at `path`."""
        folder, _, name = path.rpartition("/")
        return name in {entry.name for entry in self.list(folder)}

    def expects(self, path: str) -> bool:
        """Whether there is something at `path`, or will be once all errands are done."""
        sent = (errand.path for errand in self._outbox.pending() if errand.action is Action.SEND)
        return any(is_within(each, path) or is_within(path, each) for each in sent) or self.has(path)

    def changed(self) -> None:
        """Forget the listings."""
        with self._lock:
            self._changes += 1
            self._listings.clear()

    def move(self, source: str, destination: str) -> None:
        """Give something another name: a checkpoint's manifest goes first, so that no half of it counts as one."""
        try:
            paths = sorted(files_below(self.storage, source), key=lambda path: path != f"{source}/{MANIFEST}")
            for path in paths:
                target = destination + path.removeprefix(source)
                if exists(self.storage, target):  # an earlier attempt came so far
                    if self.storage.digest(target) == self.storage.digest(path):
                        self.storage.remove(path)
                        continue
                    self.storage.remove(target)
                self.storage.move(path, target)
            self.storage.remove(source)  # folders without files, where there is such a thing
        finally:
            self.changed()

    def remove(self, path: str) -> None:
        """Remove something, a checkpoint's manifest first."""
        try:
            self.storage.remove(f"{path}/{MANIFEST}")
            self.storage.remove(path)
        finally:
            self.changed()

    def send(self, fast: Storage, errand: Intent) -> None:
        """Bring what an errand names, a checkpoint's manifest last, and read back what arrived."""
        try:
            paths = list(files_below(fast, errand.source))
            for path in sorted(paths, key=lambda path: path == f"{errand.source}/{MANIFEST}"):
                self._send_file(fast, path, errand.path + path.removeprefix(errand.source))
        finally:
            self.changed()

    def _send_file(self, fast: Storage, path: str, target: str) -> None:
        if exists(self.storage, target):
            if self.storage.digest(target) == fast.digest(path):
                return
            self.storage.remove(target)
        sent = self.storage.write(target, fast.read(path))
        if self.storage.digest(target) != sent:
            self.storage.remove(target)
            raise StorageError(f"{target} did not arrive as it was sent; check the connection, or the storage.")

    def _listing(self, folder: str) -> tuple[Entry, ...]:
        with self._lock:
            if folder in self._listings:
                return self._listings[folder]
            changes = self._changes
            silent = time.monotonic() < self._silent_until
        if silent and self._may_do_without():
            return ()
        try:
            found = self.storage.list(folder)
        except StorageError:
            self._silent_until = time.monotonic() + SILENCE
            if self._may_do_without():
                return ()
            raise
        with self._lock:
            if changes == self._changes:
                self._listings[folder] = found
        return found


def files_below(storage: Storage, path: str) -> Iterator[str]:
    """The path of the file at `path`, or of every file in the folder there, however deep."""
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
    """A thread that lives while there are errands: one at a time, in order, each until it is done.

    pauses: seconds before each further attempt, the last of them again and again. A program that ends waits for it, as
    long as nothing fails, and at most `limit` seconds; what is not done then, the next one with the same outbox does.
    trouble: why the present errand is not done yet; None where there is no trouble.
    """

    def __init__(self, fast: Storage, remote: Remote, outbox: Outbox, pauses: tuple[float, ...], limit: float) -> None:
        self._fast, self._remote, self._outbox = fast, remote, outbox
        self._pauses, self._limit = pauses, limit
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._ends_at: float | None = None
        self.trouble: str | None = None

    def wake(self) -> None:
        """Make sure that whatever is in the outbox gets done."""
        with self._outbox.changed:
            if not self._stopped and self._thread is None and self._outbox.pending():
                self._thread = threading.Thread(target=self._run, name="hexloop sends what is saved")
                self._thread.start()

    def stop(self) -> None:
        """Let the errand in hand come to its end, or its attempt fail, and begin no other one."""
        with self._outbox.changed:
            self._stopped = True
            self._outbox.changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        failures = 0
        while (errand := self._next(failures)) is not None:
            try:
                self._do(errand)
            except Exception as error:
                self.trouble = str(error)
                logger.log(
                    logging.DEBUG if failures else logging.WARNING,
                    "%s is not sent yet, and kept to be sent again: %s",
                    errand.path,
                    error,
                )
                failures += 1
            else:
                failures, self.trouble = 0, None
                self._outbox.done(errand)

    def _next(self, failures: int) -> Intent | None:
        """The next errand, after a pause where the last attempt failed; None where this thread is to end."""
        pause = self._pauses[min(failures, len(self._pauses)) - 1] if failures else 0.0
        ready_at = time.monotonic() + pause
        with self._outbox.changed:
            while not self._stopped and not self._is_late(failures):
                errand = self._outbox.first()
                if errand is not None and time.monotonic() >= ready_at:
                    return errand
                if not self._outbox.pending():
                    break
                self._outbox.changed.wait(min(1.0, max(ready_at - time.monotonic(), 0.01)))
            self._thread = None
            return None

    def _is_late(self, failures: int) -> bool:
        """Whether the program, which is about to end, is not to wait any longer."""
        if threading.main_thread().is_alive():
            return False
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self._limit
        late = failures > 0 or time.monotonic() >= self._ends_at
        if late and self._outbox.pending():
            unsent = ", ".join(sorted({errand.path for errand in self._outbox.pending()}))
            logger.warning("The program ends before this is sent, which the next one will do: %s", unsent)
        return late

    def _do(self, errand: Intent) -> None:
        if errand.action is Action.REMOVE:
            self._remote.remove(errand.path)
        elif errand.action is Action.MOVE:
            self._remote.move(errand.path, errand.target)
        else:
            self._send(errand)

    def _send(self, errand: Intent) -> None:
        """Send something, from wherever it is by now."""
        while True:
            errand = self._outbox.current(errand)
            try:
                self._remote.send(self._fast, errand)
            except Exception:
                if self._outbox.current(errand) == errand:
                    raise
            if self._outbox.current(errand) == errand:
                return
