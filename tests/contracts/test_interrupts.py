"""Contract of the Interrupts port, run on each source."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from hexloop.adapters.clock import ManualClock
from hexloop.adapters.interrupts import (
    Deadline,
    FileTouched,
    ManualInterrupts,
    PolledInterrupts,
    SeveralInterrupts,
    SignalInterrupts,
)
from hexloop.app.testing.contracts.environment import InterruptsContract
from hexloop.ports.process import Interrupts


class TestManualInterrupts(InterruptsContract):
    @pytest.fixture
    def interrupts(self) -> ManualInterrupts:
        return ManualInterrupts()

    @pytest.fixture
    def provoke(self, interrupts: Interrupts) -> Callable[[], None]:
        assert isinstance(interrupts, ManualInterrupts)
        return interrupts.interrupt


class TestTouchedFile(InterruptsContract):
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "stop"

    @pytest.fixture
    def interrupts(self, file: Path) -> PolledInterrupts:
        return PolledInterrupts(FileTouched(str(file)), period=60.0)

    @pytest.fixture
    def provoke(self, interrupts: PolledInterrupts, file: Path) -> Callable[[], None]:
        def touch() -> None:
            file.touch()
            interrupts.look()

        return touch


class TestDeadline(InterruptsContract):
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def interrupts(self, clock: ManualClock) -> PolledInterrupts:
        return PolledInterrupts(Deadline(100.0, 20.0, clock), period=60.0)

    @pytest.fixture
    def provoke(self, interrupts: PolledInterrupts, clock: ManualClock) -> Callable[[], None]:
        def wait() -> None:
            clock.advance(80.0)
            interrupts.look()

        return wait


class TestSeveralInterrupts(InterruptsContract):
    @pytest.fixture
    def sources(self) -> list[ManualInterrupts]:
        return [ManualInterrupts(), ManualInterrupts()]

    @pytest.fixture
    def interrupts(self, sources: list[ManualInterrupts]) -> SeveralInterrupts:
        return SeveralInterrupts(sources)

    @pytest.fixture(params=[0, 1])
    def provoke(self, sources: list[ManualInterrupts], request: pytest.FixtureRequest) -> Callable[[], None]:
        number: int = request.param
        return sources[number].interrupt


@pytest.mark.parametrize("chosen", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
class TestSignalInterrupts(InterruptsContract):
    @pytest.fixture
    def interrupts(self, chosen: signal.Signals) -> SignalInterrupts:
        return SignalInterrupts([chosen])

    @pytest.fixture
    def provoke(self, chosen: signal.Signals) -> Iterator[Callable[[], None]]:
        def harmless(number: int, frame: FrameType | None) -> None:
            """The handler that was installed before."""

        before = signal.signal(chosen, harmless)
        yield lambda: os.kill(os.getpid(), chosen)
        signal.signal(chosen, before)
