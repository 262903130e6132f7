"""A profile of some steps of a run: when they are recorded, and where the trace and the table are left."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from hexloop.app.assembly.framework import Observer, Profiler
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.storage import chunks_of, joined
from hexloop.app.run.messages import location_of
from hexloop.domain.events import AnyEvent, StepEnded, TrainBegan
from hexloop.domain.run_folder import PROFILE
from hexloop.ports.logger import Journal
from hexloop.ports.storage import Storage

LOGGER = logging.getLogger("hexloop")


@frozen
class ProfileWindow:
    """Which steps are recorded, counted from the first one of the process.

    wait: steps before the profiler starts. warmup: steps in which it runs and nothing is kept. steps: those recorded.
    """

    wait: int
    warmup: int
    steps: int

    @property
    def before(self) -> int:
        """Steps before those that are recorded."""
        return self.wait + self.warmup


@define(eq=False)
class ProfiledSteps:
    """Records a window of steps once. A profiler that fails is given up with a warning, and the run continues.

    storage: that of the run, in which the files are in the folder `PROFILE`. rank: part of their names.
    """

    profiler: Profiler
    window: ProfileWindow
    storage: Storage
    journal: Journal
    rank: int
    _steps: int = field(default=0, init=False)
    _last: int = field(default=0, init=False)
    _records: bool = field(default=False, init=False)
    _is_over: bool = field(default=False, init=False)

    def handlers(self) -> Observer:
        """Return the event handlers that start, count and end."""
        return {TrainBegan: partial(self._safely, self._began), StepEnded: self._step_ended}

    def close(self) -> None:
        """Leave what was recorded, if the run ended in the middle of the window, and say that it did."""
        if self._records:
            self._safely(self._finish)
        if self._is_over:
            return
        self._is_over, recorded = True, max(self._steps - self.window.before, 0)
        window = {"wait": self.window.wait, "warmup": self.window.warmup, "steps": self.window.steps}
        warnings.warn(
            f"profile={window} recorded {recorded} of {self.window.steps} steps, because this process made only "
            f"{self._steps}; choose earlier steps.",
            stacklevel=2,
        )

    def _began(self, event: TrainBegan) -> None:
        self._last = event.step
        if self.window.wait == 0:
            self._start()

    def _step_ended(self, event: StepEnded) -> None:
        if not self._is_over:
            self._safely(self._count, event)

    def _count(self, event: StepEnded) -> None:
        self._steps, self._last = self._steps + 1, event.step
        if self._records:
            self.profiler.step()
            if self._steps == self.window.before + self.window.steps:
                self._finish()
                self._is_over = True
        elif self._steps == self.window.wait:
            self._start()

    def _start(self) -> None:
        self.profiler.start(self.window.warmup, self.window.steps)
        self._records = True

    def _finish(self) -> None:
        """Stop, and write the trace and the table, unless no step was recorded."""
        self._records = False
        self.profiler.finish()
        recorded = self._steps - self.window.before
        if recorded <= 0:
            return
        first = self._last - recorded + 1
        name = f"{PROFILE}/steps-{first}-to-{self._last}-rank-{self.rank}"
        trace, table = f"{name}.trace.json.gz", f"{name}.txt"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json.gz")
            self.profiler.write_trace(str(path))
            self._write(trace, lambda: chunks_of(path))
        text = self.profiler.table().encode()
        self._write(table, lambda: [text])
        self.storage.sync([trace, table])
        where = location_of(self.storage)
        LOGGER.info(
            "Recorded a profile of the steps %s to %s: the trace is %s, and the table %s.",
            f"{first:,}", f"{self._last:,}", joined(where, trace), joined(where, table),
        )  # fmt: skip
        self.journal.note("profile", first=first, last=self._last, trace=trace, table=table)

    def _write(self, path: str, chunks: Callable[[], Any]) -> None:
        self.storage.remove(path)  # of an earlier run
        self.storage.write(path, chunks())

    def _safely(self, act: Callable[..., None], *event: AnyEvent) -> None:
        try:
            act(*event)
        except Exception as error:
            was_recording, self._records, self._is_over = self._records, False, True
            if was_recording:
                with suppress(Exception):
                    self.profiler.finish()
            text = "The profiler failed (%s: %s); the run continues without a profile."
            LOGGER.warning(text, type(error).__name__, error)


def profile_steps(parts: TrainerParts, cleanups: ExitStack) -> Observer:
    """Return the event handlers that record the steps that the arguments name. cleanups: gets what ends that."""
    given, adapters = parts.args.profile, parts.adapters
    if given is None:
        return {}
    assert isinstance(given, dict)  # the argument converts a number
    window, profiler = ProfileWindow(**given), adapters.framework.profiler()
    steps = ProfiledSteps(profiler, window, adapters.storage, adapters.journal, adapters.mesh.rank)
    cleanups.callback(steps.close)
    return steps.handlers()
