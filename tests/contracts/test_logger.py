"""Contract of the Logger port, run on the loggers that need no library."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexloop.adapters.logger import NoLogger, RecordingLogger
from hexloop.adapters.logger.tracker import ALL_MEDIA
from hexloop.app.testing.contracts.environment import MEDIA, LoggerContract, with_file
from hexloop.ports.logger import Logger, Value


class TestRecordingLogger(LoggerContract):
    @pytest.fixture
    def logger(self) -> Logger:
        return RecordingLogger()

    def written(self, logger: Logger) -> dict[str, Value]:
        assert isinstance(logger, RecordingLogger)
        return dict(logger.records[-1].values)


class TestRecordingLoggerOfMedia(LoggerContract):
    @pytest.fixture
    def logger(self) -> Logger:
        return RecordingLogger(media=ALL_MEDIA)

    def test_it_keeps_media(self, tmp_path: Path) -> None:
        """In the order in which they came."""
        logger = RecordingLogger(media=ALL_MEDIA)
        media = [with_file(each, tmp_path) for each in MEDIA]
        for each in media:
            logger.write_media(each)
        assert logger.logged_media == media


class TestNoLogger(LoggerContract):
    @pytest.fixture
    def logger(self) -> Logger:
        return NoLogger()
