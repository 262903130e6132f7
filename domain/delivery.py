"""The thread that works off an outbox: one attempt at a time, in order, again after a pause when one fails."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from attrs import field, frozen

from hexloop.domain.errors import RefusedError, UnavailableError
from hexloop.domain.outbox import Intent, Outbox

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds before each retry; the last one repeats."""

LONGEST_HINT = 3600.0
"""Seconds: a destination that asks for a longer pause is asked again after this time."""

logger = logging.getLogger("hexloop.outbox")


@frozen
class Backoff:
    """How long to wait before the next attempt.

    Args:
        pauses: seconds after each failure; the last one repeats.
        jitter: the largest part of a pause that is added to it by chance, so that processes that failed together do not
            retry together. The chance is the system's own: the random generators of Python belong to the run.
        chance: returns a number between 0 and 1.
    """

    pauses: tuple[float, ...] = PAUSES
    jitter: float = 0.25
    chance: Callable[[], float] = field(factory=lambda: random.SystemRandom().random)

    def pause(self, failures: int, hint: float | None = None) -> float:
        """Return the seconds to wait after `failures` attempts in a row, at least those that the destination asks for.

        Args:
            failures: how many attempts failed in a row.
            hint: the seconds that the destination asked for, None if it did not.
        """
        pause = self.pauses[min(failures, len(self.pauses)) - 1]
        return max(pause * (1 + self.jitter * self.chance()), min(hint or 0.0, LONGEST_HINT))


class RateLimit:
    """At most `burst` actions at once, and one more every `seconds`. Thread-safe for one user.

    Args:
        burst: how many actions may start at once.
        seconds: after how many seconds another one may start.
        monotonic: returns the seconds of a clock that never goes back.
    """

    def __init__(self, burst: int, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._seconds, self._monotonic = burst, seconds, monotonic
        self._left, self._at = float(burst), monotonic()

    def wait(self) -> float:
        """Return the seconds until the next action is allowed."""
        self._refill()
        return max(0.0, (1 - self._left) * self._seconds)

    def take(self) -> None:
        """Count an action."""
        self._refill()
        self._left -= 1

    def _refill(self) -> None:
        now = self._monotonic()
        if self._seconds > 0:
            self._left = min(self._burst, self._left + (now - self._at) / self._seconds)
        self._at = now


NO_RATE_LIMIT = RateLimit(1, 0.0)


class Delivery:
    """Thread that carries out the intents one at a time, in order, retrying each until it succeeds; it ends when none
    is left.

    Args:
        outbox: the pending intents.
        carry_out: carries out an intent. Raises RefusedError if the destination will not accept it, in which case it is
            kept for the user and the next one follows; any other exception means that it is retried.
        backoff: how long to wait after failures.
        limit: the program waits for this thread at exit for at most `limit` seconds, and only while nothing fails; the
            next process with the same outbox continues. With 0 it does not wait, not even for an attempt.
        rate: how often attempts are made.
        name: the name of the thread.

    Attributes:
        trouble: why the current intent failed; None if it has not.
    """

    def __init__(
        self,
        outbox: Outbox,
        carry_out: Callable[[Intent], None],
        backoff: Backoff,
        limit: float,
        rate: RateLimit = NO_RATE_LIMIT,
        name: str = "hexloop upload",
    ) -> None:
        self._outbox, self._carry_out, self._backoff, self._limit = outbox, carry_out, backoff, limit
        self._rate, self._name = rate, name
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._hurried = False
        self._ends_at: float | None = None
        self._attempts = False
        self._then: Callable[[], None] | None = None
        self.trouble: str | None = None

    def wake(self) -> None:
        """Start the thread if there are deliverable intents."""
        with self._outbox.changed:
            if not self._stopped and self._thread is None and self._outbox.deliverable():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=self._limit == 0)
                self._thread.start()

    def finish(self, limit: float | None = None, report: Callable[[int], None] = lambda left: None) -> bool:
        """Wait until nothing deliverable is left, at most `limit` seconds (None: without limit); return whether.

        The first attempt does not wait for a pause, unless the destination asked for it.

        Args:
            limit: seconds; None for no limit.
            report: is called with the number of intents left: before the first attempt, about once a second and at each
                change.
        """
        ends_at = float("inf") if limit is None else time.monotonic() + limit
        with self._outbox.changed:
            self.wake()
            self._hurried = True
            self._outbox.changed.notify_all()
            while (left := len(self._outbox.deliverable())) and not self._stopped and time.monotonic() < ends_at:
                report(left)
                self._outbox.changed.wait(min(1.0, max(ends_at - time.monotonic(), 0.0)))
            return not left

    def stop(self, wait: bool = True, then: Callable[[], None] | None = None) -> None:
        """Finish the current intent, or its current attempt, and start no other.

        Args:
            wait: return when the thread has ended.
            then: is called once nothing is attempted, now or by the thread.
        """
        with self._outbox.changed:
            self._stopped = True
            self._outbox.changed.notify_all()
            thread = self._thread
            attempts = self._attempts
            if attempts and then is not None:
                self._then = then
        if not attempts and then is not None:
            then()
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        failures, hint = 0, None
        while (intent := self._next(failures, hint)) is not None:
            try:
                failures, hint = self._attempt(intent, failures)
            finally:
                with self._outbox.changed:
                    self._attempts, then, self._then = False, self._then, None
                if then is not None:
                    then()

    def _attempt(self, intent: Intent, failures: int) -> tuple[int, float | None]:
        """Carry out an intent; return the failures in a row, and the pause that the destination asks for."""
        self._rate.take()
        try:
            self._carry_out(intent)
        except Exception as error:
            refused = isinstance(error, RefusedError)
            if intent.number in {each.number for each in self._outbox.pending()}:  # it was not dropped meanwhile
                self.trouble = str(error)
                level = logging.DEBUG if failures and not refused else logging.WARNING
                outcome = "was refused" if refused else "failed and is retried"
                logger.log(level, "Uploading %s %s: %s", intent.path, outcome, error)
            with self._outbox.changed:  # a caller to whom nothing is left sees no attempt either
                self._attempts = False
                self._outbox.fail(intent, str(error) or type(error).__name__, refused)
            return 0 if refused else failures + 1, error.retry_after if isinstance(error, UnavailableError) else None
        self.trouble = None
        with self._outbox.changed:
            self._attempts = False
            self._outbox.done(intent)
        return 0, None

    def _next(self, failures: int, hint: float | None) -> Intent | None:
        """Return the next intent, after a pause if the last attempt failed; None if the thread is to end."""
        started = time.monotonic()
        ready_at = started + (self._backoff.pause(failures, hint) if failures else 0.0)
        with self._outbox.changed:
            while not self._stopped and not self._is_late(failures):
                if self._hurried:
                    ready_at, self._hurried = min(ready_at, started + (hint or 0.0)), False
                intent = self._outbox.first()
                wait = max(ready_at - time.monotonic(), self._rate.wait())
                if intent is not None and wait <= 0:
                    self._outbox.begin(intent)
                    self._attempts = True
                    return intent
                if not self._outbox.deliverable():
                    break
                self._outbox.changed.wait(min(1.0, max(wait, 0.01)))
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
