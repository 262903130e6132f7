"""Runs in an asyncio event loop: steps in a thread, cancellation between steps, and one thread for several runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import TypeVar

from hexloop.domain.events import AnyEvent, Paused, TrainEnded
from hexloop.domain.requests import Requests

Result = TypeVar("Result")

PAUSE_POLL_SECONDS = 0.02
"""How often a paused run checks whether it may continue."""

PAUSE_TURN_SECONDS = 1.0
"""How long a paused run does not communicate: other ranks wait for it."""


async def events_of(
    stream: Generator[AnyEvent, None, None], requests: Requests, save_on_close: bool, executor: Executor | None
) -> AsyncGenerator[AnyEvent, None]:
    """Yield the events of a run; each step runs in a thread.

    A cancelled task waits for the step that is running, and for the end of the run. An error of that step is raised
    instead of the cancellation.

    Args:
        stream: The run. It is closed at the end.
        requests: The requests to the run.
        save_on_close: Whether a run that is cancelled or closed before its end saves a checkpoint.
        executor: Where steps run, one at a time. By default all runs of an event loop share one thread.
    """
    loop, context, has_ended = asyncio.get_running_loop(), copy_context(), False

    def advance() -> AnyEvent | None:
        nonlocal has_ended
        event = next(stream, None)
        has_ended = has_ended or event is None or isinstance(event, TrainEnded)
        return event

    def finish() -> None:
        if not has_ended:
            requests.request_stop("the stream of events was cancelled or closed", save=True)
        for _ in stream:
            pass

    with _shared_thread() if executor is None else nullcontext(executor) as thread:

        def started(work: Callable[[], Result]) -> asyncio.Future[Result]:
            return loop.run_in_executor(thread, context.run, work)

        try:
            paused = False
            while (event := await _completed(started(advance))) is not None:
                was_paused, paused = paused, isinstance(event, Paused)
                if not (was_paused and paused):
                    yield event
                if paused:
                    await _pause(requests)
        except (asyncio.CancelledError, GeneratorExit):
            if save_on_close:
                await _completed(started(finish))
            raise
        finally:
            await _completed(started(stream.close))


async def _completed(work: asyncio.Future[Result]) -> Result:
    """Return the result of work in a thread, which cannot be cancelled: a cancellation waits for its end."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    result = work.result()
    if cancelled is not None:
        raise cancelled
    return result


async def _pause(requests: Requests) -> None:
    """Wait until the run is no longer paused, or has to communicate with other ranks."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PAUSE_TURN_SECONDS
    while loop.time() < until and not requests.wait_while_paused(0):
        await asyncio.sleep(PAUSE_POLL_SECONDS)


class _Thread(threading.local):
    """The thread that the runs of an event loop share, one per thread that has a loop, and how many use it."""

    executor: ThreadPoolExecutor | None = None
    users = 0


_threads = _Thread()


@contextmanager
def _shared_thread() -> Iterator[Executor]:
    """Provide the thread of this event loop's runs.

    In one thread, runs take turns and do not disturb each other's random draws: each trains as it would alone.
    """
    if _threads.executor is None:
        _threads.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hexloop-runs")
    _threads.users += 1
    try:
        yield _threads.executor
    finally:
        _threads.users -= 1
        if _threads.users == 0:
            _threads.executor.shutdown()
            _threads.executor = None
