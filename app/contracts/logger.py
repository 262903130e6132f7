"""What a watcher does."""

from __future__ import annotations

import math

import pytest

from hexloop.ports.logger import Logger, Record, RunInformation, Value

RECORDS = (
    Record(1, 0.5, {"loss": 2.5, "learning_rate": 1e-5, "grad_norm": None}),
    Record(1, 0.5, {}),
    Record(2, 1.0, {"eval_loss": math.nan, "eval_count": 3, "eval_name": "last", "eval_good": True}),
    Record(3, 1.5, {"loss": math.inf}),
)


class LoggerContract:
    """The suite of the Logger port. A subclass overrides `written` where what the watcher wrote can be read again."""

    @pytest.fixture
    def logger(self) -> Logger:
        """The adapter under test."""
        raise NotImplementedError

    def written(self, logger: Logger) -> dict[str, Value] | None:
        """The values of the last record, as far as they can be read again; None where they cannot."""
        return None

    def test_every_kind_of_value_can_be_written(self, logger: Logger) -> None:
        """Floats, among them nan and infinity, integers, texts, truth values, None and no value at all are accepted."""
        logger.start(RunInformation("a run", {"learning_rate": 0.1, "layers": [1, 2]}, total_steps=3))
        for record in RECORDS:
            logger.write(record)
        logger.finish()

        assert self.written(logger) in (None, {"loss": math.inf})

    def test_a_run_may_go_on(self, logger: Logger) -> None:
        """After an end the same watcher may be told of the run again, from a later step on."""
        logger.start(RunInformation("a run"))
        logger.finish()
        logger.start(RunInformation("a run", step=10))
        logger.write(Record(11, 2.0, {"loss": 1.0}))
        logger.finish()

        assert self.written(logger) in (None, {"loss": 1.0})

    def test_a_run_may_end_before_its_first_record(self, logger: Logger) -> None:
        """A run that fails at once ends without a record."""
        logger.start(RunInformation("a run"))
        logger.finish()
