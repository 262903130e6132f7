"""A journal that cannot end a run."""

from __future__ import annotations

import warnings

from hexloop.ports.clock import Clock
from hexloop.ports.journal import Fact, Journal


class SteadyJournal:
    """Answers the Journal port on top of another that may fail: it is reported once, and then asked no more.

    Every note gets the fact `time`, in seconds of the epoch.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._failed = False

    def note(self, kind: str, **facts: Fact) -> None:
        """Pass the note on."""
        if self._failed:
            return
        try:
            self._journal.note(kind, time=self._clock.wall(), **facts)
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        """Close the journal, and give one that failed another chance with the next run."""
        try:
            self._journal.close()
        except Exception as error:
            self._fail(error)
        self._failed = False

    def _fail(self, error: Exception) -> None:
        self._failed = True
        warnings.warn(
            f"The journal {type(self._journal).__name__} failed ({type(error).__name__}: {error}); the run goes on "
            "without it. Make room for it, or choose journal='off'.",
            stacklevel=3,
        )
