"""What all loggers of trackers have in common, on a tracker that keeps its calls. Their libraries: tests/trackers."""

from __future__ import annotations

from typing import Any

import pytest

from hexloop.adapters.logger.tracker import Tracker, values_of
from hexloop.app.testing.contracts.environment import LoggerContract
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Logger, Outcome, Record, RunInformation

FAILED = Outcome("failed", "ValueError: no")


class Keeping(Tracker):
    """Tracker whose run is a list of what was done to it.

    given: a run of the user's. last: the step that the tracker has of every series.
    """

    def __init__(self, given: list[object] | None = None, last: int = -1, is_off: bool = False) -> None:
        super().__init__()
        self.given, self.last, self.is_off = given, last, is_off
        self.failures: list[Exception] = []
        self.runs: list[list[object]] = []
        self.asked: list[str] = []

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        if self.is_off:
            return None, False
        self.runs.append([] if self.given is None else self.given)
        return self.runs[-1], self.given is None

    def _describe(self, run: RunInformation) -> str | None:
        if self.failures:
            raise self.failures.pop()
        self._run.append(run.name)
        return run.tracked_as or "an id"

    def write(self, record: Record) -> None:
        if self._lacks("loss", record.step):
            self._last["loss"] = record.step
            self._run.append(record.step)

    def _last_step(self, series: str) -> int:
        self.asked.append(series)
        return self.last

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        run.append(values_of(outcome))

    def _close(self, run: Any, outcome: Outcome) -> None:
        if self.failures:
            raise self.failures.pop()
        run.append(f"closed as {outcome.kind}")


class TestKeeping(LoggerContract):
    @pytest.fixture
    def logger(self) -> Logger:
        return Keeping()


def test_an_own_run_is_closed() -> None:
    """Once, and with the outcome."""
    tracker = Keeping()
    assert tracker.start(RunInformation("a run")) == "an id"
    tracker.finish(FAILED)
    tracker.finish()
    values = {"hexloop/outcome": "failed", "hexloop/problem": "ValueError: no"}
    assert tracker.runs == [["a run", values, "closed as failed"]]


def test_a_start_that_failed_is_repeated_on_the_same_run() -> None:
    """The run that it opened is not ended as finished, and no second one is opened."""
    tracker = Keeping()
    tracker.failures = [ConnectionError("gone")]
    with pytest.raises(ConnectionError):
        tracker.start(RunInformation("a run", run="one"))
    assert tracker.start(RunInformation("a run", run="one")) == "an id"
    assert tracker.runs == [["a run"]]


def test_a_finish_that_failed_is_repeated() -> None:
    """The run is closed by the second call."""
    tracker = Keeping()
    tracker.start(RunInformation("a run"))
    tracker.failures = [ConnectionError("gone")]
    with pytest.raises(ConnectionError):
        tracker.finish()
    tracker.finish()
    assert tracker.runs[0][-1] == "closed as finished"


def test_a_run_that_cannot_be_finished_does_not_prevent_the_next() -> None:
    """The start that finds it fails once."""
    tracker = Keeping()
    tracker.start(RunInformation("a run", run="one"))
    tracker.failures = [ConnectionError("gone")]
    with pytest.raises(ConnectionError):
        tracker.start(RunInformation("another", run="two"))
    tracker.start(RunInformation("another", run="two"))
    assert tracker.runs[1] == ["another"]


def test_a_run_of_the_users_stays_open() -> None:
    """It only learns the outcome."""
    mine: list[object] = ["mine"]
    tracker = Keeping(mine)
    tracker.start(RunInformation("a run"))
    tracker.finish()
    assert mine == ["mine", "a run", {"hexloop/outcome": "finished"}]


def test_a_new_run_finishes_the_one_before() -> None:
    """Also if the run before was not finished."""
    tracker = Keeping()
    tracker.start(RunInformation("first"))
    tracker.start(RunInformation("second"))
    assert tracker.runs[0][-1] == "closed as finished"
    assert tracker.runs[1] == ["second"]


def test_a_step_that_the_tracker_has_is_left_out() -> None:
    """Each series of a run is asked for once."""
    tracker = Keeping(last=20)
    for _ in range(2):
        tracker.start(RunInformation("a run", tracked_as="an id", step=20))
        for step in (20, 30, 30):
            tracker.write(Record(step, 0.0, {"loss": 1.0}))
    assert [run[:2] for run in tracker.runs] == [["a run", 30]] * 2
    assert tracker.asked == ["loss", "loss"]


def test_a_tracker_may_be_off() -> None:
    """Then there is no run, and no identity."""
    tracker = Keeping(is_off=True)
    assert tracker.start(RunInformation("a run")) is None
    tracker.finish()
    assert tracker.runs == []


def test_a_missing_or_old_package_is_an_error() -> None:
    """It names what to install."""

    class Missing(Keeping):
        package = ("hexloop_no_such_module", "no-such-module", "wandb", "1.0")

    class Old(Keeping):
        package = ("attr", "attrs", "wandb", "9999.1")

    with pytest.raises(ConfigurationError, match=r"requires no-such-module, .*pip install no-such-module"):
        Missing()
    with pytest.raises(ConfigurationError, match=r"requires attrs 9999\.1 or later, not "):
        Old()
