"""The speed at which a checkpoint is written in the background."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.background import ThreadBackground
from hexloop.domain.checkpoints.pace import MAX_START_SECONDS, PIECE_BYTES, Pace, Pacer

SECONDS = st.floats(0.001, 10.0)


@define
class ManualTimes:
    """A clock that advances when it is set, and the recorded rests."""

    now: float = 0.0
    rests: list[float] = field(factory=list)

    def rest(self, waited_for: threading.Event, seconds: float) -> None:
        """Sleep like `threading.Event.wait` for an event that is not set."""
        self.rests.append(seconds)
        self.now += seconds


@given(st.lists(SECONDS, min_size=1, max_size=8), st.integers(0, 8), st.floats(0.0, 100.0))
def test_it_rests_as_long_as_it_worked_until_a_deadline(durations: list[float], patience: int, seconds: float) -> None:
    """Each piece is followed by a rest of its length, until the deadline or until the save is waited for."""
    times = ManualTimes()
    pace = Pace(seconds, lambda: times.now, times.rest)
    expected = []
    for number, _ in enumerate(pace.pieces([b"x"] * len(durations))):
        times.now += durations[number]
        if number == patience:
            pace.hurry()
        if number < patience and times.now < seconds:
            expected.append(durations[number])
    assert times.rests == pytest.approx(expected)
    assert sum(times.rests) <= seconds / 2 + max(durations)


@given(st.floats(0.001, 30.0), st.floats(0.0, 40.0))
def test_it_starts_when_signalled_or_after_a_timeout(seconds: float, signal: float) -> None:
    """The wait for the signal has a limit, and does not shorten the time for rests."""
    times = ManualTimes()

    def wait(event: threading.Event, longest: float) -> None:
        times.now += min(signal, longest)
        if signal < longest:
            pace.start()

    pace = Pace(seconds, lambda: times.now, wait)
    pace.wait_for_start()
    assert times.now == min(signal, seconds, MAX_START_SECONDS)
    assert pace.rests_at(times.now + seconds * 0.9)
    assert not pace.rests_at(times.now + seconds * 1.1)


def test_it_starts_at_once_if_signalled_before_or_waited_for() -> None:
    """It does not wait if the step is over already, if the save is waited for, or if it never rests."""
    times = ManualTimes()
    started, waited_for = (Pace(9.0, lambda: times.now, times.rest) for _ in range(2))
    started.start()
    waited_for.hurry()
    for pace in (started, waited_for, Pace()):
        pace.wait_for_start()
    assert (times.rests, times.now) == ([], 0.0)
    assert started.rests_at(1.0)
    assert not waited_for.rests_at(1.0)


@given(SECONDS, SECONDS)
def test_rests_end_within_an_eighth_of_the_save_interval(first: float, second: float) -> None:
    """After that a save is written without rests."""
    times = ManualTimes()
    pacer = Pacer(lambda: times.now)
    for interval in (first, second):
        times.now += interval
        pace = pacer.next()
        for fraction, rests in ((0.1, True), (0.15, False)):
            assert pace.rests_at(times.now + interval * fraction) is rests


@given(st.lists(st.integers(0, 3 * PIECE_BYTES).map(bytes), max_size=2), st.binary(max_size=8))
def test_every_byte_is_yielded_in_small_pieces(chunks: list[bytes], last: bytes) -> None:
    """Large chunks are split, so that rests are frequent; nothing is lost, and the order is kept."""
    pieces = list(Pace().pieces([*chunks, memoryview(last)]))
    assert b"".join(pieces) == b"".join([*chunks, last])
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)


def test_waiting_for_a_task_ends_its_rests() -> None:
    """A task that would rest forever ends soon after its end is waited for."""
    for started in (True, False):
        written: list[bytes] = []
        pace = Pace(1e9, rest=lambda event, _seconds: event.wait())
        if started:
            pace.start()
        task = ThreadBackground().submit(partial(write, pace, written), "writes")
        pace.hurry()
        task.wait()
        assert written == [b"one", b"two"]


def write(pace: Pace, written: list[bytes]) -> None:
    """Write as a save does, with its pace."""
    pace.wait_for_start()
    written.extend(map(bytes, pace.pieces([b"one", b"two"])))
