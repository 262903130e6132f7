"""The random streams and flags of live runs, of which one holds the process's global state at a time."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field

from hexloop.ports.device import Device
from hexloop.ports.state import Part

Flag = tuple[Callable[[], Any], Callable[[Any], None], Any]
"""A global flag that a run sets and restores: how it is read and set, and the wanted value."""


@define(eq=False)
class GlobalState:
    """The random streams and flags of one live run. Of several live runs, one holds the global state at a time."""

    device: Device
    flags: Sequence[Flag]
    thread: int = field(factory=threading.get_ident, init=False)
    _streams: list[Part] | None = field(default=None, init=False)
    _flags_before: list[Any] = field(factory=list, init=False)

    def take(self) -> None:
        """Put this run's streams and flags in force, and keep those of the run that held the global state."""
        holder = _live.holder
        if holder is self:
            return
        if holder is not None:
            holder._streams = list(holder.device.export())
            holder._restore_flags()
        if self._streams is not None:
            self.device.load(self._streams)
        for read, write, wanted in self.flags:
            self._flags_before.append(read())
            write(wanted)
        _live.holder = self

    def release(self) -> None:
        """Restore the flags at the end of the run."""
        _live.runs.discard(self)
        if _live.holder is self:
            self._restore_flags()
            _live.holder = None

    def _restore_flags(self) -> None:
        for (_, write, _), before in zip(self.flags, self._flags_before, strict=False):
            write(before)
        self._flags_before.clear()


@define
class _LiveRuns:
    holder: GlobalState | None = None
    runs: set[GlobalState] = field(factory=set)


_live = _LiveRuns()


def take_global_state(device: Device, flags: Sequence[Flag]) -> GlobalState:
    """Take the global state for a new run; warn if another run is live in another thread."""
    state = GlobalState(device, flags)
    if any(run.thread != state.thread for run in _live.runs):
        warnings.warn(
            "Two runs are live in two threads of this process. They share no state, files or callbacks, but both draw "
            "from torch's random generators, so neither is reproducible; step them from one thread, or use processes.",
            stacklevel=2,
        )
    _live.runs.add(state)
    state.take()
    return state


@define
class IsolatedRandomness:
    """A context whose random draws do not affect the random streams of a live run. No-op if no run is live.

    leaks: they do affect them, as in transformers, but a checkpoint that is saved in between has the earlier streams.
    """

    device: Device
    leaks: bool = False
    _holder: GlobalState | None = field(default=None, init=False)
    _streams: list[Part] | None = field(default=None, init=False)

    def __enter__(self) -> IsolatedRandomness:
        self._holder = _live.holder
        self._streams = list(self.device.export()) if _live.runs else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._streams is not None and _live.holder is self._holder and not self.leaks:
            self.device.load(self._streams)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Put the streams of the run back in force within the block."""
        if self._streams is None:
            yield
            return
        isolated = list(self.device.export())
        self.device.load(self._streams)
        try:
            yield
        finally:
            if _live.holder is self._holder:
                self._streams = list(self.device.export())
                self.device.load(isolated)


@contextmanager
def seeded(device: Device, seed: int) -> Iterator[None]:
    """Seed the random streams; restore those of a live run afterwards."""
    with IsolatedRandomness(device):
        device.seed(seed)
        yield
