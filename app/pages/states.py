"""What a run is doing, or how it ended, in the same words wherever it is shown: one word, and what else is known."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from pathlib import Path

from hexloop.app.assembly.storage import as_location, is_elsewhere
from hexloop.app.checkpoint_rows import format_age
from hexloop.app.control.files import CommandFolder
from hexloop.app.pages.history import RecordedSession, RunEnding, RunHistory
from hexloop.app.pages.progress import RUNNING_FOR


class RunState(Enum):
    """The states of a run; the values are the words that users see.

    A run is lost if it did not report its end and has not reported for `RUNNING_FOR`.
    """

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    UNKNOWN = "unknown"


ENDED = {
    RunEnding.FINISHED: RunState.FINISHED,
    RunEnding.STOPPED: RunState.STOPPED,
    RunEnding.FAILED: RunState.FAILED,
}


def state_in(history: RunHistory, now: float, heard: float | None = None) -> RunState:
    """Return the state of a run. now, heard: in seconds since the epoch; heard: see `last_heard`."""
    sessions: list[RecordedSession] = history.sessions.entries
    if not sessions:
        return RunState.UNKNOWN
    if (ended := ENDED.get(sessions[-1].outcome)) is not None:
        return ended
    if now - max(history.seen or 0.0, heard or 0.0) >= RUNNING_FOR:
        return RunState.LOST
    return RunState.RUNNING if history.paused_at is None else RunState.PAUSED


def state_of(history: RunHistory, total: int | None, now: float, heard: float | None = None) -> str:
    """Return the state of a run with what else is known of it: a step, the reasons of a stop, for how long it is lost.

    total: how many steps the run is to have.
    """
    state = state_in(history, now, heard)
    sessions: list[RecordedSession] = history.sessions.entries
    detail = ""
    if state is RunState.UNKNOWN:
        detail = ": there is no journal"
    elif state is RunState.PAUSED:
        detail = f" at step {history.paused_at:,}"
    elif state is RunState.LOST:
        paused = "" if history.paused_at is None else f"it was paused at step {history.paused_at:,}, and "
        seen = max(history.seen or 0.0, heard or 0.0)
        detail = f": {paused}no report for {format_age(max(now - seen, 0.0))}" if seen else ": it never reported"
    elif state is RunState.FINISHED and total and history.last_step < total:
        detail = f" early, at step {history.last_step:,} of {total:,}"
    elif state is not RunState.RUNNING and sessions[-1].reasons:
        detail = f": {'; '.join(sessions[-1].reasons)}"
    return f"{state.value}{detail}"


def session_state(session: RecordedSession, now: float, is_last: bool = True, heard: float | None = None) -> RunState:
    """Return the state of one session: how it ended, that it is running, or that it is lost. See `outcome_of`."""
    if (ended := ENDED.get(session.outcome)) is not None:
        return ended
    return RunState.RUNNING if is_last and now - max(session.seen or 0.0, heard or 0.0) < RUNNING_FOR else RunState.LOST


def outcome_of(session: RecordedSession, now: float, is_last: bool = True, heard: float | None = None) -> str:
    """Return how a session ended, in the words of `RunState`, or that it is running. is_last: whether none followed."""
    state = session_state(session, now, is_last, heard)
    if state is RunState.LOST:
        return f"{state.value}: it did not report its end"
    return f"{state.value}: {'; '.join(session.reasons)}" if session.reasons else state.value


def last_heard(folder: str, history: RunHistory) -> float | None:
    """Return when a run that has not ended last read commands, in seconds since the epoch; None if it does not.

    A run that is paused, or whose step takes long, reads commands although it logs nothing.
    """
    sessions: list[RecordedSession] = history.sessions.entries
    if not sessions or sessions[-1].outcome is not RunEnding.LOST or history.settings.get("board_control") is not True:
        return None
    if is_elsewhere(folder):
        return None
    with suppress(ValueError):  # a name that no file system has
        return CommandFolder(Path(as_location(folder)), history.name).listened_at()
    return None
