"""No watcher can end a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hexloop.domain.fail_safe import LoggerGroup
from hexloop.ports.logger import Record, RunInformation

RUN = RunInformation("a run")
RECORD = Record(1, 0.5, {"loss": 1.0})


class Diary:
    """A logger that notes what it is told, and raises `error` where it is told `fails_at`."""

    def __init__(self, fails_at: str = "", error: BaseException | None = None) -> None:
        self.told: list[object] = []
        self._fails_at, self._error = fails_at, error

    def start(self, run: RunInformation) -> None:
        self._note("start", run)

    def write(self, record: Record) -> None:
        self._note("write", record)

    def finish(self) -> None:
        self._note("finish", "the end")

    def _note(self, action: str, what: object) -> None:
        self.told.append(what)
        if action == self._fails_at and self._error is not None:
            raise self._error


ACTIONS: dict[str, Callable[[LoggerGroup], None]] = {
    "start": lambda watchers: watchers.start(RUN),
    "write": lambda watchers: watchers.write(RECORD),
    "finish": lambda watchers: watchers.finish(),
}


def test_every_logger_is_told_everything_in_order() -> None:
    """Each logger hears of the start, of every record and of the end."""
    first, second, warnings = Diary(), Diary(), list[str]()
    watchers = LoggerGroup([first, second], warnings.append)
    for act in ACTIONS.values():
        act(watchers)
    assert first.told == second.told == [RUN, RECORD, "the end"]
    assert warnings == []


@pytest.mark.parametrize("fails_at", list(ACTIONS))
def test_a_failing_logger_is_reported_once_and_left_out(fails_at: str) -> None:
    """The others go on hearing everything; the one that failed hears no more and is named in one warning."""
    healthy, warnings = [Diary(), Diary()], list[str]()
    failing = Diary(fails_at, OSError("disk gone"))
    watchers = LoggerGroup([healthy[0], failing, healthy[1]], warnings.append)
    for _round in range(2):
        for act in ACTIONS.values():
            act(watchers)
    assert [diary.told for diary in healthy] == [[RUN, RECORD, "the end"] * 2] * 2
    assert len(failing.told) == 1 + list(ACTIONS).index(fails_at)
    [warning] = warnings
    assert all(part in warning for part in ("Diary", fails_at, "OSError: disk gone"))


def test_loggers_that_are_equal_are_not_confused() -> None:
    """Only the very object that failed is left out, even where another compares equal."""

    class Alike(Diary):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Alike)

        __hash__ = None  # type: ignore[assignment]

    healthy, failing = Alike(), Alike("start", ValueError())
    watchers = LoggerGroup([healthy, failing], lambda text: None)
    watchers.start(RUN)
    watchers.write(RECORD)
    assert healthy.told == [RUN, RECORD]
    assert failing.told == [RUN]


def test_a_keyboard_interrupt_passes_through() -> None:
    """Whoever presses control-C while a logger writes ends the run, and the logger stays."""
    interrupted = Diary("write", KeyboardInterrupt())
    watchers = LoggerGroup([interrupted], pytest.fail)
    with pytest.raises(KeyboardInterrupt):
        watchers.write(RECORD)
    watchers.finish()
    assert interrupted.told == [RECORD, "the end"]
