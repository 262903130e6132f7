"""Who does the errands, behind everybody's back."""

from __future__ import annotations

import logging
import threading
import time

from hexloop.adapters.storage.tiered.outbox import Action, Errand, Outbox
from hexloop.adapters.storage.tiered.remote import Remote
from hexloop.ports.storage import Storage

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

    def _next(self, failures: int) -> Errand | None:
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

    def _do(self, errand: Errand) -> None:
        if errand.action is Action.REMOVE:
            self._remote.remove(errand.path)
        elif errand.action is Action.MOVE:
            self._remote.move(errand.path, errand.target)
        else:
            self._send(errand)

    def _send(self, errand: Errand) -> None:
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
