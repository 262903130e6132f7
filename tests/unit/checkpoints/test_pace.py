"""How fast a checkpoint is written beside the loop."""

from __future__ import annotations

import threading

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.checkpoints.background import Task
from hexloop.domain.checkpoints.pace import PIECE, Pace

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


@given(st.lists(SECONDS, min_size=1, max_size=8), st.integers(0, 8))
def test_it_rests_as_long_as_it_worked_until_somebody_waits(durations: list[float], patience: int) -> None:
    """Each piece is followed by a rest of its length; from when somebody waits on there is none."""
    times = Times()
    pace = Pace(lambda: times.now, times.rest)
    for number, _ in enumerate(pace.pieces([b"x"] * len(durations))):
        times.now += durations[number]
        if number == patience:
            pace.hurry()
    expected = durations[:patience]
    assert len(times.rests) == len(expected)
    assert all(abs(rested - worked) < 1e-9 for rested, worked in zip(times.rests, expected, strict=True))


@given(st.lists(st.integers(0, 3 * PIECE).map(bytes), max_size=2), st.binary(max_size=8))
def test_every_byte_is_handed_on_in_small_pieces(chunks: list[bytes], last: bytes) -> None:
    """Large chunks come in pieces, so that no rest is far; nothing is lost, and the order is kept."""
    pieces = list(Pace.without_rest().pieces([*chunks, memoryview(last)]))
    assert b"".join(pieces) == b"".join([*chunks, last])
    assert all(0 < len(piece) <= PIECE for piece in pieces)


def test_who_waits_for_a_task_hurries_it() -> None:
    """A task that rests for ever ends as soon as its end is waited for."""
    pace = Pace(rest=lambda waited_for, _seconds: waited_for.wait())
    written: list[bytes] = []
    task = Task(lambda: written.extend(map(bytes, pace.pieces([b"one", b"two"]))), "writes", pace.hurry)
    task.result()
    assert written == [b"one", b"two"]
