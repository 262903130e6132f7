"""The thread that works off an outbox: order, retries, refusals, pauses and the end of the program."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

from hexloop.domain.delivery import NO_RATE_LIMIT, Backoff, Delivery, RateLimit
from hexloop.domain.errors import RefusedError, UnavailableError
from hexloop.domain.outbox import Intent, Outbox
from hexloop.testing import MemoryStorage

QUICK = Backoff((0.0,))


def make_outbox(*paths: str) -> Outbox:
    outbox = Outbox(MemoryStorage(), actions=["send"])
    for path in paths:
        outbox.add("send", path)
    return outbox


class Destination:
    """Raises the planned errors, one for each attempt, and then accepts what it gets."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.arrived = list(errors), list[str]()

    def accept(self, intent: Intent) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.arrived.append(intent.path)


def test_intents_arrive_in_order_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Each is retried until it succeeds, before the next; one warning is logged for a series of failures."""
    destination = Destination(OSError("down"), OSError("down"), ValueError())
    outbox = make_outbox("a", "b", "c")
    sender = Delivery(outbox, destination.accept, QUICK, limit=0)
    lefts = list[int]()

    assert sender.finish(60, lefts.append)
    assert destination.arrived == ["a", "b", "c"]
    assert lefts[0] == 3
    assert outbox.pending() == ()
    assert sender.trouble is None
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "Uploading a failed and is retried: down"
    ]
    sender.stop()


def test_a_refused_intent_does_not_stop_the_others() -> None:
    """It is kept with the reason, and the next ones are delivered."""
    destination = Destination(RefusedError("401: the token is wrong"))
    outbox = make_outbox("a", "b")
    sender = Delivery(outbox, destination.accept, QUICK, limit=0)

    assert sender.finish()
    assert destination.arrived == ["b"]
    (left,) = outbox.pending()
    assert (left.path, left.refused, left.problem) == ("a", True, "401: the token is wrong")


class SlowToReturn(Outbox):
    """Others run as soon as an outcome is noted, before the thread that noted it."""

    def done(self, intent: Intent) -> None:
        super().done(intent)
        time.sleep(0.2)

    def fail(self, intent: Intent, problem: str, refused: bool = False) -> None:
        super().fail(intent, problem, refused)
        time.sleep(0.2)


@pytest.mark.parametrize("errors", [[], [RefusedError("401")]])
def test_nothing_is_attempted_once_nothing_is_left(errors: list[Exception]) -> None:
    """So an outbox can be closed, and opened again, as soon as `finish` has returned."""
    outbox = SlowToReturn(MemoryStorage(), actions=["send"])
    outbox.add("send", "a")
    sender = Delivery(outbox, Destination(*errors).accept, QUICK, limit=0)
    closed = list[bool]()

    assert sender.finish()
    sender.stop(wait=False, then=lambda: closed.append(True))
    assert closed == [True]


def test_waiting_is_bounded() -> None:
    """`finish` returns after its limit although the destination is down, and `stop` ends the thread."""
    outbox = make_outbox("a")
    sender = Delivery(outbox, Destination(*[OSError("down")] * 10_000).accept, Backoff((60.0,)), limit=0)

    assert not sender.finish(0.05)
    sender.stop()
    sender.wake()
    assert [intent.path for intent in outbox.pending()] == ["a"]


def test_a_hanging_destination_does_not_keep_the_caller() -> None:
    """`stop` without waiting returns while an attempt hangs."""
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(intent: Intent) -> None:
        hangs.set()
        goes_on.wait()

    sender = Delivery(make_outbox("a"), hang, QUICK, limit=0)
    sender.wake()
    assert hangs.wait(60)
    assert not sender.finish(0.0)
    freed = threading.Event()
    sender.stop(wait=False, then=freed.set)
    assert not freed.wait(0.05), "the attempt still needs the outbox"
    goes_on.set()
    sender.stop()
    assert freed.is_set()


def test_nothing_is_waited_for_between_two_attempts() -> None:
    """During a pause the outbox is free at once."""
    outbox = make_outbox("a")
    sender = Delivery(outbox, Destination(OSError("down")).accept, Backoff((3600.0,)), limit=0)
    sender.wake()
    with outbox.changed:
        assert outbox.changed.wait_for(lambda: sender.trouble and not sender._attempts, 60)
    freed = threading.Event()
    sender.stop(wait=False, then=freed.set)
    assert freed.is_set()
    sender.stop()


def test_an_intent_that_is_dropped_during_its_attempt_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Its failure is of no interest, and nothing is written for it."""
    outbox = make_outbox("a")

    def drop(intent: Intent) -> None:
        outbox.done(intent)
        raise OSError("what it needs is gone")

    sender = Delivery(outbox, drop, QUICK, limit=0)
    assert sender.finish(60)
    sender.stop()
    assert caplog.records == []
    assert outbox.pending() == ()


