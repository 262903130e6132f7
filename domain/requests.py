"""Requests to a live run, from any thread (stop, save, pause, resume), and how all ranks agree to apply them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterable
from concurrent import futures
from typing import Any

from attrs import define, field, frozen

from hexloop.domain.errors import HexloopError
from hexloop.domain.triggers import ControlFlags
from hexloop.ports.collectives import Collectives, Pending, Reduction


@frozen
class AgreedRequests:
    """What all ranks do at a boundary.

    Args:
        stop: stop after this boundary.
        save: save at this boundary.
        pause: pause at this boundary.
        collect: report the outcome of the save that was in flight when the ranks exchanged their requests.
    """

    stop: bool = False
    save: bool = False
    pause: bool = False
    collect: bool = False


NO_REQUESTS = AgreedRequests()

ALL_WRITTEN = AgreedRequests(collect=True)

PAUSE_POLL_SECONDS = 0.5
"""How often a thread that waits through a pause checks by itself whether the pause is over."""


class SaveRequest:
    """A requested save. `wait` returns when the checkpoint is durable."""

    def __init__(self) -> None:
        self._outcome: futures.Future[str] = futures.Future()

    def wait(self, timeout: float | None = None) -> str:
        """Wait for the checkpoint and return its name.

        Args:
            timeout: the most seconds to wait; None for no limit.

        Raises:
            TimeoutError: after `timeout` seconds, the error of the save if it failed.
            HexloopError: if the run ended before it saved.
        """
        if not futures.wait([self._outcome], timeout).done:
            raise TimeoutError(f"The requested save did not finish within {timeout} s. Pass a longer timeout.")
        return self._outcome.result()

    def __await__(self) -> Generator[Any, None, str]:
        """Wait in an event loop, as `wait` does in a thread. A cancelled wait leaves the request as it is."""
        import asyncio

        return asyncio.shield(asyncio.wrap_future(self._outcome)).__await__()

    @property
    def done(self) -> bool:
        """Whether `wait` would return or raise immediately."""
        return self._outcome.done()

    def succeed(self, name: str) -> None:
        """Complete the request: the checkpoint `name` is durable.

        Args:
            name: the name of the checkpoint.
        """
        self._outcome.set_result(name)

    def fail(self, error: Exception) -> None:
        """Complete the request with an error.

        Args:
            error: what failed.
        """
        self._outcome.set_exception(error)


@frozen
class Requests:
    """The pending requests to a run. Any thread may call any method at any time; only `wait_while_paused` waits.

    Signal handlers may call these methods too: every lock is re-entrant.

    Attributes:
        pending: the names of the pending requests. It is always the same set and must only be read; the loop reads it
            at every step.
    """

    pending: set[str] = field(factory=set, init=False)
    _changed: threading.Condition = field(factory=threading.Condition, init=False, repr=False)
    _saves: list[SaveRequest] = field(factory=list, init=False)
    _reasons: list[str] = field(factory=list, init=False)

    @property
    def current(self) -> AgreedRequests:
        """The requests that are pending now, in this process."""
        pending = self.pending
        return AgreedRequests("stop" in pending, "save" in pending, "pause" in pending) if pending else NO_REQUESTS

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reason of each stop request."""
        return tuple(self._reasons)

    def request_stop(self, reason: str = "", save: bool = False) -> None:
        """End the run at the next step boundary, or during an evaluation. With `save`, save a checkpoint first.

        Args:
            reason: why, for the outcome of the run.
            save: save a checkpoint first.
        """
        self._reasons.append(reason)
        self._add(*(("save", "stop") if save else ("stop",)))

    def explain_stop(self, reason: str) -> None:
        """Add the reason of a stop that was not requested, such as that of a pruned trial.

        Args:
            reason: why, for the outcome of the run.
        """
        self._reasons.append(reason)

    def request_save(self) -> SaveRequest:
        """Save a checkpoint at the next step boundary."""
        request = SaveRequest()
        self._saves.append(request)
        self._add("save")
        return request

    def pause(self) -> None:
        """Pause the run at the next step boundary."""
        self._add("pause")

    def resume(self) -> None:
        """Resume the run after a pause."""
        self.pending.discard("pause")
        self._notify()

    def wait_while_paused(self, timeout: float | None = None) -> bool:
        """Wait until the run is no longer paused, or has a save to write. Return False after `timeout` seconds.

        Args:
            timeout: the most seconds to wait; None for no limit.
        """
        with self._changed:
            if timeout is not None:
                return self._changed.wait_for(self._may_continue, timeout)
            # A signal handler that runs in this thread just before the wait notifies no one, hence the polling.
            while not self._changed.wait_for(self._may_continue, PAUSE_POLL_SECONDS):
                pass
            return True

    def take_saves(self) -> list[SaveRequest]:
        """Return the pending save requests and remove them; the caller completes them.

        A request that arrives during this call is either returned or stays pending.
        """
        self.pending.discard("save")
        taken = []
        while self._saves:
            taken.append(self._saves.pop(0))
        return taken

    def clear(self, taken: Iterable[SaveRequest] = ()) -> None:
        """Remove all requests when the run has ended. Saves that are still pending, or were `taken`, fail.

        Args:
            taken: saves that the run took up and has not completed.
        """
        for request in (*taken, *self.take_saves()):
            request.fail(HexloopError("The run ended before it reached the requested save."))
        self.pending.clear()
        self._reasons.clear()
        self._notify()

    def _add(self, *names: str) -> None:
        self.pending.update(names)  # in one call, so that no boundary sees only some of them
        self._notify()

    def _may_continue(self) -> bool:
        return "pause" not in self.pending or not self.pending.isdisjoint(("stop", "save"))

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


