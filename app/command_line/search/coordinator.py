"""The process of a search that proposes: it hands trials to workers, records what they report, and decides."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any

from attrs import define, field

from hexloop.app.command_line.search.progress import SearchProgress
from hexloop.app.command_line.search.workers import Worker, WorkerPool, values_in
from hexloop.app.search.searching import Leader
from hexloop.domain.errors import RunStateError
from hexloop.domain.redaction import redact
from hexloop.domain.search.records import RecordedTrial
from hexloop.ports.search import TrialState

MOST_STARTS = 2
"""How often a trial is started whose process dies; after that it counts as failed."""

GRACE = 30.0
"""Seconds that workers have after Ctrl-C to save a checkpoint and stop."""

INTERVAL = 0.5
"""Seconds between looks at signals and time limits."""

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@define
class Coordinator:
    """Runs the trials of a search in workers.

    stopped_by: the signal that ends the search before its trials are done. is_ready: whether a worker has read the
    recipe.
    """

    leader: Leader
    pool: WorkerPool
    progress: SearchProgress
    stopped_by: signal.Signals | None = None
    is_ready: bool = False
    _starts: dict[int, int] = field(factory=dict, init=False)
    _began: dict[int, float] = field(factory=dict, init=False)
    _again: list[Mapping[str, Any]] = field(factory=list, init=False)
    _deadline: float | None = field(default=None, init=False)

    def run(self) -> None:
        """Run all trials. Raises KeyboardInterrupt or SystemExit at a second signal, and what ends the search."""
        with self._signals():
            exhausted = False
            while True:
                while not exhausted and self.stopped_by is None and (worker := self.pool.idle()) is not None:
                    exhausted = not self._give(worker)
                if not self.pool.busy() and (exhausted or self.stopped_by is not None):
                    return
                if self._deadline is not None and monotonic() >= self._deadline:
                    return
                for worker, message in self.pool.messages(INTERVAL):
                    self._take(worker, message)
                    exhausted &= not self._again

    def _trial(self, number: int) -> RecordedTrial:
        return self.leader.record.trials[number]

    def _described(self, number: int) -> dict[str, Any]:
        """Return a trial that is started again, from its newest checkpoint."""
        return self.leader.described(number, resumes=True)

    def _give(self, worker: Worker) -> bool:
        """Give a worker the next trial; return False if there is none."""
        described: Any = self._again.pop(0) if self._again else self.leader.next()
        if described is None:
            return False
        number = int(described["number"])
        self._starts[number] = self._starts.get(number, 0) + 1
        self._began.setdefault(number, monotonic())
        self.progress.started(self._trial(number))
        host = self.leader.host
        self.pool.give(worker, **described, folder=host.location(described["name"]), group=host.group)
        return True

    def _take(self, worker: Worker, message: Mapping[str, Any] | None) -> None:
        if message is None:
            self._take_death(worker)
        elif message["kind"] == "ready":
            self.is_ready = True
        elif message["kind"] == "refused":
            raise RunStateError(str(message["reason"]))
        elif message["kind"] == "reported" and worker.trial is not None:
            values = values_in(message["values"])
            diverged, asks = bool(message["diverged"]), bool(message["asks"])
            goes_on = self.leader.report(worker.trial, int(message["step"]), values, diverged, asks)
            self.progress.reported(self._trial(worker.trial))
            worker.answer(kind="continues", goes_on=goes_on)
        elif message["kind"] == "ended" and worker.trial is not None:
            number, worker.trial = worker.trial, None
            self._end(number, message["state"], message["reason"], float(message["seconds"]))

    def _take_death(self, worker: Worker) -> None:
        """Start the trial of a worker that died again, from its newest checkpoint, or count it as failed."""
        number = worker.trial
        if not self.is_ready and self.stopped_by is None:
            raise RunStateError(
                f"The first process of the search ended before it had read the recipe: {worker.ending}; "
                f"{self.pool.output} has what it printed."
            )
        if number is None:
            return
        if self.stopped_by is not None:
            self.progress.stopped(self._trial(number))
        elif self._starts[number] < MOST_STARTS:
            self._again.append(self._described(number))
        else:
            self._end(number, TrialState.FAILED.value, worker.ending, monotonic() - self._began[number])

    def _end(self, number: int, state: str | None, reason: str | None, seconds: float) -> None:
        if state is None:  # stopped by a signal, and to be resumed
            self.progress.stopped(self._trial(number))
            return
        self._began.pop(number)
        self.leader.end(number, TrialState(state), None if reason is None else redact(reason), seconds)
        self.progress.ended(self._trial(number))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals: the first one lets the workers save and stop, the second one ends this process."""
        before = {number: signal.signal(number, self._handle) for number in ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if self.stopped_by is not None:
            raise KeyboardInterrupt if received is signal.SIGINT else SystemExit(128 + received)
        self.stopped_by, self._deadline = received, monotonic() + GRACE
        # os.write and not print: a signal may arrive in the middle of a print.
        text = f"\nhexloop: {received.name}: saving and stopping the trials; a second one stops immediately\n"
        os.write(2, text.encode())
        self.pool.signal(signal.SIGTERM)
