"""Logger adapters: where the metrics of a run go. Here: to a list in memory, and nowhere."""

from __future__ import annotations

from collections.abc import Iterable

from hexloop.ports.logger import FINISHED, Media, MediaKind, Outcome, Record, RunInformation


class RecordingLogger:
    """Logger adapter that keeps every call: `runs`, `records`, `logged_media`, the `outcomes`, how often a run was
    `finished`.

    Args:
        failure: if set, every call is recorded and then raises it, like a tracker whose server is unreachable.
        identifier: what `start` returns.
        in_loop: whether the loop calls it itself, instead of a thread.
        media: the kinds of media that it takes; a logger that the loop calls gets none.

    Examples:
        >>> from hexloop.ports.logger import Record
        >>> from hexloop.testing import RecordingLogger
        >>> logger = RecordingLogger()
        >>> logger.write(Record(1, 0.5, {"loss": 0.25}))
        >>> logger.records[0].values
        {'loss': 0.25}
    """

    def __init__(
        self,
        failure: Exception | None = None,
        identifier: str | None = None,
        in_loop: bool = True,
        media: Iterable[MediaKind] = (),
    ) -> None:
        self.failure = failure
        self.identifier = identifier
        self.in_loop = in_loop
        self.outcomes: list[Outcome] = []
        self.runs: list[RunInformation] = []
        self.records: list[Record] = []
        self.media: frozenset[MediaKind] = frozenset(media)
        self.logged_media: list[Media] = []
        self.finished = 0

    def start(self, run: RunInformation) -> str | None:
        """Append to `runs`."""
        self.runs.append(run)
        self._fail()
        return run.tracked_as or self.identifier

    def write(self, record: Record) -> None:
        """Append to `records`."""
        self.records.append(record)
        self._fail()

    def write_media(self, media: Media) -> None:
        """Append to `logged_media`."""
        self.logged_media.append(media)
        self._fail()

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Append to `outcomes`, and increment `finished`."""
        self.outcomes.append(outcome)
        self.finished += 1
        self._fail()

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class NoLogger:
    """Logger adapter that discards everything."""

    in_loop = True

    def start(self, run: RunInformation) -> str | None:
        """No-op."""
        return None

    def write(self, record: Record) -> None:
        """No-op."""

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """No-op."""
