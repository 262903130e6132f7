"""Requests to stop, pause and save a live run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.background import ThreadBackground
from hexloop.domain import requests as requests_module
from hexloop.domain.errors import HexloopError, StorageError
from hexloop.domain.events import (
    AnyEvent,
    CheckpointPublished,
    EpochEnded,
    Paused,
    PredictionStepEnded,
    Saved,
    StepEnded,
    TrainEnded,
)
from hexloop.domain.loop import train
from hexloop.domain.requests import (
    AgreedRequests,
    LocalAgreement,
    Requests,
    SaveRequest,
    SharedAgreement,
    make_agreement,
)
from hexloop.domain.run import NoCheckpoints
from hexloop.domain.state import RunState
from hexloop.testing import Effect, Fault, FaultyStorage, SimulatedWorld, SingleProcessCollectives
from tests.examples import examples
from tests.unit.checkpoints.gated_storage import GatedStorage
from tests.unit.loop.small import Small, every, make_small, names, resume


def drive(small: Small, at: type[AnyEvent], step: int, ask: str) -> list[AnyEvent]:
    """Return the events of a run that gets a request at the first event of a kind at a step."""
    seen: list[AnyEvent] = []
    requested = False
    for event in train(small.run):
        seen.append(event)
        if not requested and type(event) is at and event.step == step:
            requested = True
            getattr(small.run.requests, ask)()
    return seen


def test_a_stop_ends_the_run_at_this_boundary() -> None:
    """Nothing is trained or evaluated after the stop, the epoch has no end event, and the run is marked as stopped."""
    small = make_small(triggers=every(log=4))
    events = drive(small, StepEnded, 3, "request_stop")
    ended = events[-1]
    assert isinstance(ended, TrainEnded)
    assert (ended.step, ended.stopped) == (3, True)
    assert not [event for event in events if isinstance(event, EpochEnded)]


def test_a_save_is_taken_at_the_next_boundary() -> None:
    """The handle returns the checkpoint's name once it is published."""
    small = make_small()
    events = train(small.run)
    request = None
    for event in events:
        if isinstance(event, StepEnded) and event.step == 3:
            request = small.run.requests.request_save()
            assert not request.done
            with pytest.raises(TimeoutError, match="did not finish within 0 s"):
                request.wait(0)
    assert request is not None
    assert request.wait(0) == "checkpoint-3"
    assert [entry.name for entry in small.storage.list("")] == ["checkpoint-3"]


def test_a_save_can_be_awaited() -> None:
    """In an event loop, while the run goes on in a thread. A wait that times out leaves the request as it is."""
    small = make_small()

    async def save() -> str:
        events = train(small.run)
        next(events)
        request = small.run.requests.request_save()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request, 0.01)
        assert not request.done
        waiting = asyncio.ensure_future(request)
        await asyncio.to_thread(list, events)
        assert await request == request.wait(0)
        return await waiting

    assert asyncio.run(save()) == "checkpoint-0"
    assert [entry.name for entry in small.storage.list("")] == ["checkpoint-0"]


def test_an_awaited_save_raises_its_error() -> None:
    """As `wait` does, if the run ends before it saves."""
    requests = Requests()

    async def save() -> str:
        waiting = asyncio.ensure_future(requests.request_save())
        await asyncio.sleep(0)
        requests.clear()
        return await waiting

    with pytest.raises(HexloopError, match="ended before it reached the requested save"):
        asyncio.run(save())


def test_a_stop_that_was_not_requested_has_a_reason() -> None:
    """The reason is listed with those of requests, and nothing is requested by it."""
    requests = Requests()
    requests.explain_stop("pruned at step 3")
    assert (requests.pending, requests.current) == (set(), AgreedRequests())
    requests.request_stop("enough")
    assert requests.reasons == ("pruned at step 3", "enough")
    requests.clear()
    assert not list(requests.reasons)


def test_a_failed_save_raises_its_error_and_the_run_continues() -> None:
    """A single storage error fails the request but not the run."""
    small = make_small()
    small.store.storage = FaultyStorage(small.storage, [Fault(1, Effect.FAIL, "write")])
    requests: list[SaveRequest] = []

    def run() -> None:
        for event in train(small.run):
            if isinstance(event, StepEnded) and event.step == 3:
                requests.append(small.run.requests.request_save())

    with pytest.warns(UserWarning, match="checkpoint-3 was not saved"):
        run()
    with pytest.raises(StorageError):
        requests[0].wait(0)
    assert small.run.state.step == small.run.plan.total_steps


