"""Clocks and interrupt sources beyond their contracts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from hexloop.adapters.interrupts import SignalInterrupts
from hexloop.domain.errors import ConfigurationError
from hexloop.testing import ManualClock, ManualInterrupts, NoInterrupts


def test_a_manual_clock_moves_only_on_request() -> None:
    """Both times stand still, advance by the requested or slept time, and never go back."""
    clock = ManualClock(wall=1000.0)
    assert [clock.monotonic(), clock.wall(), clock.monotonic()] == [0.0, 1000.0, 0.0]

    clock.advance(2.5)
    clock.sleep(3600.0)

    assert (clock.monotonic(), clock.wall()) == (3602.5, 4602.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1.0)
    with pytest.raises(ValueError, match="backwards"):
        clock.sleep(-1.0)


def test_manual_interrupts_report_reason_and_listening() -> None:
    """The reason is the caller's; every interrupt is reported, not only the first."""
    interrupts = ManualInterrupts()
    reasons: list[str] = []
    assert not interrupts.listening
    interrupts.start(reasons.append)
    assert interrupts.listening

    interrupts.interrupt("the power goes off")
    interrupts.interrupt()

    assert reasons == ["the power goes off", "interrupted by hand"]


def test_no_interrupts_leaves_handlers_alone() -> None:
    """NoInterrupts can be started and stopped, and does not change the process's handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    interrupts = NoInterrupts()

    interrupts.start(pytest.fail)

    assert {number: signal.getsignal(number) for number in before} == before
    interrupts.stop()


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Record the signals SIGUSR1 and SIGUSR2 that reach the handlers installed before."""
    numbers: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_second_signal_reaches_the_earlier_handler(handled: list[int]) -> None:
    """The first of each kind requests a stop and is named; the second is passed to the earlier handler."""
    reasons: list[str] = []
    interrupts = SignalInterrupts([signal.SIGUSR1, signal.SIGUSR2])
    interrupts.start(reasons.append)

    for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(os.getpid(), number)

    interrupts.stop()
    assert reasons == ["signal SIGUSR1", "signal SIGUSR2"]
    assert handled == [signal.SIGUSR1]


def test_only_the_chosen_signals_are_handled_and_restored(handled: list[int]) -> None:
    """Other signals keep their handlers throughout, and the chosen ones get theirs back after a stop."""
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    interrupts = SignalInterrupts([signal.SIGUSR1])

    interrupts.start(lambda reason: None)
    during = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    interrupts.stop()

    assert during[0] != before[0]
    assert during[1] == before[1]
    assert [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)] == before


def test_sigint_and_sigterm_are_the_default() -> None:
    """Without a choice, SIGINT and SIGTERM request a stop."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    reasons: list[str] = []
    interrupts = SignalInterrupts()
    interrupts.start(reasons.append)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        interrupts.stop()

    assert reasons == ["signal SIGTERM", "signal SIGINT"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_signals_in_another_thread_are_refused() -> None:
    """The error names the thread and an alternative, and no handler has changed."""
    before = signal.getsignal(signal.SIGTERM)
    errors: list[ConfigurationError] = []

    def start() -> None:
        try:
            SignalInterrupts().start(lambda reason: None)
        except ConfigurationError as error:
            errors.append(error)

    thread = threading.Thread(target=start, name="worker 7")
    thread.start()
    thread.join()

    assert len(errors) == 1
    assert "'worker 7'" in str(errors[0])
    assert "request_stop" in str(errors[0])
    assert signal.getsignal(signal.SIGTERM) is before
