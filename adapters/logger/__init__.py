"""Logger adapters: where the metrics of a run go. Here: to a list in memory, and nowhere."""

from __future__ import annotations

from hexloop.ports.logger import Record, RunInformation


class RecordingLogger:
    """Logger adapter that keeps every call: `runs`, `records`, and how often a run was `finished`.

    failure: if set, every call is recorded and then raises it, like a tracker whose server is unreachable.
    """

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.runs: list[RunInformation] = []
        self.records: list[Record] = []
        self.finished = 0

    def start(self, run: RunInformation) -> None:
        """Append to `runs`."""
        self.runs.append(run)
        self._fail()

    def write(self, record: Record) -> None:
        """Append to `records`."""
        self.records.append(record)
        self._fail()

    def finish(self) -> None:
        """Increment `finished`."""
        self.finished += 1
        self._fail()

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class NoLogger:
    """Logger adapter that discards everything."""

    def start(self, run: RunInformation) -> None:
        """No-op."""

    def write(self, record: Record) -> None:
        """No-op."""

    def finish(self) -> None:
        """No-op."""
