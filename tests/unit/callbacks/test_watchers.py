"""A failing logger never ends a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hexloop.domain.fail_safe import LoggerGroup
from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation

RUN = RunInformation("a run")
RECORD = Record(1, 0.5, {"loss": 1.0})


class Diary:
    """Records calls, and raises `error` in the call named `fails_at`."""

    def __init__(self, fails_at: str = "", error: BaseException | None = None) -> None:
        self.calls: list[object] = []
        self._fails_at, self._error = fails_at, error

    def start(self, run: RunInformation) -> str | None:
        self._note("start", run)
        return None

    def write(self, record: Record) -> None:
        self._note("write", record)

    def finish(self, outcome: Outcome = FINISHED) -> None:
        self._note("finish", "the end")

    def _note(self, action: str, what: object) -> None:
        self.calls.append(what)
        if action == self._fails_at and self._error is not None:
            raise self._error


ACTIONS: dict[str, Callable[[LoggerGroup], None]] = {
    "start": lambda watchers: watchers.start(RUN),
    "write": lambda watchers: watchers.write(RECORD),
    "finish": lambda watchers: watchers.finish(),
}


def test_every_logger_receives_every_call_in_order() -> None:
    """Each logger receives the start, every record and the end."""
    first, second, warnings = Diary(), Diary(), list[str]()
    watchers = LoggerGroup([first, second], warnings.append)
    for act in ACTIONS.values():
        act(watchers)
    assert first.calls == second.calls == [RUN, RECORD, "the end"]
    assert warnings == []


@pytest.mark.parametrize("fails_at", list(ACTIONS))
def test_failing_logger_is_reported_once_and_removed(fails_at: str) -> None:
    """The failing logger is named in one warning and called no more; the others continue."""
    healthy, warnings = [Diary(), Diary()], list[str]()
    failing = Diary(fails_at, OSError("disk gone"))
    watchers = LoggerGroup([healthy[0], failing, healthy[1]], warnings.append)
    for _round in range(2):
        for act in ACTIONS.values():
            act(watchers)
    assert [diary.calls for diary in healthy] == [[RUN, RECORD, "the end"] * 2] * 2
    assert len(failing.calls) == 1 + list(ACTIONS).index(fails_at)
    [warning] = warnings
    assert all(part in warning for part in ("Diary", fails_at, "OSError: disk gone"))


def test_equal_loggers_are_distinguished() -> None:
    """Only the object that failed is removed, even if another compares equal."""

    class EqualToAll(Diary):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, EqualToAll)

        __hash__ = None  # type: ignore[assignment]

    healthy, failing = EqualToAll(), EqualToAll("start", ValueError())
    watchers = LoggerGroup([healthy, failing], lambda text: None)
    watchers.start(RUN)
    watchers.write(RECORD)
    assert healthy.calls == [RUN, RECORD]
    assert failing.calls == [RUN]


def test_keyboard_interrupt_in_a_logger_is_raised() -> None:
    """Control-C while a logger writes ends the run, and the logger is kept."""
    interrupted = Diary("write", KeyboardInterrupt())
    watchers = LoggerGroup([interrupted], pytest.fail)
    with pytest.raises(KeyboardInterrupt):
        watchers.write(RECORD)
    watchers.finish()
    assert interrupted.calls == [RECORD, "the end"]
