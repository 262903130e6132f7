"""Contract of the Logger port, run on the loggers that need no library."""

from __future__ import annotations

import pytest

from hexloop.adapters.logger import NoLogger, RecordingLogger
from hexloop.app.testing.contracts.environment import LoggerContract
from hexloop.ports.logger import Logger, Value


class TestRecordingLogger(LoggerContract):
    @pytest.fixture
    def logger(self) -> Logger:
        return RecordingLogger()

    def written(self, logger: Logger) -> dict[str, Value]:
        assert isinstance(logger, RecordingLogger)
        return dict(logger.records[-1].values)


class TestNoLogger(LoggerContract):
    @pytest.fixture
    def logger(self) -> Logger:
        return NoLogger()
