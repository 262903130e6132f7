"""Those who watch the numbers of a run, none of whom can end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hexloop.ports.logger import Logger, Record, RunInformation


class Watchers:
    """Several loggers as one that never fails: who raises an exception is reported to `warn` and left out from then on.

    What is not an Exception, such as KeyboardInterrupt, is not a failure of the logger and passes through.
    """

    def __init__(self, loggers: Iterable[Logger], warn: Callable[[str], None]) -> None:
        self._loggers = list(loggers)
        self._warn = warn

    def start(self, run: RunInformation) -> None:
        """Tell everybody that a run begins, or goes on."""
        self._tell("start", lambda logger: logger.start(run))

    def write(self, record: Record) -> None:
        """Show everybody the numbers of one log."""
        self._tell("write", lambda logger: logger.write(record))

    def finish(self) -> None:
        """Tell everybody that the run has ended."""
        self._tell("finish", lambda logger: logger.finish())

    def _tell(self, action: str, tell: Callable[[Logger], None]) -> None:
        for logger in list(self._loggers):
            try:
                tell(logger)
            except Exception as error:
                self._loggers = [other for other in self._loggers if other is not logger]
                self._warn(
                    f"The logger {type(logger).__name__} failed to {action} ({type(error).__name__}: {error}); "
                    "the run goes on without it. Mend the logger, or leave it out, before the next run."
                )