def test_an_unreached_save_fails() -> None:
    """Waiting for a save of a run that was closed raises an error."""
    small = make_small()
    events = train(small.run)
    next(events)
    request = small.run.requests.request_save()
    events.close()
    with pytest.raises(HexloopError, match="ended before it reached the requested save"):
        request.wait(0)


def test_a_paused_run_returns_from_every_next() -> None:
    """Every `next` yields Paused at the same step until the run is resumed."""
    small = make_small()
    events = train(small.run)
    for event in events:
        if isinstance(event, StepEnded) and event.step == 2:
            break
    small.run.requests.pause()
    paused = [next(events) for _ in range(5)]
    assert paused == [Paused(2)] * 5
    small.run.requests.resume()
    assert isinstance([*events][-1], TrainEnded)


def test_a_paused_run_still_saves_and_stops() -> None:
    """A save requested during the pause is taken, and a stop ends the pause."""
    small = make_small()
    events = train(small.run)
    for event in events:
        if isinstance(event, StepEnded) and event.step == 2:
            break
    small.run.requests.pause()
    assert next(events) == Paused(2)
    request = small.run.requests.request_save()
    assert names([next(events), next(events)]) == ["Saved", "CheckpointPublished"]
    assert request.wait(0) == "checkpoint-2"
    assert next(events) == Paused(2)
    small.run.requests.request_stop("enough")
    assert small.run.requests.reasons == ("enough",)
    rest = list(events)
    assert isinstance(rest[-1], TrainEnded)
    assert rest[-1].stopped


def test_a_stop_during_an_evaluation_leaves_it_due() -> None:
    """The evaluation is interrupted; a checkpoint saved before resumes with that evaluation."""
    small = make_small(triggers=every(log=2, evaluate=4))
    seen = []
    for event in train(small.run):
        seen.append(event)
        if isinstance(event, PredictionStepEnded) and event.batch == 2 and event.step == 4:
            small.run.requests.request_save()
            small.run.requests.request_stop()
    assert "EvaluationInterrupted" in names(seen)
    assert not [log for log in small.logs if "eval_loss" in log]
    assert small.run.state.due == []
    again = make_small(triggers=every(log=2, evaluate=4), storage=small.storage)
    resume(again)
    assert again.run.state.due == ["evaluate"]
    events = names(again.events())
    assert events[:2] == ["TrainBegan", "EvaluationBegan"]


def test_requests_before_the_first_step_are_handled_before_it() -> None:
    """A stop that is requested before the run starts ends it before its first step."""
    small = make_small()
    small.run.requests.request_stop()
    events = small.events()
    assert names(events) == ["TrainBegan", "Logged", "TrainEnded"]


def test_a_thread_waiting_for_the_end_of_a_pause_is_woken() -> None:
    """It continues when another thread resumes or stops the run, or requests a save, which is written in the pause."""
    for wake in ("resume", "request_stop", "request_save", "clear"):
        requests = Requests()
        requests.pause()
        assert not requests.wait_while_paused(0.001)
        thread = threading.Thread(target=requests.wait_while_paused)
        thread.start()
        getattr(requests, wake)()
        thread.join(5)
        assert not thread.is_alive()


def test_clearing_cancels_all_requests() -> None:
    """After `clear` no request is pending, and pending saves fail with an error."""
    requests = Requests()
    requests.request_stop("why")
    requests.pause()
    request = requests.request_save()
    assert requests.current == AgreedRequests(stop=True, save=True, pause=True)
    requests.clear()
    assert (requests.pending, requests.current, requests.reasons) == (set(), AgreedRequests(), ())
    assert request.done


