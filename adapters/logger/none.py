"""Nobody watches."""

from __future__ import annotations

from hexloop.ports.logger import Record, RunInformation


class NoLogger:
    """Answers the Logger port by looking away."""

    def start(self, run: RunInformation) -> None:
        """Nobody is told."""

    def write(self, record: Record) -> None:
        """Nobody is told."""

    def finish(self) -> None:
        """Nobody is told."""
