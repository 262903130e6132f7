"""Contract of the Background port, run on each adapter."""

from __future__ import annotations

import pytest

from hexloop.adapters.background import InlineBackground, ThreadBackground
from hexloop.app.testing.contracts.environment import BackgroundContract


class TestThreadBackground(BackgroundContract):
    @pytest.fixture
    def background(self) -> ThreadBackground:
        return ThreadBackground()


class TestInlineBackground(BackgroundContract):
    @pytest.fixture
    def background(self) -> InlineBackground:
        return InlineBackground()