def test_pauses_grow_with_chance_and_obey_the_destination() -> None:
    """The last pause repeats; chance adds up to a quarter; a hint is a minimum, of at most an hour."""
    never, always = Backoff((1.0, 4.0), chance=lambda: 0.0), Backoff((1.0, 4.0), chance=lambda: 1.0)

    assert [never.pause(failures) for failures in (1, 2, 3, 100)] == [1.0, 4.0, 4.0, 4.0]
    assert [always.pause(failures) for failures in (1, 2)] == [1.25, 5.0]
    assert never.pause(1, hint=30.0) == 30.0
    assert never.pause(2, hint=0.5) == 4.0
    assert never.pause(1, hint=1e9) == 3600.0
    assert 1.0 <= Backoff((1.0,)).pause(1) <= 1.25


def test_a_hurried_attempt_waits_as_long_as_the_destination_asks() -> None:
    """At the end a pause is cut short, but not one that the destination asked for."""
    destination = Destination(UnavailableError("503"), UnavailableError("429", retry_after=0.3))
    sender = Delivery(make_outbox("a"), destination.accept, Backoff((60.0,), jitter=0.0), limit=0)

    assert not sender.finish(0.1)
    assert not sender.finish(0.1)  # the second attempt, after which the destination asks for a pause
    assert destination.errors == []
    assert sender.finish(60)
    assert destination.arrived == ["a"]


def test_the_rate_is_limited() -> None:
    """A burst passes at once, and then one action in each interval."""
    now = [0.0]
    rate = RateLimit(2, 30.0, lambda: now[0])
    waits = []
    for _ in range(4):
        waits.append(rate.wait())
        now[0] += rate.wait()
        rate.take()

    assert waits == [0.0, 0.0, 30.0, 30.0]
    now[0] += 1000.0
    assert rate.wait() == 0.0
    assert NO_RATE_LIMIT.wait() == 0.0


class Exiting:
    """The main thread of a program that is exiting."""

    @staticmethod
    def is_alive() -> bool:
        return False


def exiting() -> Callable[[], Exiting]:
    return Exiting


def test_a_program_that_exits_waits_only_while_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What remains is named, and the next process continues with it."""
    monkeypatch.setattr(threading, "main_thread", exiting())
    outbox = make_outbox("a", "b")
    sender = Delivery(outbox, Destination(OSError("down")).accept, Backoff((0.0,)), limit=60)
    sender.wake()
    sender.stop()
    while any(thread.name == "hexloop upload" for thread in threading.enumerate()):
        pass
    assert len(outbox.pending()) == 2

    late = Delivery(outbox, Destination(OSError("down")).accept, Backoff((0.0,)), limit=60)
    late.wake()
    while any(thread.name == "hexloop upload" for thread in threading.enumerate()):
        pass
    assert "the next one continues with: a, b" in caplog.text
    working = Destination()
    assert Delivery(outbox, working.accept, Backoff((0.0,)), limit=60).finish(60)
    assert working.arrived == ["a", "b"]
