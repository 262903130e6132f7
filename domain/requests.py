"""What anybody may ask of a live run, from any thread: stop, save, pause, go on."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from attrs import field, frozen

from hexloop.domain.errors import HexloopError


@frozen
class Asked:
    """What is to be done at a boundary, as all processes of the run agree.

    collect: hear what became of the save that was in flight when they were asked.
    """

    stop: bool = False
    save: bool = False
    pause: bool = False
    collect: bool = False


NOTHING_ASKED = Asked()

LOOK_AGAIN = 0.5
"""Seconds after which whoever waits through a pause looks for himself whether it is over."""


class SaveRequest:
    """A save that somebody asked for. `wait` returns when it is on the storage for good."""

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._name: str | None = None
        self._error: Exception | None = None

    def wait(self, timeout: float | None = None) -> str:
        """Wait for the checkpoint and give back its name.

        Raises TimeoutError after `timeout` seconds, the save's own error if it failed, and HexloopError if the run
        ended before it came to it.
        """
        if not self._settled.wait(timeout):
            raise TimeoutError(f"The save that was asked for is not done after {timeout} s; wait longer.")
        if self._error is not None:
            raise self._error
        assert self._name is not None
        return self._name

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._settled.is_set()

    def succeed(self, name: str) -> None:
        """The checkpoint `name` is durable."""
        self._name = name
        self._settled.set()

    def fail(self, error: Exception) -> None:
        """There will be no such checkpoint."""
        self._error = error
        self._settled.set()


@frozen
class Requests:
    """The letter box of a run. Any thread may call any method at any time; none waits but `wait_while_paused`.

    Nothing here takes a lock that the same thread cannot take again, so that a signal handler may ask as well.
    pending: what is asked for, always the same set; others only read it. The loop looks into it at each step.
    """

    pending: set[str] = field(factory=set, init=False)
    _changed: threading.Condition = field(factory=threading.Condition, init=False, repr=False)
    _saves: list[SaveRequest] = field(factory=list, init=False)
    _reasons: list[str] = field(factory=list, init=False)

    @property
    def asked(self) -> Asked:
        """What is asked for now."""
        asked = self.pending
        return Asked("stop" in asked, "save" in asked, "pause" in asked) if asked else NOTHING_ASKED

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why a stop was asked for, by each who did."""
        return tuple(self._reasons)

    def request_stop(self, reason: str = "", save: bool = False) -> None:
        """End the run at the next step boundary, or within a running evaluation; with `save`, save there first."""
        self._reasons.append(reason)
        self._ask(*(("save", "stop") if save else ("stop",)))

    def request_save(self) -> SaveRequest:
        """Save at the next step boundary."""
        request = SaveRequest()
        self._saves.append(request)
        self._ask("save")
        return request

    def pause(self) -> None:
        """Stand still at the next step boundary."""
        self._ask("pause")

    def resume(self) -> None:
        """Go on after a pause."""
        self.pending.discard("pause")
        self._tell()

    def wait_while_paused(self, timeout: float | None = None) -> bool:
        """Wait until nobody wants the run to stand still; False where `timeout` seconds passed first."""
        with self._changed:
            if timeout is not None:
                return self._changed.wait_for(self._may_go_on, timeout)
            # A signal handler that asks in this very thread, just before it waits, wakes nobody: look again.
            while not self._changed.wait_for(self._may_go_on, LOOK_AGAIN):
                pass
            return True

    def take_saves(self) -> list[SaveRequest]:
        """The saves asked for and not yet done; whoever takes them settles them.

        A save that is asked for meanwhile is taken along, or is still asked for afterwards.
        """
        self.pending.discard("save")
        taken = []
        while self._saves:
            taken.append(self._saves.pop(0))
        return taken

    def give_back(self, saves: Iterable[SaveRequest]) -> None:
        """Saves that were taken and did not come about are asked for again."""
        self._saves.extend(saves)

    def clear(self) -> None:
        """Forget everything, as when the run has ended; saves that were never come to fail."""
        for request in self.take_saves():
            request.fail(HexloopError("The run ended before it came to the save that was asked for."))
        self.pending.clear()
        self._reasons.clear()
        self._tell()

    def _ask(self, *what: str) -> None:
        self.pending.update(what)  # at once, so that no boundary sees half of it
        self._tell()

    def _may_go_on(self) -> bool:
        return "pause" not in self.pending or "stop" in self.pending

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
