"""Every source of interrupts against the contract of its port."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from hexloop.adapters.interrupts.manual import ManualInterrupts
from hexloop.adapters.interrupts.signals import SignalInterrupts
from hexloop.app.contracts.interrupts import InterruptsContract
from hexloop.ports.interrupts import Interrupts


class TestManualInterrupts(InterruptsContract):
    @pytest.fixture
    def interrupts(self) -> ManualInterrupts:
        return ManualInterrupts()

    @pytest.fixture
    def provoke(self, interrupts: Interrupts) -> Callable[[], None]:
        assert isinstance(interrupts, ManualInterrupts)
        return interrupts.interrupt


@pytest.mark.parametrize("chosen", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
class TestSignalInterrupts(InterruptsContract):
    @pytest.fixture
    def interrupts(self, chosen: signal.Signals) -> SignalInterrupts:
        return SignalInterrupts([chosen])

    @pytest.fixture
    def provoke(self, chosen: signal.Signals) -> Iterator[Callable[[], None]]:
        def harmless(number: int, frame: FrameType | None) -> None:
            """Whoever listened before."""

        before = signal.signal(chosen, harmless)
        yield lambda: os.kill(os.getpid(), chosen)
        signal.signal(chosen, before)
