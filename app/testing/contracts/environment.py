"""Contract suites of the Clock and Interrupts ports."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from hexloop.ports.clock import Clock
from hexloop.ports.interrupts import Interrupts


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

    def test_whoever_starts_is_asked(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """The listener receives a request with a reason."""
        asked: list[str] = []
        interrupts.start(asked.append)

        provoke()

        interrupts.stop()
        assert len(asked) == 1
        assert asked[0]

    def test_after_a_stop_nobody_is_asked(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """A request after `stop` is not delivered."""
        asked: list[str] = []
        interrupts.start(asked.append)
        interrupts.stop()

        provoke()

        assert asked == []

    def test_listening_can_begin_again(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """After `stop` another listener may be started, and only that one receives requests."""
        first: list[str] = []
        second: list[str] = []
        interrupts.start(first.append)
        interrupts.stop()
        interrupts.start(second.append)

        provoke()

        interrupts.stop()
        assert (len(first), len(second)) == (0, 1)

    def test_an_idle_source_may_be_stopped(self, interrupts: Interrupts) -> None:
        """Stopping twice, or before any start, has no effect."""
        interrupts.stop()
        interrupts.start(lambda reason: None)
        interrupts.stop()
        interrupts.stop()
