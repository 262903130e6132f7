"""The queue of intents: what is written when, what survives a process, and what a later intent replaces."""

from __future__ import annotations

import json

import pytest
from attrs import asdict, evolve

from hexloop.domain.errors import StorageError
from hexloop.domain.outbox import MOST_INTENTS, Intent, Outbox, move_earlier_outbox
from hexloop.testing import Effect, Fault, FaultyStorage, MemoryStorage
from tests.unit.checkpoints.small_store import names

ACTIONS = ("send", "push")


def make_outbox(storage: MemoryStorage | FaultyStorage, takes_over: bool = True) -> Outbox:
    return Outbox(storage, takes_over, actions=ACTIONS)


def test_an_intent_is_durable_before_it_is_carried_out() -> None:
    """It is written before the operation, not active during it, and gone if the operation fails."""
    storage = MemoryStorage()
    outbox = make_outbox(storage)

    def act() -> str:
        assert len(names(storage, ".hexloop/outbox")) == 1
        assert outbox.first() is None
        return "result"

    assert outbox.during(act, "send", "a") == "result"
    first = outbox.first()
    assert first is not None
    assert (first.action, first.path) == ("send", "a")

    with pytest.raises(ZeroDivisionError):
        outbox.during(lambda: 1 / 0, "send", "b")
    assert [intent.path for intent in outbox.pending()] == ["a"]
    assert len(names(storage, ".hexloop/outbox")) == 1


def test_the_next_process_continues_what_was_left() -> None:
    """Intents are read back in order; those without a source, or of an unknown action, are removed."""
    storage = MemoryStorage()
    storage.write("file", [b"1"])
    earlier = make_outbox(storage)
    kept = earlier.put("push", "model", {"message": "step 3"}, source="file")
    earlier.put("push", "gone", {}, source="missing")
    earlier.put("other", "unknown", {})
    storage.write(".hexloop/outbox/torn.json", [b"{"])
    storage.write(".hexloop/outbox/held-1/rest", [b"2"])
    storage.write(".hexloop/outbox/other.lock", [])

    assert make_outbox(storage, takes_over=False).pending() == ()
    assert make_outbox(storage).pending() == (kept,)
    assert names(storage, ".hexloop/outbox") == [kept.name, "other.lock"]


def test_the_newest_replaces_earlier_ones() -> None:
    """What an intent replaces is dropped after it is written, with what was held for it, but not while it is sent."""
    storage = MemoryStorage()
    outbox = make_outbox(storage)

    def put(step: int) -> Intent:
        folder = outbox.new_hold()
        storage.write(f"{folder}/weights", [bytes([step])])
        return outbox.put("push", "model", {"step": step}, f"{folder}/weights", lambda old: old.path == "model")

    put(1)
    sent = put(2)
    outbox.begin(sent)
    put(3)
    last = put(4)
    assert outbox.pending() == (sent, last)
    assert len(names(storage, ".hexloop/outbox")) == 4

    outbox.done(sent)
    outbox.done(last)
    assert names(storage, ".hexloop/outbox") == []


def test_what_is_held_stays_until_the_last_intent_that_needs_it() -> None:
    """Something that is removed before it is delivered is hidden, and found there by its intents."""
    storage = MemoryStorage()
    storage.write("folder/a", [b"1"])
    outbox = make_outbox(storage)
    one, other = (outbox.put("send", name, {}, "folder/a") for name in ("one", "other"))
    outbox.hold("folder")
    assert names(storage) == [".hexloop/outbox"]
    source = outbox.current(one).source
    assert b"".join(storage.read(source)) == b"1"

    outbox.done(one)
    assert outbox.current(other).source == source
    assert make_outbox(storage).pending() == outbox.pending()
    outbox.done(other)
    assert names(storage, ".hexloop/outbox") == []


def test_a_failed_move_changes_nothing() -> None:
    """The intents keep their sources if the storage cannot move them."""
    storage = MemoryStorage()
    storage.write("a", [b"1"])
    outbox = make_outbox(FaultyStorage(storage, [Fault(1, Effect.FAIL, "move")]))
    intent = outbox.put("send", "a", {}, "a")
    with pytest.raises(StorageError):
        outbox.moving("a", "b")
    assert outbox.pending() == (intent,)
    assert names(storage, ".hexloop/outbox") == [intent.name]


def test_failures_and_refusals_survive() -> None:
    """The reason is kept without secrets; a refused intent is not delivered until the user retries."""
    storage = MemoryStorage()
    outbox = make_outbox(storage)
    intent = outbox.put("push", "model", {})
    outbox.fail(intent, "no route to host")
    outbox.fail(intent, "hub_token=abcdefgh is wrong", refused=True)
    assert outbox.first() is None

    again = make_outbox(storage)
    (left,) = again.pending()
    assert (left.failures, left.refused, left.problem) == (2, True, "hub_token=*** is wrong")
    again.retry()
    assert again.deliverable() == again.pending() != ()
    again.fail(Intent(5, "push", "unknown"), "it was dropped meanwhile")
    again.add("send", "b")
    again.retry()
    assert [each.refused for each in make_outbox(storage).pending()] == [False, False]


def test_a_full_storage_does_not_lose_intents() -> None:
    """If the reason of a failure cannot be written, the intent stays as it was on the storage."""
    storage = MemoryStorage()
    outbox = make_outbox(FaultyStorage(storage, [Fault(2, Effect.FULL, "write")]))
    intent = outbox.put("push", "model", {})
    outbox.fail(intent, "no route")
    assert [each.failures for each in outbox.pending()] == [1]
    assert make_outbox(storage).pending() == (intent,)


def test_no_secret_is_written() -> None:
    """Details whose names or forms say that they are secret are replaced."""
    storage = MemoryStorage()
    intent = make_outbox(storage).put("push", "model", {"hub_token": "abcdefgh", "message": "with hf_abcdefghijkl"})
    document = json.loads(b"".join(storage.read(f".hexloop/outbox/{intent.name}")))
    assert document["details"] == {"hub_token": "***", "message": "with ***"}


@pytest.mark.parametrize(("count", "size"), [(MOST_INTENTS + 1, 0), (9, (4 << 20) - 1000)])
def test_more_than_is_looked_at_is_left_alone(count: int, size: int, caplog: pytest.LogCaptureFixture) -> None:
    """Others may have filled the folder: with files by the thousand, or with large ones."""
    storage = MemoryStorage()
    for number in range(1, count + 1):
        intent = Intent(number, "send", f"file-{number}", problem="x" * size)
        storage.write(f".hexloop/outbox/{intent.name}", [json.dumps(asdict(intent)).encode()])
    taken = make_outbox(storage).pending()
    assert len(names(storage, ".hexloop/outbox")) == count
    assert len(taken) < count
    assert f"{Intent(len(taken) + 1, 'send', '').name} and {count - len(taken) - 1} after it are left" in caplog.text


def test_the_outbox_of_an_earlier_version_is_continued() -> None:
    """It was beside the checkpoints, and its entries name what is held there."""
    storage = MemoryStorage()
    earlier = Intent(1, "send", "model", source=".outbox/held-1/weights")
    storage.write(f".outbox/{earlier.name}", [json.dumps(asdict(earlier)).encode()])
    storage.write(".outbox/held-1/weights", [b"1"])
    move_earlier_outbox(storage)
    move_earlier_outbox(storage)
    (taken,) = make_outbox(storage).pending()
    assert taken == evolve(earlier, source=".hexloop/outbox/held-1/weights")
    assert b"".join(map(bytes, storage.read(taken.source))) == b"1"
    assert names(storage, ".outbox") == []
