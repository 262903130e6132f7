"""How far a run is: steps done and planned, percent, and the time left. The list of runs and a run's page share it."""

from __future__ import annotations

from attrs import frozen

from hexloop.app.callbacks.console import duration_text
from hexloop.app.pages.history import RecordedSession, RunEnding, RunHistory, step_in
from hexloop.domain.state import LONGEST_TIME

RUNNING_FOR = 600.0
"""Seconds without a report after which a run is taken for lost."""

RECENT_LOGS = 20
"""How many of the last logs the speed is measured over."""


@frozen
class Progress:
    """How far a run is. step, total: optimizer steps done and planned; total is None if it is not known.

    seconds_left: an estimate from the speed of the last logs, evaluations and saves included. None if it is not known,
    or the run is not training: paused, finished, stopped, failed or lost.
    """

    step: int
    total: int | None
    seconds_left: float | None

    @property
    def fraction(self) -> float | None:
        """The part of the steps that is done, from 0 to 1; None if the total is not known."""
        return min(self.step / self.total, 1.0) if self.total else None

    @property
    def steps_text(self) -> str:
        """The steps in words: "1,200 of 3,000 (40%)", or "1,200" without a total. 100% means all of them."""
        if not self.total or self.fraction is None:
            return f"{self.step:,}"
        return f"{self.step:,} of {self.total:,} ({int(self.fraction * 100)}%)"

    @property
    def left_text(self) -> str:
        """The time left in words, such as "0:12:34"; "-" if it is not known."""
        if self.seconds_left is None:
            return "-"
        return duration_text(round(self.seconds_left)) if self.seconds_left >= 1 else "under 1 s"


def progress_of(history: RunHistory, now: float, total: int | None = None) -> Progress:
    """Return how far a run is.

    Args:
        history: Of the run. The notes of both ends of its journal are enough.
        now: In seconds since the epoch.
        total: The planned steps, if they are known from elsewhere; otherwise those of the journal.
    """
    planned = total or total_steps(history)
    left = None
    if planned is not None and is_training(history, now):
        pace, seen = seconds_per_step(history), history.seen
        if pace is not None and seen is not None:
            estimate = max((planned - history.last_step) * pace - max(now - seen, 0.0), 0.0)
            left = estimate if estimate < LONGEST_TIME else None
    return Progress(history.last_step, planned, left)


def total_steps(history: RunHistory) -> int | None:
    """Return how many steps a run is to have, as far as its journal tells."""
    return history.total_steps or step_in(history.settings.get("max_steps")) or None


def is_training(history: RunHistory, now: float) -> bool:
    """Return whether a run makes steps, as far as its last report tells: neither ended nor paused, and not silent."""
    sessions: list[RecordedSession] = history.sessions.entries
    if not sessions or sessions[-1].outcome is not RunEnding.LOST or history.paused_at is not None:
        return False
    return history.seen is not None and now - history.seen < RUNNING_FOR


def seconds_per_step(history: RunHistory) -> float | None:
    """Return the time of a step since the last start, resume or pause, over the last logs; None without two reports."""
    session: RecordedSession = history.sessions.entries[-1]
    continued, at = history.continued_at
    points = [
        (step, time)
        for step, time in zip(history.times.steps[-RECENT_LOGS:], history.times.values[-RECENT_LOGS:], strict=True)
        if step > continued
    ]
    if len(points) == 1 and at is not None:
        points.insert(0, (continued, at))
    if len(points) < 2 and session.began is not None and session.seen is not None:
        points = [(session.first, session.began), (session.last, session.seen)]
    if len(points) < 2:
        return None
    (first, began), (last, seen) = points[0], points[-1]
    return (seen - began) / (last - first) if last > first and seen >= began else None
