"""Contract of the Clock port, run on each adapter."""

from __future__ import annotations

import pytest

from hexloop.adapters.clock import ManualClock, SystemClock
from hexloop.app.testing.contracts.environment import ClockContract
from hexloop.ports.process import Clock


class TestSystemClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()


class TestManualClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return ManualClock(wall=1e9)