@define
class LocalAgreement:
    """The Agreement of a single process: its own requests and flags apply immediately.

    Args:
        requests: the requests of this process.

    Attributes:
        waiting: a true value if `agreed_requests` must be called at this boundary. Read at every step.
    """

    requests: Requests
    is_single_process = True
    waiting: Collection[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.waiting = self.requests.pending

    def start_boundary(self, control: ControlFlags) -> None:
        """No-op: the flags of this process apply as they are.

        Args:
            control: the flags of this process.
        """

    def after_action(self, control: ControlFlags) -> None:
        """No-op: the flags of this process apply as they are.

        Args:
            control: the flags of this process.
        """

    def agreed_requests(self) -> AgreedRequests:
        """Return the pending requests of this process."""
        return self.requests.current


@define
class SharedAgreement:
    """The Agreement of several processes: one fixed-size reduction, started at one boundary and read at the next.

    A request is applied at most two boundaries after it was made, at the same step on every rank, and no step waits for
    the reduction. It also tells when all ranks have written the save that was in flight.

    The control flags are part of the reduction. A rank that has a flag set waits for the result: a flag that is set on
    all ranks, for example by a trigger or a metric, takes effect immediately. A flag that is set on some ranks only
    takes effect on all ranks at the start of the next boundary, when the others have received it.

    Args:
        requests: the requests of this process.
        collectives: the processes that agree.
        writing: returns whether this process has a save in flight.
    """

    requests: Requests
    collectives: Collectives
    writing: Callable[[], bool] = bool
    is_single_process = False
    _in_flight: Pending | None = field(default=None, init=False)
    _agreed: AgreedRequests = field(default=NO_REQUESTS, init=False)
    _is_exchanged: bool = field(default=False, init=False)
    _partly_set: set[str] = field(factory=set, init=False)

    @property
    def waiting(self) -> bool:
        """Always True: another rank may have a request."""
        return True

    def start_boundary(self, control: ControlFlags) -> None:
        """Set the flags that only some ranks had set at the last boundary, then exchange the current ones.

        Args:
            control: the flags of this process.
        """
        self._receive()
        control.assign(self._partly_set, True)
        self._partly_set.clear()
        self._exchange(control)

    def after_action(self, control: ControlFlags) -> None:
        """Exchange the flags that are set now.

        Args:
            control: the flags of this process.
        """
        self._receive()
        self._exchange(control)

    def agreed_requests(self) -> AgreedRequests:
        """Return the requests of all ranks as of their last exchange.

        Raises:
            CollectiveError: if a rank does not respond.
        """
        if not self._is_exchanged:
            self._receive()
            self._send([])
        agreed, self._agreed, self._is_exchanged = self._agreed, NO_REQUESTS, False
        return agreed

    def _exchange(self, control: ControlFlags) -> None:
        """Send this rank's flags, and clear those that are not set on all ranks until the next boundary."""
        own = [name for name in ControlFlags.NAMES if getattr(control, name)]
        votes = self._send(own)
        self._is_exchanged = True
        if own:
            counts = zip(ControlFlags.NAMES, votes.result()[4:], strict=True)
            control.assign([name for name, count in counts if count < self.collectives.world_size], False)

    def _send(self, flags: Collection[str]) -> Pending:
        """Start to sum the requests and flags of all ranks."""
        own = self.requests.current
        votes = [own.stop, own.save and not self._agreed.save, own.pause, self.writing()]
        votes += [name in flags for name in ControlFlags.NAMES]
        self._in_flight = self.collectives.start_reduction(list(map(float, votes)), Reduction.SUM)
        return self._in_flight

    def _receive(self) -> None:
        """Read the result of the last reduction."""
        if self._in_flight is None:
            return
        votes, agreed = self._in_flight.result(), self._agreed
        if agreed is NO_REQUESTS and not any(votes):  # as after most steps
            self._agreed = ALL_WRITTEN
            return
        stop, save, pause, writing, *flags = votes
        self._agreed = AgreedRequests(
            agreed.stop or stop > 0, agreed.save or save > 0, agreed.pause or pause > 0, writing == 0
        )
        counts = zip(ControlFlags.NAMES, flags, strict=True)
        self._partly_set |= {name for name, count in counts if 0 < count < self.collectives.world_size}


Agreement = LocalAgreement | SharedAgreement
"""How ranks agree on what to do at a boundary. Every rank calls it at every boundary where `waiting` is true."""


def make_agreement(requests: Requests, collectives: Collectives, writing: Callable[[], bool] = bool) -> Agreement:
    """Return the cheapest Agreement for this number of processes.

    Args:
        requests: the requests of this process.
        collectives: the processes that agree.
        writing: see `SharedAgreement`.
    """
    if collectives.world_size == 1:
        return LocalAgreement(requests)
    return SharedAgreement(requests, collectives, writing)
