"""What torch records of itself: how long it compiles, and which operations take how long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field
from torch.profiler import ProfilerAction

MOST_ROWS = 100
"""Rows of the table of a profile, those that take longest."""

CALLBACKS = "torch._dynamo.callback"
"""The module through which torch announces compilations. It is loaded with torch.compile, which takes seconds."""


@define(eq=False)
class CompileSeconds:
    """The seconds that torch.compile takes in this process, from when this is created until it is closed.

    They include backward passes that are compiled when they first run, and the recording of CUDA graphs. torch
    announces where a compilation starts and ends, so nothing is read between.

    clock: returns seconds from any point in time.
    """

    clock: Callable[[], float]
    _total: float = field(default=0.0, init=False)
    _began: float | None = field(default=None, init=False)
    _handler: Any = field(default=None, init=False)

    def __call__(self) -> float:
        """Return the seconds so far, also of a compilation that is going on in another thread."""
        if self._handler is None or self._start not in self._handler.start_callbacks:  # torch.compiler.reset clears it
            self._listen()
        began = self._began
        return self._total if began is None else self._total + self.clock() - began

    def close(self) -> None:
        """Stop to listen."""
        handler, self._handler = self._handler, None
        if handler is not None and self._start in handler.start_callbacks:
            handler.remove_start_callback(self._start)
            handler.remove_end_callback(self._end)

    def _listen(self) -> None:
        module = sys.modules.get(CALLBACKS)
        handler = getattr(module, "callback_handler", None)  # while the module is imported, it has none yet
        if handler is not None:
            self._handler = handler
            handler.register_start_callback(self._start)
            handler.register_end_callback(self._end)

    def _start(self, _announced: object) -> None:
        self._began = self.clock()

    def _end(self, _announced: object) -> None:
        if self._began is not None:
            began, self._began = self._began, None
            self._total += self.clock() - began


class TorchProfiler:
    """Records the operations of consecutive steps with torch.profiler, on the CPU and on the device.

    Implements `hexloop.app.assembly.framework.Profiler`.
    """

    def __init__(self) -> None:
        self._profile: Any = None

    def start(self, warmup: int, steps: int) -> None:
        """Record `steps` steps after `warmup` steps, in which the profiler itself gets ready.

        Raises RuntimeError if the program is recording a profile, which torch would end.
        """
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("another profile of torch is being recorded")
        last = warmup + steps - 1

        def action(step: int) -> ProfilerAction:
            if step < warmup:
                return ProfilerAction.WARMUP
            if step < last:
                return ProfilerAction.RECORD
            return ProfilerAction.RECORD_AND_SAVE if step == last else ProfilerAction.NONE

        self._profile = torch.profiler.profile(schedule=action)
        self._profile.start()

    def step(self) -> None:
        """End a step; recording stops after the last one."""
        self._profile.step()

    def finish(self) -> None:
        """Stop recording."""
        self._profile.stop()

    def write_trace(self, path: str) -> None:
        """Write what was recorded as a Chrome trace; compressed, if the path ends with ".gz"."""
        self._profile.export_chrome_trace(path)

    def table(self) -> str:
        """Return the operations that took longest on the device, or else on the CPU."""
        averages = self._profile.key_averages()
        on_device = any(each.self_device_time_total for each in averages)
        order = "self_device_time_total" if on_device else "self_cpu_time_total"
        return str(averages.table(sort_by=order, row_limit=MOST_ROWS))
