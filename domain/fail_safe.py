"""Output that never fails a run: a group of loggers, and a journal, whose errors are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from hexloop.ports.logger import FINISHED, Fact, Journal, Logger, Outcome, Record, RunInformation
from hexloop.ports.process import Clock


class LoggerGroup:
    """Passes each call on to several loggers. A logger that raises an Exception is reported to `warn` and removed.

    Other exceptions, such as KeyboardInterrupt, propagate.
    """

    def __init__(self, loggers: Iterable[Logger], warn: Callable[[str], None]) -> None:
        self._loggers = list(loggers)
        self._warn = warn

    def start(self, run: RunInformation) -> None:
        """Start every logger."""
        self._call("start", lambda logger: logger.start(run))

    def write(self, record: Record) -> None:
        """Write a record to every logger."""
        self._call("write", lambda logger: logger.write(record))

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Finish every logger."""
        self._call("finish", lambda logger: logger.finish(outcome))

    def _call(self, action: str, call: Callable[[Logger], object]) -> None:
        for logger in list(self._loggers):
            try:
                call(logger)
            except Exception as error:
                self._loggers = [other for other in self._loggers if other is not logger]
                self._warn(
                    f"The logger {type(logger).__name__} failed to {action} ({type(error).__name__}: {error}). "
                    "The run continues without it. Fix or remove the logger before the next run."
                )


class FailSafeJournal:
    """A Journal on top of another one. The first error of that one is logged, and it is not called again.

    Adds the fact `time`, in seconds since the epoch, to every note.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._failed = False

    def note(self, kind: str, **facts: Fact) -> None:
        """Add a note with the current time."""
        if self._failed:
            return
        try:
            self._journal.note(kind, time=self._clock.wall(), **facts)
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        """Close the journal. After an error it is used again from the next run on."""
        try:
            self._journal.close()
        except Exception as error:
            self._fail(error)
        self._failed = False

    def _fail(self, error: Exception) -> None:
        self._failed = True
        logging.getLogger("hexloop").warning(
            "The journal %s failed (%s: %s). The run continues without it. Make its file writable, or set "
            "journal='off'.",
            type(self._journal).__name__,
            type(error).__name__,
            error,
        )
