"""Contract suites of the Background, Clock and Interrupts ports."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import monotonic, sleep

import pytest

from hexloop.ports.background import Background
from hexloop.ports.clock import Clock
from hexloop.ports.interrupts import Interrupts


class BackgroundContract:
    """Contract suite of the Background port."""

    @pytest.fixture
    def background(self) -> Background:
        """The adapter under test."""
        raise NotImplementedError

    def test_a_task_runs_once(self, background: Background) -> None:
        """After `wait`, the task has run once and is done, however often it is waited for."""
        calls: list[int] = []
        task = background.submit(lambda: calls.append(1), "a task")

        task.wait()
        task.wait()

        assert calls == [1]
        assert task.done

    def test_a_task_finishes_without_a_wait(self, background: Background) -> None:
        """Reading `done` is enough to see a task finish."""
        calls: list[int] = []
        task = background.submit(lambda: calls.append(1), "a task", low_priority=False)

        deadline = monotonic() + 10.0
        while not task.done and monotonic() < deadline:
            sleep(0.001)

        assert task.done
        assert calls == [1]

    @pytest.mark.parametrize("error", [ValueError("failed"), KeyboardInterrupt()])
    def test_an_error_is_raised_by_wait(self, background: Background, error: BaseException) -> None:
        """Each `wait` raises what the task raised, and `done` does not raise it."""

        def fail() -> None:
            raise error

        task = background.submit(fail, "a task that fails")

        for _ in range(2):
            with pytest.raises(type(error)) as raised:
                task.wait()
            assert raised.value is error
        assert task.done

    def test_tasks_are_independent(self, background: Background) -> None:
        """A task that fails does not affect another one."""
        calls: list[int] = []

        def fail() -> None:
            raise ValueError("failed")

        failing = background.submit(fail, "a task that fails")
        other = background.submit(lambda: calls.append(1), "another task")

        other.wait()

        assert calls == [1]
        with pytest.raises(ValueError, match="failed"):
            failing.wait()


class ClockContract:
    """Contract suite of the Clock port."""

    @pytest.fixture
    def clock(self) -> Clock:
        """The adapter under test."""
        raise NotImplementedError

    def test_monotonic_time_never_goes_back(self, clock: Clock) -> None:
        """Each reading of the monotonic clock is at least the previous one."""
        readings = [clock.monotonic() for _ in range(1000)]

        assert all(earlier <= later for earlier, later in pairwise(readings))

    def test_sleep_lasts(self, clock: Clock) -> None:
        """After a sleep, both clocks have advanced by at least its length."""
        monotonic, wall = clock.monotonic(), clock.wall()

        clock.sleep(0.02)

        # Clock synchronization may set the wall clock back meanwhile, by less than a millisecond.
        assert clock.monotonic() - monotonic >= 0.02
        assert clock.wall() - wall >= 0.019

    def test_no_sleep_is_allowed(self, clock: Clock) -> None:
        """A sleep of zero seconds returns."""
        clock.sleep(0)


class InterruptsContract:
    """Contract suite of the Interrupts port."""

    @pytest.fixture
    def interrupts(self) -> Interrupts:
        """The adapter under test."""
        raise NotImplementedError

    @pytest.fixture
    def provoke(self, interrupts: Interrupts) -> Callable[[], None]:
        """Return a function that triggers the adapter; without a listener it has no effect."""
        raise NotImplementedError

    def test_a_started_listener_gets_requests(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """The listener receives a request with a reason."""
        asked: list[str] = []
        interrupts.start(asked.append)

        provoke()

        interrupts.stop()
        assert len(asked) == 1
        assert asked[0]

    def test_a_stopped_listener_gets_no_requests(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """A request after `stop` is not delivered."""
        asked: list[str] = []
        interrupts.start(asked.append)
        interrupts.stop()

        provoke()

        assert asked == []

    def test_listening_can_restart(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """After `stop` another listener may be started, and only that one receives requests."""
        first: list[str] = []
        second: list[str] = []
        interrupts.start(first.append)
        interrupts.stop()
        interrupts.start(second.append)

        provoke()

        interrupts.stop()
        assert (len(first), len(second)) == (0, 1)

    def test_an_idle_source_can_be_stopped(self, interrupts: Interrupts) -> None:
        """Stopping twice, or before any start, has no effect."""
        interrupts.stop()
        interrupts.start(lambda reason: None)
        interrupts.stop()
        interrupts.stop()
