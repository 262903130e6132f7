"""Every clock against the contract of its port."""

from __future__ import annotations

import pytest

from hexloop.adapters.clock.manual import ManualClock
from hexloop.adapters.clock.system import SystemClock
from hexloop.app.contracts.clock import ClockContract
from hexloop.ports.clock import Clock


class TestSystemClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()


class TestManualClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return ManualClock(wall=1e9)
