"""Runs in an asyncio event loop: events, cancellation, several runs at once, context variables."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hexloop import TrainerCallback
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.events import AnyEvent, Evaluated, Paused, Saved, StepEnded, TrainEnded
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights
from tests.end_to_end.test_two_trainers import SEEDS, alone, random_trainer

ENDLESS: dict[str, Any] = {"max_steps": 10**6, "num_train_epochs": 10**6, "logging_steps": 10**6}


class Stalling(TrainerCallback):
    """Stops at one point of a run, in the thread of the run, until `proceed` is set."""

    def __init__(self, event: str, step: int = 0) -> None:
        self.reached, self.proceed = threading.Event(), threading.Event()
        self.step, self.passed = step, False
        setattr(self, event, self.stall)

    def stall(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.reached.set()
            assert self.proceed.wait(60)
            self.passed = True


async def drain(trainer: Any, **options: Any) -> list[AnyEvent]:
    """Return all events of a run."""
    return [event async for event in trainer.astream(**options)]


@asynccontextmanager
async def started(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Run `work` as a task, which has ended afterwards."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def is_closed(trainer: Any) -> bool:
    """Return whether no run is live, and no thread of runs is left."""
    return not trainer.is_in_train and not any("hexloop-runs" in thread.name for thread in threading.enumerate())


def test_a_run_has_the_same_events_and_results_as_a_stream(tmp_path: Path) -> None:
    """Event by event, and bitwise the same weights."""
    one, other = (small_trainer(tmp_path / name, eval_strategy="epoch", parts=parts()) for name in "ab")
    events = asyncio.run(drain(one))

    assert [type(event) for event in events] == [type(event) for event in other.stream()]
    assert same_weights(weights(one), weights(other))
    assert history(one) == history(other)
    assert is_closed(one)


def parts() -> dict[str, Any]:
    """Return data for evaluations and a model with dropout."""
    return {"model": net(0.3), "eval_dataset": rows(8)}


def test_the_event_loop_handles_others_during_a_step(tmp_path: Path) -> None:
    """A step that waits for the event loop finishes."""
    stalling = Stalling("on_step_begin")
    trainer = small_trainer(tmp_path, parts={"callbacks": [stalling]})

    async def main() -> None:
        async with started(drain(trainer)) as task:
            while not stalling.reached.is_set():
                await asyncio.sleep(0.001)
            stalling.proceed.set()
            await task

    asyncio.run(main())
    assert trainer.state.global_step == 4


POINTS = ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_step_end", "on_log", "on_save", "on_evaluate"]


@pytest.mark.parametrize("cancellations", [1, 3])
@pytest.mark.parametrize("point", [*POINTS, "on_prediction_step"])
def test_a_cancelled_run_finishes_what_it_is_doing(tmp_path: Path, point: str, cancellations: int) -> None:
    """Wherever the run is, the task ends after that action, as cancelled; the run is closed, and another may start."""
    step = {"on_train_begin": 0, "on_epoch_begin": 0, "on_step_begin": 1}.get(point, 2)
    stalling = Stalling(point, step)
    every: dict[str, Any] = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    trainer = small_trainer(tmp_path, parts={**parts(), "callbacks": [stalling]}, **every)

    async def main() -> None:
        async with started(drain(trainer)) as task:
            await asyncio.to_thread(stalling.reached.wait, 60)
            for _ in range(cancellations):
                task.cancel()
                await asyncio.sleep(0.01)
            assert not task.done()
            stalling.proceed.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert stalling.passed
            assert is_closed(trainer)

    asyncio.run(main())
    stalling.proceed.set()
    assert trainer.train().global_step == 4


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(after=st.integers(0, 40), saves=st.booleans(), data=st.data())
def test_a_run_that_is_cancelled_between_two_events_is_closed(
    tmp_path_factory: pytest.TempPathFactory, after: int, saves: bool, data: st.DataObject
) -> None:
    """While the consumer waits for something else. With `save_on_close`, the resumed run equals an undisturbed one."""
    folder = tmp_path_factory.mktemp("run")
    every: dict[str, Any] = {"num_train_epochs": 3, "gradient_accumulation_steps": data.draw(st.sampled_from([1, 2]))}
    trainer = small_trainer(folder / "cancelled", parts=parts(), eval_strategy="epoch", **every)

    async def consume(waits: asyncio.Event) -> None:
        count = 0
        async for _ in trainer.astream(save_on_close=saves):
            count += 1
            if count > after:
                waits.set()
                await asyncio.sleep(60)

    async def main() -> None:
        waits = asyncio.Event()
        async with started(consume(waits)) as task:
            await asyncio.wait([task, asyncio.create_task(waits.wait())], return_when=asyncio.FIRST_COMPLETED)
        while not is_closed(trainer):
            await asyncio.sleep(0.001)

    asyncio.run(main())
    saved = list((folder / "cancelled").glob("checkpoint-*"))
    if not saves:
        assert not saved
        return
    whole = small_trainer(folder / "whole", parts=parts(), eval_strategy="epoch", **every)
    whole.train()
    resumed = small_trainer(folder / "cancelled", parts=parts(), eval_strategy="epoch", **every)
    resumed.train(resume_from_checkpoint=bool(saved))
    assert same_weights(weights(resumed), weights(whole))
    assert history(resumed) == history(whole)


def test_a_last_checkpoint_holds_the_last_step(tmp_path: Path) -> None:
    """With `save_on_close`, a run that is cancelled in a step is saved after it."""
    stalling = Stalling("on_step_begin", 7)
    trainer = small_trainer(tmp_path, parts={"callbacks": [stalling]}, **ENDLESS)

    async def main() -> None:
        async with started(drain(trainer, save_on_close=True)) as task:
            await asyncio.to_thread(stalling.reached.wait, 60)
            task.cancel()
            stalling.proceed.set()

    asyncio.run(main())
    assert (tmp_path / "checkpoint-8" / "manifest.json").exists()
    assert is_closed(trainer)
    assert small_trainer(tmp_path, **{**ENDLESS, "max_steps": 10}).train(resume_from_checkpoint=True).global_step == 10


def test_a_run_that_has_ended_is_not_stopped_as_well(tmp_path: Path) -> None:
    """A stream that is closed after `TrainEnded` leaves no request for the next run, and saves nothing."""
    trainer = small_trainer(tmp_path)

    async def main() -> None:
        async with aclosing(trainer.astream(save_on_close=True)) as events:
            async for event in events:
                if isinstance(event, TrainEnded):
                    break

    asyncio.run(main())
    assert not list(tmp_path.glob("checkpoint-*"))
    assert trainer.train().global_step == 4


@pytest.mark.parametrize("saves", [False, True])
def test_a_timeout_ends_a_run(tmp_path: Path, saves: bool) -> None:
    """`asyncio.timeout` raises TimeoutError, after the step."""
    trainer = small_trainer(tmp_path, **ENDLESS)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await drain(trainer, save_on_close=saves)
        assert is_closed(trainer)

    asyncio.run(main())
    assert len(list(tmp_path.glob("checkpoint-*"))) == saves


@pytest.mark.parametrize("closes", [aclosing, None])
def test_a_stream_that_is_left_is_closed(tmp_path: Path, closes: Any) -> None:
    """At once by `aclosing`; by the event loop otherwise, before `asyncio.run` returns."""
    trainer = small_trainer(tmp_path, **ENDLESS)

    async def leave(events: AsyncGenerator[AnyEvent, None]) -> None:
        async for event in events:
            if isinstance(event, StepEnded) and event.step == 3:
                break

    async def main() -> None:
        if closes is None:
            await leave(trainer.astream())
            return
        async with closes(trainer.astream()) as events:
            await leave(events)
        assert is_closed(trainer)

    asyncio.run(main())
    assert is_closed(trainer)
    assert trainer.state.global_step == 3


def test_runs_take_turns_and_equal_each_alone(tmp_path: Path) -> None:
    """Bitwise, though all draw from the same random generators; no warning says otherwise."""
    trainers = [random_trainer(tmp_path / "together", seed) for seed in SEEDS]
    steps: list[int] = []

    async def train(index: int) -> None:
        async for event in trainers[index].astream():
            if isinstance(event, StepEnded):
                steps.append(index)

    async def main() -> None:
        await asyncio.gather(*map(train, range(len(trainers))))

    asyncio.run(main())
    assert steps != sorted(steps), "the runs did not take turns"
    for trainer, seed in zip(trainers, SEEDS, strict=True):
        single = alone(tmp_path / "alone", seed)
        assert same_weights(weights(trainer), weights(single))
        assert history(trainer) == history(single)


def test_a_cancelled_run_leaves_the_others(tmp_path: Path) -> None:
    """One of two runs is cancelled, and the other one equals one alone."""
    trainers = [random_trainer(tmp_path / "together", seed) for seed in SEEDS]

    async def main() -> None:
        async with started(drain(trainers[0])) as first, started(drain(trainers[1])) as second:
            while trainers[0].state.global_step < 2:
                await asyncio.sleep(0.001)
            first.cancel()
            await second

    asyncio.run(main())
    assert same_weights(weights(trainers[1]), weights(alone(tmp_path / "alone", SEEDS[1])))


def test_runs_in_an_executor_of_ones_own_step_at_the_same_time(tmp_path: Path) -> None:
    """Two steps wait for each other in two threads, and the runs warn of the random generators that they share."""
    meeting = threading.Barrier(2)

    class Meeting(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            meeting.wait(60)

    trainers = [small_trainer(tmp_path / name, parts={"callbacks": [Meeting()]}) for name in "ab"]

    async def main() -> None:
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
            runs = zip(trainers, (one, other), strict=True)
            await asyncio.gather(*(drain(trainer, executor=executor) for trainer, executor in runs))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
    assert [str(each.message).startswith("Two runs are live in two threads") for each in caught] == [True]


def test_a_paused_run_waits_and_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    """It yields one `Paused`; another run trains to its end meanwhile; a save is written during the pause."""
    trainer, other = small_trainer(tmp_path / "paused", num_train_epochs=3), small_trainer(tmp_path / "other")
    seen: list[AnyEvent] = []

    async def main() -> None:
        async def consume() -> None:
            async for event in trainer.astream():
                seen.append(event)
                if isinstance(event, StepEnded) and event.step == 5:
                    trainer.pause()

        async with started(consume()) as task:
            while not seen or not isinstance(seen[-1], Paused):
                await asyncio.sleep(0.001)
            count = len(seen)
            await drain(other)
            assert len(seen) == count
            assert await trainer.request_save() == "checkpoint-5"
            trainer.resume()
            await task

    asyncio.run(main())
    assert other.state.global_step == 4
    assert trainer.state.global_step == 12
    kinds = [type(event) for event in seen]
    assert kinds.count(Paused) == 2  # before and after the save


@pytest.mark.parametrize("saves", [False, True])
def test_a_paused_run_can_be_cancelled(tmp_path: Path, saves: bool) -> None:
    """It ends without another step."""
    trainer = small_trainer(tmp_path, **ENDLESS)

    async def main() -> None:
        reached = asyncio.Event()

        async def consume() -> None:
            async for event in trainer.astream(save_on_close=saves):
                if isinstance(event, StepEnded) and event.step == 3:
                    trainer.pause()
                if isinstance(event, Paused):
                    reached.set()

        async with started(consume()):
            await reached.wait()
        assert is_closed(trainer)

    asyncio.run(main())
    assert trainer.state.global_step == 3
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"] * saves


NAME = ContextVar("NAME", default="none")


def test_context_variables_are_kept(tmp_path: Path) -> None:
    """Callbacks see those of the task, and what they set stays, in the run alone."""
    seen: dict[str, list[str]] = {"one": [], "two": []}

    class Noting(TrainerCallback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen[self.name].append(NAME.get())
            NAME.set(f"{self.name} after step {state.global_step}")

    async def train(name: str) -> None:
        NAME.set(name)
        trainer = small_trainer(tmp_path / name, parts={"callbacks": [Noting(name)]})
        async for _ in trainer.astream():
            assert NAME.get() == name

    async def main() -> None:
        await asyncio.gather(train("one"), train("two"))

    asyncio.run(main())
    for name, found in seen.items():
        assert found == [name, *(f"{name} after step {step}" for step in range(3))]


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("cancels", [False, True])
def test_an_error_of_a_step_is_raised(tmp_path: Path, cancels: bool) -> None:
    """Also if the task has been cancelled meanwhile: it would be lost otherwise."""
    stalling = Stalling("on_step_begin", 1)

    class Breaking(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                raise BrokenError("step 2")

    trainer = small_trainer(tmp_path, parts={"callbacks": [stalling, Breaking()]})

    async def main() -> None:
        async with started(drain(trainer, save_on_close=True)) as task:
            await asyncio.to_thread(stalling.reached.wait, 60)
            if cancels:
                task.cancel()
                await asyncio.sleep(0.01)
            stalling.proceed.set()
            with pytest.raises(BrokenError, match="step 2"):
                await task
        assert is_closed(trainer)

    asyncio.run(main())


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    """While one is live, of the same Trainer."""
    trainer = small_trainer(tmp_path, **ENDLESS)

    async def main() -> None:
        async with started(drain(trainer)):
            while trainer.state.global_step < 1:
                await asyncio.sleep(0.001)
            with pytest.raises(RunStateError, match="live already"):
                trainer.astream()

    asyncio.run(main())


def test_signals_are_refused(tmp_path: Path) -> None:
    """Python delivers signals to the main thread; the error says what to do in an event loop."""
    trainer = small_trainer(tmp_path, interrupts=["SIGTERM"])

    with pytest.raises(ConfigurationError, match="request_stop"):
        asyncio.run(drain(trainer))


@pytest.mark.parametrize("ending", ["saved", "closed", "cancelled"])
def test_a_requested_save_can_be_awaited(tmp_path: Path, ending: str) -> None:
    """It returns the name, raises what `wait` raises, and survives a wait that is cancelled."""
    trainer = small_trainer(tmp_path, num_train_epochs=2)

    async def main() -> None:
        async with aclosing(trainer.astream()) as events:
            async for event in events:
                if isinstance(event, StepEnded) and event.step == 3:
                    request = trainer.request_save()
                    if ending == "closed":
                        break
                    if ending == "cancelled":
                        with suppress(TimeoutError):
                            await asyncio.wait_for(request, 0.001)
        if ending == "closed":
            with pytest.raises(Exception, match="before it reached the requested save"):
                await request
        else:
            assert await request == "checkpoint-3"

    asyncio.run(main())


def test_evaluations_and_saves_yield_their_events(tmp_path: Path) -> None:
    """As in a stream."""
    trainer = small_trainer(tmp_path, eval_strategy="epoch", save_strategy="epoch", parts=parts())
    kinds: set[Callable[..., Any]] = {type(event) for event in asyncio.run(drain(trainer))}

    assert {Evaluated, Saved, StepEnded, TrainEnded} <= kinds