def test_one_process_agrees_with_itself() -> None:
    """In a world of one a request is agreed on at once, and without requests nothing is exchanged."""
    requests = Requests()
    agreement = make_agreement(requests, SingleProcessCollectives())
    assert isinstance(agreement, LocalAgreement)
    assert not agreement.waiting
    requests.request_stop()
    assert agreement.waiting
    assert agreement.agreed_requests() == AgreedRequests(stop=True)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(2, 6), st.integers(0, 5), st.sampled_from(["request_stop", "request_save", "pause"]), st.integers(0, 6)
)
def test_ranks_act_at_the_same_boundary(world_size: int, rank: int, ask: str, boundary: int) -> None:
    """A request on one rank takes effect on all ranks together at the next boundary, and a save once."""
    rank %= world_size

    def boundaries(collectives: object) -> Iterator[AgreedRequests]:
        requests = Requests()
        agreement = make_agreement(requests, collectives)  # type: ignore[arg-type]
        assert isinstance(agreement, SharedAgreement)
        assert agreement.waiting
        for number in range(9):
            if number == boundary and collectives.rank == rank:  # type: ignore[attr-defined]
                getattr(requests, ask)()
            agreed = agreement.agreed_requests()
            if agreed.save:
                requests.take_saves()
            yield agreed

    outcomes = SimulatedWorld(world_size).run(lambda collectives: list(boundaries(collectives)))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    acted = [
        number for number, requested in enumerate(outcomes[0]) if evolve(requested, collect=False) != AgreedRequests()
    ]
    assert acted[0] == boundary + 1
    if ask == "request_save":
        assert acted == [boundary + 1]


def test_a_background_save_completes_when_it_is_durable() -> None:
    """The request is pending while the run continues, and completes at the boundary that reports the save."""
    storage = GatedStorage()
    small = make_small()
    small.store.storage, small.store.background = storage, ThreadBackground()
    requests: list[SaveRequest] = []
    answered_at = 0
    for event in train(small.run):
        if isinstance(event, StepEnded) and event.step == 3:
            requests.append(small.run.requests.request_save())
        elif isinstance(event, StepEnded) and event.step == 5:
            assert not requests[0].done
            storage.gate.set()
            while not small.store.has_news:
                time.sleep(0.001)
        elif isinstance(event, CheckpointPublished) and event.name == "checkpoint-3":
            answered_at = small.run.state.step
            assert requests[0].wait(0) == "checkpoint-3"
    assert answered_at == 5


def test_a_save_in_flight_completes_when_the_run_is_closed() -> None:
    """Closing a run finishes the save, and completes its request."""
    storage = GatedStorage()
    small = make_small()
    small.store.storage, small.store.background = storage, ThreadBackground()
    events = train(small.run)
    next(events)
    request = small.run.requests.request_save()
    for event in events:
        if isinstance(event, Saved):
            break
    storage.gate.set()
    events.close()
    assert request.wait(0) == f"checkpoint-{small.run.state.step}"


def test_a_background_save_of_a_paused_run_completes() -> None:
    """A paused run waits for the requested save, and reports it before the pause."""
    small = make_small()
    small.store.background = ThreadBackground()
    events = train(small.run)
    next(events)
    small.run.requests.pause()
    request = small.run.requests.request_save()
    saves = [next(events) for _ in range(3)]
    assert [type(event) for event in saves] == [Saved, CheckpointPublished, Paused]
    assert request.wait(0) == "checkpoint-0"
    events.close()


def test_a_wait_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a pause without a notification, as by a signal handler in the waiting thread, is noticed."""
    monkeypatch.setattr(requests_module, "PAUSE_POLL_SECONDS", 0.01)
    requests = Requests()
    requests.pause()
    threading.Timer(0.05, lambda: requests.pending.discard("pause")).start()
    assert requests.wait_while_paused()


class RecordingRequired(NoCheckpoints):
    """Records which saves are required."""

    def __init__(self) -> None:
        self.saves: list[tuple[int, bool]] = []

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Record the save; there is no checkpoint and no event."""
        self.saves.append((state.step, required))
        return iter(())


@pytest.mark.parametrize("ask", ["request_save", "request_stop"])
def test_only_a_scheduled_save_may_be_skipped(ask: str) -> None:
    """A requested save, one that comes with a stop, and the last one are required; others are not."""
    small = make_small(triggers=every(save=1))
    recording = small.run.checkpoints = RecordingRequired()
    for event in train(small.run):
        if isinstance(event, StepEnded) and event.step == 3:
            if ask == "request_save":
                small.run.requests.request_save()
            else:
                small.run.requests.request_stop("enough", save=True)
    last = small.run.state.step
    required = [step for step, needed in recording.saves if needed]
    assert required == ([3, last] if ask == "request_save" else [3])
    assert (1, False) in recording.saves


def test_waiting_for_a_paused_run_ends_with_the_run() -> None:
    """Clearing all requests ends a pause, and the wait for its end."""
    requests = Requests()
    requests.pause()
    waits: list[bool] = []
    thread = threading.Thread(target=lambda: waits.append(requests.wait_while_paused(30)))
    thread.start()
    time.sleep(0.05)
    requests.clear()
    thread.join(5)
    assert waits == [True]
