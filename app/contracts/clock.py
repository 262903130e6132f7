"""What a clock does."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hexloop.ports.clock import Clock


class ClockContract:
    """The suite of the Clock port."""

    @pytest.fixture
    def clock(self) -> Clock:
        """The adapter under test."""
        raise NotImplementedError

    def test_monotonic_time_never_goes_back(self, clock: Clock) -> None:
        """Each reading of the monotonic time is at least the one before."""
        readings = [clock.monotonic() for _ in range(1000)]

        assert all(earlier <= later for earlier, later in pairwise(readings))

    def test_sleep_lasts(self, clock: Clock) -> None:
        """After a sleep both times are later by its length at least."""
        monotonic, wall = clock.monotonic(), clock.wall()

        clock.sleep(0.02)

        # A date may be set back while we sleep, by less than a millisecond where the machine is only kept in step.
        assert clock.monotonic() - monotonic >= 0.02
        assert clock.wall() - wall >= 0.019

    def test_no_sleep_is_allowed(self, clock: Clock) -> None:
        """A sleep of no length returns."""
        clock.sleep(0)
