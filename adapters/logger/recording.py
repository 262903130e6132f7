"""A watcher with a perfect memory."""

from __future__ import annotations

from hexloop.ports.logger import Record, RunInformation


class RecordingLogger:
    """Answers the Logger port by keeping everything: `runs`, `records`, and how often a run was `finished`.

    Where `failure` is set, every call is kept and then raises it, as a tracker does whose server is gone.
    """

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.runs: list[RunInformation] = []
        self.records: list[Record] = []
        self.finished = 0

    def start(self, run: RunInformation) -> None:
        """Keep what the run is."""
        self.runs.append(run)
        self._fail()

    def write(self, record: Record) -> None:
        """Keep the record."""
        self.records.append(record)
        self._fail()

    def finish(self) -> None:
        """Count the end."""
        self.finished += 1
        self._fail()

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class NoLogger:
    """Answers the Logger port by looking away."""

    def start(self, run: RunInformation) -> None:
        """Nobody is told."""

    def write(self, record: Record) -> None:
        """Nobody is told."""

    def finish(self) -> None:
        """Nobody is told."""
