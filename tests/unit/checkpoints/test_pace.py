"""How fast a checkpoint is written beside the loop."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.background.thread import ThreadBackground
from hexloop.domain.checkpoints.pace import MAX_START_SECONDS, PIECE_BYTES, Pace, Pacer

SECONDS = st.floats(0.001, 10.0)


@define
class Times:
    """A clock that goes on when it is told to, and what was rested."""

    now: float = 0.0
    rests: list[float] = field(factory=list)

    def rest(self, waited_for: threading.Event, seconds: float) -> None:
        """As `threading.Event.wait`, of an event that does not come."""
        self.rests.append(seconds)
        self.now += seconds


@given(st.lists(SECONDS, min_size=1, max_size=8), st.integers(0, 8), st.floats(0.0, 100.0))
def test_it_rests_as_long_as_it_worked_for_some_time(durations: list[float], patience: int, seconds: float) -> None:
    """Each piece is followed by a rest of its length; from when somebody waits, or the time is over, there is none."""
    times = Times()
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
def test_it_begins_when_it_is_told_to_and_at_the_latest_by_itself(seconds: float, told: float) -> None:
    """It waits to be told, for some time at most; the rests then have as long as they would have had."""
    times = Times()

    def wait(event: threading.Event, longest: float) -> None:
        times.now += min(told, longest)
        if told < longest:
            pace.start()

    pace = Pace(seconds, lambda: times.now, wait)
    pace.wait_for_start()
    assert times.now == min(told, seconds, MAX_START_SECONDS)
    assert pace.rests_at(times.now + seconds * 0.9)
    assert not pace.rests_at(times.now + seconds * 1.1)


def test_who_was_told_or_is_waited_for_begins_at_once() -> None:
    """Nothing is waited for where the step was over before, where somebody waits, or where no rest was to be."""
    times = Times()
    begun, waited_for = (Pace(9.0, lambda: times.now, times.rest) for _ in range(2))
    begun.start()
    waited_for.hurry()
    for pace in (begun, waited_for, Pace.without_rest()):
        pace.wait_for_start()
    assert (times.rests, times.now) == ([], 0.0)
    assert begun.rests_at(1.0)
    assert not waited_for.rests_at(1.0)


@given(SECONDS, SECONDS)
def test_the_rests_end_within_an_eighth_of_the_time_between_two_saves(first: float, second: float) -> None:
    """Whatever a save takes longer than this, it takes without a rest."""
    times = Times()
    pacer = Pacer(lambda: times.now)
    for interval in (first, second):
        times.now += interval
        pace = pacer.next()
        for fraction, rests in ((0.1, True), (0.15, False)):
            assert pace.rests_at(times.now + interval * fraction) is rests


@given(st.lists(st.integers(0, 3 * PIECE_BYTES).map(bytes), max_size=2), st.binary(max_size=8))
def test_every_byte_is_handed_on_in_small_pieces(chunks: list[bytes], last: bytes) -> None:
    """Large chunks come in pieces, so that no rest is far; nothing is lost, and the order is kept."""
    pieces = list(Pace.without_rest().pieces([*chunks, memoryview(last)]))
    assert b"".join(pieces) == b"".join([*chunks, last])
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)


def test_who_waits_for_a_task_hurries_it() -> None:
    """A task that would wait, or rest, for ever ends as soon as its end is waited for."""
    for begun in (True, False):
        written: list[bytes] = []
        pace = Pace(1e9, rest=lambda event, _seconds: event.wait())
        if begun:
            pace.start()
        task = ThreadBackground().submit(partial(write, pace, written), "writes")
        pace.hurry()
        task.wait()
        assert written == [b"one", b"two"]


def write(pace: Pace, written: list[bytes]) -> None:
    """What a save does with its pace."""
    pace.wait_for_start()
    written.extend(map(bytes, pace.pieces([b"one", b"two"])))
